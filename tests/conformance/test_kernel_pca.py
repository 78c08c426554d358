"""Kernel PCA keeps the laws."""

from __future__ import annotations

from tests.conformance.facts import Facts
from tests.conformance.laws import *  # noqa: F403

FACTS = Facts(
    "kernel-pca",
    variants=({"landmarks": 20}, {"width": 1.0, "landmarks": 50}),
    slow=("test_codes_do_not_depend_on_how_rows_are_cut",),
)
