"""A model of central steps keeps the laws."""

from __future__ import annotations

from tests.conformance.facts import Facts
from tests.conformance.laws import *  # noqa: F403

FACTS = Facts("tests.models.climber:Climber", plain={"tol": 1e-9})
