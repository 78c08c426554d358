"""The stack keeps the laws."""

from __future__ import annotations

from tests.conformance.facts import Facts
from tests.conformance.laws import *  # noqa: F403

FACTS = Facts(
    "stack",
    plain={"pretrain": 4, "max_iter": 20},
    variants=(
        {"block": "rbm", "layers": (5, 3, 2), "corruption": "flip"},
        {"pretrain": 0, "optimizer": "momentum", "corruption": "none"},
    ),
    rising=(),
    follows_cause=True,
    slow=("test_chunks_do_not_matter",),
)
