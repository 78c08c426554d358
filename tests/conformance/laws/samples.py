"""Samples, reconstructions and likelihoods agree with one another and with the data."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from latentbits.functions import Fitted
from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.fitting.loop import fit_model
from pipeline.models.capabilities import CanReconstruct, CanSample, HasLogLikelihood, HasLowerBound
from pipeline.random import RowRandom
from storage.artifacts.artifacts import Artifact
from tests.conformance.checks import offered, pair_shares
from tests.conformance.facts import Facts
from tests.conformance.rows import (
    MANY,
    N_FEATURES,
    SERIAL,
    fitted,
    probit,
    sampled,
)
from tests.support.strategies import (
    DenseData,
    make_memory_rows,
)


def test_a_fit_recovers_the_model_that_it_sampled(facts: Facts) -> None:
    offered(facts, CanSample)
    flexible, segments = facts.flexible, np.arange(facts.n_sampled) % 3
    model, params = facts.make(**flexible), fitted(facts, MANY, **flexible).params
    drawn = model.sample(params, len(segments), np.random.default_rng(1), segments)
    again = fit_model(model, make_memory_rows(DenseData(drawn, None, segments)), SERIAL)
    segments = np.arange(50_000) % 3
    redrawn = model.sample(again.params, len(segments), np.random.default_rng(2), segments)
    np.testing.assert_allclose(pair_shares(redrawn), pair_shares(drawn), atol=facts.shares_off)
    shares = drawn.mean(axis=0)
    dependence = np.abs(pair_shares(drawn) - np.outer(shares, shares))
    assert (dependence > 0.05).mean() > 0.3


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
    truth, drawn = Fitted.from_artifact(stored), sampled(stored, n_rows := 100_000)
    again = fit_model(truth.model, make_memory_rows(drawn), SERIAL)
    assert_recovered(facts, again.params, truth.params, n_rows)
    few = drawn.take_rows(slice(None, None, 10))
    mirrored = fit_model(truth.model, make_memory_rows(replace(few, X=few.X[:, ::-1])), SERIAL)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_recovered(facts, mirrored.params, truth.params, n_rows)


def test_what_is_not_identifiable_is_said(facts: Facts) -> None:
    assert "\nNot identifiable: " in (sys.modules[facts.model.__module__].__doc__ or "")


def test_samples_have_the_pair_shares_of_the_model(facts: Facts) -> None:
    offered(facts, CanSample, CanReconstruct)
    model, params = facts.make(), fitted(facts).params
    codes, mass, segments = facts.codes(params)
    given_codes = model.reconstruct(params, codes, segments)
    expected = np.einsum("n,ni,nj->ij", mass, given_codes, given_codes)
    np.fill_diagonal(expected, mass @ given_codes)  # x² = x
    drawn = model.sample(params, 200_000, np.random.default_rng(3))
    np.testing.assert_allclose(pair_shares(drawn), expected, atol=0.006)


def all_rows(segment: int) -> BinaryBlock:
    patterns = (np.arange(2**N_FEATURES)[:, None] >> np.arange(N_FEATURES)) & 1
    return pack_block(patterns.astype(np.uint8), segment=segment)


def test_likelihoods_are_those_of_samples(facts: Facts) -> None:
    """By enumeration: all rows together are certain, and pairs as frequent as in samples."""
    offered(facts, HasLogLikelihood, CanSample)
    model, params = facts.make(), fitted(facts).params
    for segment in range(3):
        block = all_rows(segment)
        found = model.log_likelihood(params, block, RowRandom(0))
        assert found.nats.shape == found.standard_error.shape == (len(block.rows),)
        probabilities = np.exp(found.nats)
        assert probabilities.sum() == pytest.approx(1, abs=1e-3 + 4 * found.shared_error)
        segments = np.full(200_000, segment)
        drawn = model.sample(params, len(segments), np.random.default_rng(6), segments)
        implied = np.einsum(
            "n,ni,nj->ij", probabilities, block.unpack_values(), block.unpack_values()
        )
        np.testing.assert_allclose(pair_shares(drawn), implied, atol=0.006)


def test_bounds_lie_below_likelihoods(facts: Facts) -> None:
    offered(facts, HasLowerBound, HasLogLikelihood)
    model, params, block = facts.make(), fitted(facts).params, all_rows(0)
    bound = model.lower_bound(params, block, RowRandom(0))
    found = model.log_likelihood(params, block, RowRandom(0))
    assert (bound <= found.nats + 4 * found.standard_error + 1e-6).all()
    assert bound.mean() > found.nats.mean() - 0.5


def test_a_fit_has_the_pair_shares_of_its_data(facts: Facts) -> None:
    offered(facts, CanSample)
    params = fitted(facts, MANY, **facts.flexible).params
    drawn = facts.make().sample(params, 50_000, np.random.default_rng(4))
    found, expected = pair_shares(drawn), pair_shares(probit(MANY).X)
    np.testing.assert_allclose(found, expected, atol=facts.fit_off)


def test_samples_are_well_formed(facts: Facts) -> None:
    offered(facts, CanSample)
    model, params = facts.make(), fitted(facts).params
    drawn = [model.sample(params, 50, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert model.sample(params, 0, np.random.default_rng(0)).shape == (0, drawn[0].shape[1])
    assert drawn[0].shape == (50, N_FEATURES)
    assert drawn[0].dtype == np.uint8
    assert set(np.unique(drawn)) == {0, 1}
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


def test_reconstructions_are_well_formed(facts: Facts) -> None:
    offered(facts, CanReconstruct)
    model, params = facts.make(), fitted(facts).params
    reconstructed = model.reconstruct(params, np.random.default_rng(0).standard_normal((7, 2)))
    assert reconstructed.shape == (7, N_FEATURES)
    assert np.all((reconstructed >= 0) & (reconstructed <= 1))


__all__ = [name for name in globals() if name.startswith("test_")]
