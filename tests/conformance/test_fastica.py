"""FastICA keeps the laws."""

from __future__ import annotations

from tests.conformance.facts import Facts
from tests.conformance.laws import *  # noqa: F403

FACTS = Facts("fastica", variants=({"n_components": None},))
