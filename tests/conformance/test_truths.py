"""Fits are not worse than what sampled the rows, whichever values are missing by design."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.fitting.loop import fit_model
from pipeline.models.capabilities import CanSample, HasLogLikelihood
from tests.conformance.checks import offered
from tests.conformance.facts import Facts, widen
from tests.conformance.rows import SERIAL
from tests.conformance.truths import (
    N_FEATURES,
    TOLERANCE,
    draw_caused_rows,
    draw_rows,
    find_codes,
    find_truth,
    make_default,
    sum_log_likelihood,
)
from tests.support.designs import DESIGNS
from tests.support.strategies import make_memory_rows


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("design", "n_components", "fitted_components"),
    [
        ("two forms, 2 features link", 1, 1),
        ("ring of 3 forms", 1, 1),
        *[(design, 2, 2) for design in DESIGNS],
        ("complete", 2, None),
        pytest.param("ring of 3 forms", 2, None, marks=pytest.mark.slow),
    ],
)
def test_a_fit_is_not_below_the_truth(
    facts: Facts,
    design: str,
    n_components: int,
    fitted_components: int | None,
) -> None:
    offered(facts, HasLogLikelihood, CanSample)
    if facts.truthful is None:
        pytest.skip("the model does not maximize its likelihood")
    facts = widen(facts, N_FEATURES)
    truth = find_truth(facts, n_components)
    data = draw_rows(facts, truth, design, n_components, seed=1)
    model = make_default(facts, fitted_components)
    state = fit_model(model, make_memory_rows(data), SERIAL)
    reached = sum_log_likelihood(facts, model, state.params, data)
    expected = sum_log_likelihood(facts, make_default(facts, n_components), truth, data)
    assert reached >= expected - TOLERANCE


@pytest.mark.few(1)
@pytest.mark.parametrize("design", [d for d in DESIGNS if d not in ("complete", "20 % missing")])
def test_scores_have_one_sign_across_forms(facts: Facts, design: str) -> None:
    facts = widen(facts, N_FEATURES)
    model = make_default(facts, 1)
    if facts.follows_cause:
        data, expected = draw_caused_rows(design, seed=2)
    elif facts.model.signed_arrays and facts.truthful is not None:
        offered(facts, CanSample)
        truth = find_truth(facts, 1)
        data = draw_rows(facts, truth, design, 1, seed=2)
        expected = find_codes(model, truth, data)[:, 0]
    else:
        pytest.skip("components have no sign, or the model does not maximize its likelihood")
    state = fit_model(model, make_memory_rows(data), SERIAL)
    found = find_codes(model, state.params, data)[:, 0]
    n_forms = 4
    signs = [
        np.sign(np.corrcoef(found[part], expected[part])[0, 1])
        for part in np.array_split(np.arange(len(data.X)), n_forms)
    ]
    assert len(set(signs)) == 1
