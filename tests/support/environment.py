"""The environment of the tests' processes; imported before NumPy and Prefect, which read it.

BLAS uses one thread, because the processes of `pytest -n 3` share the CPUs: threads that wait
for each other would take most of the CPU time. Memory has few arenas, as what is freed within them
stays with the process. A cluster waits an hour for the return of a killed worker, not 15 s.
Temporary files lie in memory if there is room, because every write is synced, which is slow on a
disk. Each process has its own home of Prefect. Scripts start background processes with Ctrl-C
ignored; here it works, as tests press it. Compiled modules are stored even if the environment says
not to, as images of containers do: hundreds of processes would compile all modules again.
"""

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import certifi

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # of the processes that tests start
os.environ["DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT"] = "1h"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_MEMORY, _ROOM = "/dev/shm", 4 << 30

if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM:
    os.environ.setdefault("TMPDIR", _MEMORY)
    tempfile.tempdir = None  # forget the folder that was chosen before TMPDIR was set
_HOME = tempfile.TemporaryDirectory(prefix="prefect-", ignore_cleanup_errors=True)
os.environ["PREFECT_HOME"] = _HOME.name
# Each Prefect client loads all certificate authorities, which is slow. No server of the tests uses
# TLS, so a file with a single authority is enough.
_AUTHORITIES = Path(certifi.where()).read_text(encoding="utf-8")
_FIRST = Path(_HOME.name) / "authority.pem"
_FIRST.write_text(_AUTHORITIES[: _AUTHORITIES.index("\n\n", 1)], encoding="utf-8")
os.environ["PREFECT_API_SSL_CERT_FILE"] = str(_FIRST)
# A test reads events from the server that `flows` starts, which does not store them otherwise.
os.environ["PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED"] = "true"
