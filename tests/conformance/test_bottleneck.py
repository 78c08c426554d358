"""The bottleneck keeps the laws."""

from __future__ import annotations

from tests.conformance.facts import Facts
from tests.conformance.laws import *  # noqa: F403

FACTS = Facts(
    "bottleneck",
    plain={"max_iter": 20},
    variants=({"column": "label", "optimizer": "momentum"}, {"column": "label", "kind": "number"}),
    rising=(),
    follows_cause=True,
)
