"""A home of Prefect for each process of the tests: Prefect takes it when it is imported.

Temporary files lie in memory where there is room: every write is synced, which takes a disk long.
"""

import os
import shutil
import tempfile

_MEMORY, _ROOM = "/dev/shm", 4 << 30

if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM:
    os.environ.setdefault("TMPDIR", _MEMORY)
    tempfile.tempdir = None  # of before
_HOME = tempfile.TemporaryDirectory(prefix="prefect-", ignore_cleanup_errors=True)
os.environ["PREFECT_HOME"] = _HOME.name
