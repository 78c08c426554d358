"""The Laplacian eigenmap keeps the laws."""

from __future__ import annotations

from tests.conformance.facts import Facts
from tests.conformance.laws import *  # noqa: F403

FACTS = Facts(
    "laplacian-eigenmap",
    variants=({"k": 3}, {"weights": "heat"}, {"landmarks": 20, "n_components": 3}),
    n_varied=4000,
    slow=("test_codes_do_not_depend_on_how_rows_are_cut",),
)
