"""Numerical kernels and special functions.

Functions raise `FitError` if an argument has a wrong shape, is not finite or is out of range. Their
docstrings mention only other failures.
"""

import hashlib
import os
from pathlib import Path

import numba
from platformdirs import user_cache_path


def _digest_sources() -> str:
    """Return a digest of all kernels, because a kernel may inline functions of other files."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted([*folder.rglob("*.py"), *(folder.parent / "models").rglob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# Numba only checks the file of the called function and would miss edits in other files.
_cache_folder = Path(os.environ.get("NUMBA_CACHE_DIR") or user_cache_path("latentbits"))
numba.config.CACHE_DIR = str(_cache_folder / f"kernels-{_digest_sources()}")  # type: ignore[attr-defined]
