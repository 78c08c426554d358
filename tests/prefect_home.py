"""A home of Prefect for each process of the tests: Prefect takes it when it is imported."""

import os
import tempfile

_HOME = tempfile.TemporaryDirectory(prefix="prefect-", ignore_cleanup_errors=True)
os.environ["PREFECT_HOME"] = _HOME.name
