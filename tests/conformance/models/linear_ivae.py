"""Facts about The linear iVAE."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.conformance.facts import Facts, Floats, Pairs, codes_by_segment


def shares_of_pairs(params: Any) -> Floats:
    """How often features are on together, under the model."""
    codes, mass, _ = codes_by_segment(params)
    given_codes = 1 / (1 + np.exp(-codes @ params.mixing.T - params.offsets))
    shares = given_codes.T @ (mass[:, None] * given_codes)
    np.fill_diagonal(shares, mass @ given_codes)
    return shares


def joint_shares(found: Any, truth: Any) -> Pairs:
    """Distributions alone: the bound moves parameters away from those that rows came by."""
    return {"shares": (shares_of_pairs(found), shares_of_pairs(truth))}


FACTS = Facts(
    "linear-ivae",
    plain={"max_iter": 20},
    variants=({"optimizer": "momentum", "batch": 50, "max_iter": 10},),
    rising=(),
    follows_cause=True,
    codes=codes_by_segment,
    alike=("reconstruct",),  # bits depend on the codes alone
    flexible={"rate": 0.01},
    consistent={"batch": 500, "max_iter": 15},
    recovered=joint_shares,
    errors={"shares": 4.1},  # 0.013, of 25,000 rows as of 100,000: what the bound costs
    shares_off=0.035,
    fit_off=0.04,
)
