"""Numerical kernels and special functions."""

import hashlib
import os
from pathlib import Path

import numba
from platformdirs import user_cache_path


def _digest_sources() -> str:
    """Digest of all kernels, here and beside models: a kernel compiles in functions of others."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted([*folder.rglob("*.py"), *(folder.parent / "models").rglob("*.py")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# Numba looks only at the file of the function called, so an edit elsewhere would go unnoticed.
if "NUMBA_CACHE_DIR" not in os.environ:
    folder = user_cache_path("latentbits") / f"kernels-{_digest_sources()}"
    numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]
