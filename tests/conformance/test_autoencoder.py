"""The autoencoder keeps the laws."""

from __future__ import annotations

from tests.conformance.facts import Facts
from tests.conformance.laws import *  # noqa: F403

FACTS = Facts(
    "autoencoder",
    plain={"max_iter": 30},
    variants=(
        {"loss": "squared", "optimizer": "momentum", "corruption": "mask"},
        {"sparsity": 0.1, "corruption": "flip", "max_iter": 20},
        {"sparsity": 0.01, "penalty": "l1", "max_iter": 20},
    ),
    rising=(),
    follows_cause=True,
    slow=("test_codes_do_not_depend_on_how_rows_are_cut",),
)
