"""What a user runs: one file a flow.

Importing this package settles which Prefect server its flows talk to, because Prefect reads its
settings when it is imported.
"""

import logging
import signal
import sys

if sys.argv[:1] == ["-m"] and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # `python -m flows.fit` is being loaded: until `run_app` begins there is nothing to clean up, and
    # no reason for a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from flows.cli.startup import begin_imports
from flows.running.environment import check_own_packages, configure_prefect

check_own_packages(is_command=sys.argv[:1] == ["-m"])
if sys.argv[:1] == ["-m"]:
    begin_imports()
configure_prefect()
logging.getLogger("latentbits").setLevel(logging.INFO)
