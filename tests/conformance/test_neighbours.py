"""A model of pairs of rows keeps the laws."""

from __future__ import annotations

from tests.conformance.facts import Facts
from tests.conformance.laws import *  # noqa: F403

FACTS = Facts("tests.models.neighbours:Neighbours", variants=({"k": 1},), n_varied=4000)
