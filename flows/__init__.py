"""What a user runs: one file a flow.

Importing this package settles which Prefect server its flows talk to, because Prefect reads its
settings when it is imported.
"""

import logging

from flows.environment import settle_prefect

settle_prefect()
logging.getLogger("latentbits").setLevel(logging.INFO)
