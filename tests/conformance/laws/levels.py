"""Features with several levels: the same laws, whatever the names of the levels."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from pipeline.data.blocks import pack_block
from pipeline.data.features import Feature, find_first_planes, split_levels, sum_planes
from pipeline.errors import FitError
from pipeline.executors.base import ThreadsExecutor
from pipeline.fitting.loop import FitState, fit_model
from pipeline.models.capabilities import CanReconstruct, CanSample, HasLogLikelihood
from pipeline.models.feature_kinds import check_can_have_features
from pipeline.models.structure import Structure
from pipeline.params import get_named_arrays
from pipeline.random import RowRandom
from tests.conformance.checks import assert_finite, assert_params_are_finite, assert_same, params_of
from tests.conformance.facts import Facts
from tests.conformance.rows import LEVELED, SERIAL, draw_levels, fit_levels
from tests.support.strategies import DenseData, make_memory_rows


def skip_unless_fitted(facts: Facts) -> None:
    """Skip a law if the model takes no levels, or takes their planes for binary features."""
    if "ordinal" not in facts.model.feature_kinds or facts.model.splits_levels:
        pytest.skip("this model takes binary features")


def make_model(facts: Facts, features: Sequence[Feature] = LEVELED, **settings: Any) -> Any:
    return facts.make(**facts.leveled, **settings).with_structure(Structure(features=(*features,)))


def cut_levels_to_block(data: DenseData, at: slice) -> Any:
    mask = None if data.observed is None else data.observed[at]
    return pack_block(data.X[at], mask, first_row=at.start)


def test_features_with_levels_are_taken_or_refused_by_name(facts: Facts) -> None:
    if "ordinal" in facts.model.feature_kinds:
        check_can_have_features(facts.model, LEVELED)
        return
    with pytest.raises(FitError, match=r"'i0' and 2 more have more than two levels.*\*>=1"):
        check_can_have_features(facts.make(), LEVELED)


def test_names_of_levels_do_not_matter(facts: Facts) -> None:
    skip_unless_fitted(facts)
    renamed = [Feature(f.name, tuple(f"{level}!" for level in f.levels)) for f in LEVELED]
    rows = make_memory_rows(draw_levels())
    other = fit_model(make_model(facts, renamed), rows, SERIAL)
    for name, values in params_of(fit_levels(facts)).items():
        assert params_of(other)[name].tobytes() == values.tobytes(), name


def test_threads_give_the_bytes_of_serial_for_levels(facts: Facts) -> None:
    skip_unless_fitted(facts)
    rows = make_memory_rows(draw_levels(), [150] * 4)
    serial, threads = (
        fit_model(make_model(facts), rows, executor) for executor in (SERIAL, ThreadsExecutor(3))
    )
    for name, values in params_of(serial).items():
        assert params_of(threads)[name].tobytes() == values.tobytes(), name


def test_params_of_levels_are_finite_named_arrays(facts: Facts) -> None:
    skip_unless_fitted(facts)
    state = fit_levels(facts)
    assert_params_are_finite(state)
    n_planes = int(find_first_planes(LEVELED)[-1])
    lengths = {"feature": len(LEVELED), "plane": n_planes, "level": n_planes + len(LEVELED)}
    for name, (dims, values) in get_named_arrays(state.params).items():
        for dim, size in zip(dims, values.shape, strict=True):
            assert size == lengths.get(dim.removesuffix("_j"), size), name


def test_the_objective_of_levels_never_falls(facts: Facts) -> None:
    skip_unless_fitted(facts)
    if not facts.rising:
        pytest.skip("passes of this model may lower the objective")
    assert min(np.diff(fit_levels(facts).history), default=0.0) >= -1e-6


def test_codes_of_levels_are_of_a_row_alone(facts: Facts) -> None:
    skip_unless_fitted(facts)
    model, params, data = make_model(facts), fit_levels(facts).params, draw_levels()
    whole = model.transform(params, cut_levels_to_block(data, slice(0, 100)), RowRandom(9))
    assert_finite(whole)
    noise = np.random.default_rng(0).integers(0, 2, data.X.shape, dtype=np.uint8)
    noisy = DenseData(np.where(data.mask, data.X, noise), data.observed)
    for rows in (data, noisy):
        blocks = [cut_levels_to_block(rows, slice(a, b)) for a, b in pairwise((0, 1, 64, 100))]
        parts = [model.transform(params, block, RowRandom(9)) for block in blocks]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in whole}
        assert_same(joined, whole)


def test_samples_and_reconstructions_have_levels(facts: Facts) -> None:
    skip_unless_fitted(facts)
    model, params = make_model(facts), fit_levels(facts).params
    if isinstance(model, CanSample):
        drawn = model.sample(params, 300, np.random.default_rng(0))
        np.testing.assert_array_equal(drawn, split_levels(sum_planes(drawn, LEVELED), LEVELED))
    if isinstance(model, CanReconstruct):
        codes = np.random.default_rng(0).dirichlet(np.ones(model.n_components), 7)
        chances = model.reconstruct(params, codes)
        for first, end in pairwise(find_first_planes(LEVELED)):
            assert (np.diff(chances[:, first:end], axis=1) <= 1e-12).all()
        assert ((chances >= 0) & (chances <= 1)).all()


def test_reversed_levels_only_flip_signs(facts: Facts) -> None:
    """Every row has the same expected levels, counted from the other end."""
    skip_unless_fitted(facts)
    model: Any = make_model(facts)
    data, params = draw_levels(), fit_levels(facts).params
    if not isinstance(model, CanReconstruct):
        pytest.skip("this model does not reconstruct")
    highest = np.array([len(f.levels) - 1 for f in LEVELED], np.uint8)
    reversed_ = split_levels(highest - sum_planes(data.X, LEVELED), LEVELED)
    other_data = DenseData(reversed_ * data.mask, data.observed, data.segments)
    other = fit_model(model, make_memory_rows(other_data), SERIAL)
    expected = []
    for own, rows in ((params, data), (other.params, other_data)):
        block = cut_levels_to_block(rows, slice(0, 100))
        codes = model.transform(own, block, RowRandom(9))["mean"]
        planes = model.reconstruct(own, codes)
        expected.append(np.add.reduceat(planes, find_first_planes(LEVELED)[:-1], axis=1))
    np.testing.assert_allclose(highest - expected[1], expected[0], atol=5e-3)


def test_likelihoods_of_all_levels_are_those_of_samples(facts: Facts) -> None:
    skip_unless_fitted(facts)
    model, params = make_model(facts), fit_levels(facts).params
    if not (isinstance(model, HasLogLikelihood) and isinstance(model, CanSample)):
        pytest.skip("this model has no likelihood, or no samples")
    levels = np.array([*product(*(range(len(f.levels)) for f in LEVELED))], np.uint8)
    block = pack_block(split_levels(levels, LEVELED))
    found = model.log_likelihood(params, block, RowRandom(0))
    probabilities = np.exp(found.nats)
    assert probabilities.sum() == pytest.approx(1, abs=1e-3 + 4 * found.shared_error)
    n_rows = 100_000
    segments = np.full(n_rows, block.segment)
    drawn = sum_planes(model.sample(params, n_rows, np.random.default_rng(1), segments), LEVELED)
    bases = np.cumprod([1, *(len(f.levels) for f in LEVELED[:0:-1])])[::-1]
    shares = np.bincount(drawn.astype(np.int64) @ bases, minlength=len(levels)) / n_rows
    errors = np.sqrt(probabilities / n_rows)
    np.testing.assert_array_less(np.abs(shares - probabilities), 6 * errors + 1e-3)


@pytest.mark.parametrize("level", [0, 1, 3])
def test_an_empty_level_is_bounded_and_reported(facts: Facts, level: int) -> None:
    skip_unless_fitted(facts)
    data = draw_levels()
    levels = sum_planes(data.X, LEVELED)
    third = np.minimum(levels[:, 2], 2)
    levels[:, 2] = third + (third >= level)
    state: FitState = fit_model(
        make_model(facts),
        make_memory_rows(DenseData(split_levels(levels, LEVELED), data.observed, data.segments)),
        SERIAL,
    )
    assert_params_are_finite(state)
    assert_finite(make_model(facts).transform(state.params, pack_block(data.X[:40]), RowRandom(0)))
    assert any("i2" in warning.features for warning in state.warnings)


__all__ = [name for name in globals() if name.startswith("test_")]
