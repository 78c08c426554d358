"""Samples, reconstructions and likelihoods agree with one another and with the data."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from latentbits.functions import Fitted
from pipeline.data.blocks import BinaryBlock
from pipeline.data.features import find_continuous, find_first_planes
from pipeline.fitting.loop import fit_model
from pipeline.models.capabilities import (
    CanReconstruct,
    CanSample,
    HasLogLikelihood,
    HasLowerBound,
    IsMixture,
)
from pipeline.random import RowRandom
from storage.artifacts.artifacts import Artifact
from tests.conformance.checks import assert_well_formed, offered, pair_shares, scale_columns
from tests.conformance.facts import Facts, widen
from tests.conformance.rows import (
    MANY,
    N_VARIED_FEATURES,
    SERIAL,
    draw_from,
    fitted,
    make_data,
    probit,
    reverse,
    sampled,
)
from tests.support.strategies import make_memory_rows


def test_a_fit_recovers_the_model_that_it_sampled(facts: Facts) -> None:
    offered(facts, CanSample)
    flexible, segments = facts.flexible, np.arange(facts.n_sampled) % 3
    facts = widen(facts, MANY)
    params = fitted(facts, **flexible).params
    drawn = draw_from(facts, params, len(segments), 1, segments, **flexible)
    again = fit_model(facts.make(**flexible), make_memory_rows(drawn), SERIAL)
    segments = np.arange(50_000) % 3
    redrawn = draw_from(facts, again.params, len(segments), 2, segments, **flexible)
    np.testing.assert_allclose(pair_shares(redrawn), pair_shares(drawn), atol=facts.shares_off)
    dependence = np.abs(np.corrcoef(scale_columns(drawn.X, drawn.numbers), rowvar=False))
    assert (dependence > 0.2).mean() > 0.3


def assert_recovered(facts: Facts, found: Any, truth: Any, n_rows: int) -> None:
    """Every entry lies within 4 standard errors of the worst one.

    Chance leaves a normal entry outside in 1 of 16,000. Where a model's facts give no error it is
    2 / √rows: a share has ½ / √rows at the most, a threshold or a tetrachoric correlation near
    an even split about 1.6 / √rows.
    """
    recovered, errors = facts.recovered(found, truth), facts.errors
    assert recovered
    for key, (values, expected) in recovered.items():
        assert values.shape == expected.shape, key
        within = 4 * errors.get(key, 2.0) / np.sqrt(n_rows)
        np.testing.assert_allclose(values, expected, rtol=0, atol=within, err_msg=key)


def test_a_fit_to_a_sample_recovers_the_parameters(facts: Facts, stored: Artifact) -> None:
    offered(facts, CanSample)
    facts = widen(facts, N_VARIED_FEATURES)
    n_rows = 100_000 if facts.is_binary else 20_000  # levels take longer
    truth, drawn = Fitted.from_artifact(stored), sampled(facts, stored, n_rows)
    model = truth.model.with_structure(facts.structure)
    again = fit_model(model, make_memory_rows(drawn), SERIAL)
    assert_recovered(facts, again.params, truth.params, n_rows)
    few = drawn.take_rows(slice(None, None, 10))
    reversed_ = fit_model(model, make_memory_rows(reverse(facts, few)), SERIAL)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_recovered(facts, reversed_.params, truth.params, n_rows)


def test_what_is_not_identifiable_is_said(facts: Facts) -> None:
    assert "\nNot identifiable: " in (sys.modules[facts.model.__module__].__doc__ or "")


def test_samples_have_the_pair_shares_of_the_model(facts: Facts) -> None:
    offered(facts, CanSample, CanReconstruct)
    if facts.has_edges:
        pytest.skip("features depend on each other given the codes")
    model, params = facts.make(), fitted(facts).params
    codes, mass, segments = facts.codes(params)
    bits, numbers = model.reconstruct(params, codes, segments), None
    if find_continuous(facts.features):
        numbers = model.reconstruct_numbers(params, codes, segments)
    given_codes = scale_columns(bits, numbers)
    expected = np.einsum("n,ni,nj->ij", mass, given_codes, given_codes)
    drawn = draw_from(facts, params, 200_000, seed=3)
    means = scale_columns(drawn.X, drawn.numbers).mean(axis=0)
    np.testing.assert_allclose(means, mass @ given_codes, atol=0.006)
    # Planes of the same feature depend on each other, given the codes.
    found = np.where(are_of_a_feature(facts), expected, pair_shares(drawn))
    np.testing.assert_allclose(found, expected, atol=0.006)


def are_of_a_feature(facts: Facts) -> NDArray[np.bool_]:
    """Whether two columns of `scale_columns` are of the same feature."""
    planes = [i for i, f in enumerate(facts.features) for _ in range(f.n_planes)]
    owners = np.array([*planes, *find_continuous(facts.features)])
    return owners[:, None] == owners


def all_rows(facts: Facts, segment: int) -> BinaryBlock:
    """A row for each pattern of levels; continuous features are missing."""
    counts = (feature.n_planes + 1 for feature in facts.features)
    values = np.array([*product(*map(range, counts))], np.float64)
    is_continuous = [not feature.levels for feature in facts.features]
    seen = np.broadcast_to(~np.array(is_continuous), values.shape)
    return make_data(facts, values, None if seen.all() else seen).pack(segment)


def test_likelihoods_are_those_of_samples(facts: Facts) -> None:
    """By enumeration: all rows together are certain, and pairs as frequent as in samples."""
    offered(facts, HasLogLikelihood, CanSample)
    model, params = facts.make(), fitted(facts).params
    for segment in range(3):
        block = all_rows(facts, segment)
        found = model.log_likelihood(params, block, RowRandom(0))
        assert found.nats.shape == found.standard_error.shape == (len(block.rows),)
        probabilities = np.exp(found.nats)
        assert probabilities.sum() == pytest.approx(1, abs=1e-3 + 4 * found.shared_error)
        segments = np.full(200_000, segment)
        drawn = draw_from(facts, params, len(segments), 6, segments)
        implied = np.einsum(
            "n,ni,nj->ij", probabilities, block.unpack_values(), block.unpack_values()
        )
        shares = pair_shares(replace(drawn, numbers=None))
        np.testing.assert_allclose(shares, implied, atol=0.006)


def test_bounds_lie_below_likelihoods(facts: Facts) -> None:
    offered(facts, HasLowerBound, HasLogLikelihood)
    model, params, block = facts.make(), fitted(facts).params, all_rows(facts, 0)
    bound = model.lower_bound(params, block, RowRandom(0))
    found = model.log_likelihood(params, block, RowRandom(0))
    assert (bound <= found.nats + 4 * found.standard_error + 1e-6).all()
    assert bound.mean() > found.nats.mean() - 0.5


def test_a_fit_has_the_pair_shares_of_its_data(facts: Facts) -> None:
    offered(facts, CanSample)
    facts = widen(facts, MANY)
    params = fitted(facts, **facts.flexible).params
    found = pair_shares(draw_from(facts, params, 50_000, seed=4))
    expected = pair_shares(probit(facts))
    np.testing.assert_allclose(found, expected, atol=facts.fit_off)


def test_samples_are_well_formed(facts: Facts) -> None:
    offered(facts, CanSample)
    model, params = facts.make(), fitted(facts).params
    drawn = [draw_from(facts, params, 50, seed) for seed in (0, 0, 1)]
    assert draw_from(facts, params, 0, 0).X.shape == (0, drawn[0].X.shape[1])
    assert set(np.unique(drawn[0].X)) == {0, 1}
    for data in drawn:
        assert_well_formed(facts, data)
        assert len(data.X) == 50
    np.testing.assert_array_equal(drawn[0].X, drawn[1].X)
    np.testing.assert_array_equal(drawn[0].numbers, drawn[1].numbers)
    assert (drawn[0].X != drawn[2].X).any()
    bits = model.sample(params, 50, np.random.default_rng(0))  # as without numbers
    np.testing.assert_array_equal(bits, drawn[0].X)


def test_reconstructions_are_well_formed(facts: Facts) -> None:
    offered(facts, CanReconstruct)
    model, params = facts.make(), fitted(facts).params
    codes, firsts = (
        np.random.default_rng(0).standard_normal((7, 2)),
        find_first_planes(facts.features),
    )
    if isinstance(model, IsMixture):
        codes = np.abs(codes)
    reconstructed = model.reconstruct(params, codes)
    assert reconstructed.shape == (7, firsts[-1])
    assert np.all((reconstructed >= 0) & (reconstructed <= 1))
    rises = np.diff(reconstructed, axis=1) > 1e-12
    rises[:, firsts[1:-1] - 1] = False
    assert not rises.any()
    if continuous := find_continuous(facts.features):
        numbers = model.reconstruct_numbers(params, codes)
        assert numbers.shape == (7, len(continuous))
        assert np.isfinite(numbers).all()
