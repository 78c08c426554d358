"""The environment of the tests' processes; imported before NumPy and Prefect, which read it.

BLAS uses one thread, as two processes of pytest share the CPUs: threads of BLAS that wait for each
other take most of the time otherwise. Temporary files lie in memory if there is room, because every
write is synced, which is slow on a disk. Each process has its own home of Prefect.
"""

import os
import shutil
import tempfile
from pathlib import Path

import certifi

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

_MEMORY, _ROOM = "/dev/shm", 4 << 30

if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM:
    os.environ.setdefault("TMPDIR", _MEMORY)
    tempfile.tempdir = None  # of before
_HOME = tempfile.TemporaryDirectory(prefix="prefect-", ignore_cleanup_errors=True)
os.environ["PREFECT_HOME"] = _HOME.name
# Each client of Prefect reads all authorities there are, though none of ours speaks TLS: one does.
_AUTHORITIES = Path(certifi.where()).read_text(encoding="utf-8")
_FIRST = Path(_HOME.name) / "authority.pem"
_FIRST.write_text(_AUTHORITIES[: _AUTHORITIES.index("\n\n", 1)], encoding="utf-8")
os.environ["PREFECT_API_SSL_CERT_FILE"] = str(_FIRST)
