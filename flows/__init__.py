"""The commands, one file each, and the Prefect flows behind them.

Importing this package chooses the Prefect server that its flows talk to, because Prefect reads its
settings when it is imported.
"""

import logging
import signal
import sys

if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # `python -m flows.fit` is being loaded. Until `run_app` begins, Ctrl-C has nothing to clean up
    # and needs no traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from flows.cli.startup import stop_garbage_collection
from flows.running.environment import check_own_packages, configure_prefect

check_own_packages(is_command=sys.argv[:1] == ["-m"])
if sys.argv[:1] == ["-m"]:
    stop_garbage_collection()
configure_prefect()
logging.getLogger("latentbits").setLevel(logging.INFO)
