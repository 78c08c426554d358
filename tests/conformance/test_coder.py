"""A model of many steps a pass, in layers, keeps the laws."""

from __future__ import annotations

from tests.conformance.facts import Facts
from tests.conformance.laws import *  # noqa: F403

FACTS = Facts(
    "tests.models.coder:Coder",
    variants=({"layers": (4, 3), "max_iter": 3}, {"denoise": True, "rate": 0.2}),
    rising=(),
)
