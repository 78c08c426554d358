"""Laws that every registered model keeps: the next one is checked by being registered."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache, reduce
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pipeline.api import Fitted
from pipeline.blocks import BinaryBlock, block_of
from pipeline.errors import FitError
from pipeline.executors.serial import SerialExecutor
from pipeline.executors.threads import ThreadsExecutor
from pipeline.fit import FitState, collect_first, collect_pass, fit, start
from pipeline.known_segments import UNKNOWN, fitted_segments, known_segments
from pipeline.models.base import MODELS, Warm, model_class
from pipeline.params import named_arrays, params_from_arrays
from pipeline.random import RowRandom
from pipeline.reduce import tree_merge
from pipeline.statistics.counts import FeatureCounts, PairCounts
from pipeline.using.transform import described_codes
from storage.artifacts import Artifact, load_artifact
from tests.data import write
from tests.fits import write_fit
from tests.model_facts import N_FEATURES, every_model, facts_of, make, sampled, tolerant, varied
from tests.strategies import (
    Bits,
    Data,
    chunkings,
    dense_pair_table,
    memory_blocks,
    memory_rows,
    probit_data,
    tables,
)

Arrays = Mapping[str, NDArray[Any]]
Floats = NDArray[np.float64]

MANY = 40  # enough for estimates that are right only for many features, such as those of PCA
SERIAL = SerialExecutor()


RECOUNTS: Mapping[type, Callable[[Data], list[NDArray[np.int64]]]] = {
    FeatureCounts: lambda data: [data.mask.sum(axis=0), (data.X & data.mask).sum(axis=0)],
    PairCounts: dense_pair_table,
}


@lru_cache
def probit(n_features: int = N_FEATURES) -> Data:
    rng = np.random.default_rng(11)
    X, *_ = probit_data(4000, n_features, 2, rng, (0.4, 0.8), 0.7)
    return Data(X, None, rng.integers(0, 3, len(X)))


@lru_cache
def fitted(name: str, n_features: int = N_FEATURES, **more: Any) -> FitState:
    return fit(make(name, **more), memory_rows(probit(n_features), [1000] * 4), SERIAL)


Load = Callable[[str], Artifact]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Loads the artifact of a fit to `varied`."""
    folder, data = tmp_path_factory.mktemp("stored"), varied()
    dataset = write(folder / "rows.zarr", data.X, segments=[f"s{k}" for k in data.labels])

    @lru_cache
    def load(name: str) -> Artifact:
        model = make(name, **facts_of(name).consistent)
        return load_artifact(write_fit(folder / name, model, dataset))

    return load


def params_of(state: FitState) -> dict[str, NDArray[Any]]:
    return {name: values for name, (_, values) in named_arrays(state.params).items()}


def assert_same(a: Arrays, b: Arrays, rtol: float = 0.0) -> None:
    """Equal names and values; numbers that are not whole within the tolerance."""
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].shape == b[name].shape
        assert a[name].dtype == b[name].dtype
        within = rtol if a[name].dtype.kind == "f" else 0.0
        np.testing.assert_allclose(a[name], b[name], rtol=within, atol=within, err_msg=name)


def assert_finite(arrays: Arrays) -> None:
    assert [name for name, values in arrays.items() if not np.isfinite(values).all()] == []


def summaries(name: str, blocks: Sequence[BinaryBlock]) -> Iterator[list[Any]]:
    """First statistics of blocks, then those of a pass."""
    model, params = make(name), fitted(name).params
    yield [model.first.of_block(block) for block in blocks]
    yield [model.summarize(params, block, RowRandom(0)) for block in blocks]


small_tables = tables(st.just(N_FEATURES))


# --- statistics ----------------------------------------------------------------------------------


@every_model
@settings(deadline=None, max_examples=30)
@given(data=small_tables, draw=st.data())
def test_merging_is_a_sum(name: str, data: Data, draw: st.DataObject) -> None:
    blocks = memory_blocks(data, draw.draw(chunkings(len(data.X), max_chunks=6)))
    for parts in summaries(name, blocks):
        before = [dict(part.arrays()) for part in parts]
        copies = [{key: values.copy() for key, values in part.items()} for part in before]
        left = reduce(lambda a, b: a.merge(b), parts)
        right = reduce(lambda b, a: a.merge(b), parts[::-1])
        backwards = reduce(lambda a, b: a.merge(b), parts[::-1])
        for other in (right, backwards, tree_merge(parts)):
            assert_same(other.arrays(), left.arrays(), rtol=1e-9)
            assert other.objective == pytest.approx(left.objective, rel=1e-9)
        assert left.n_samples == sum(part.n_samples for part in parts) == len(data.X)
        for part, copy in zip(before, copies, strict=True):
            assert_same(part, copy)


@every_model
@settings(deadline=None, max_examples=20)
@given(data=small_tables)
def test_statistics_survive_storage(name: str, data: Data) -> None:
    for parts in summaries(name, memory_blocks(data)):
        for part in parts:
            restored = type(part).from_arrays(dict(part.arrays()))
            assert_same(restored.arrays(), part.arrays())
            assert (restored.n_samples, restored.objective) == (part.n_samples, part.objective)


@every_model
@settings(deadline=None, max_examples=20)
@given(data=small_tables, budget=st.integers(1, 2000))
def test_tiles_stitch_to_the_whole(name: str, data: Data, budget: int) -> None:
    model, params = make(name), fitted(name).params
    block = block_of(data.X, data.observed)
    cut = model.tiles(N_FEATURES, 1, budget)
    parts = [model.summarize(params, replace(block, tile=tile), RowRandom(0)) for tile in cut]
    whole = model.summarize(params, block, RowRandom(0))
    assert_same(model.statistics.stitch(parts).arrays(), whole.arrays())


@every_model
@settings(deadline=None, max_examples=30)
@given(data=small_tables)
def test_counts_are_those_of_the_dense_matrix(name: str, data: Data) -> None:
    for (part,) in summaries(name, [block_of(data.X, data.observed)]):
        if type(part) not in RECOUNTS:
            continue
        found = part.table(0) if isinstance(part, PairCounts) else (part.observed[0], part.ones[0])
        for counts, expected in zip(found, RECOUNTS[type(part)](data), strict=True):
            np.testing.assert_array_equal(np.broadcast_to(counts, expected.shape), expected)


# --- fits ----------------------------------------------------------------------------------------


def outcome(model: Any, data: Data, sizes: Sequence[int] | None = None) -> FitState | FitError:
    try:
        return fit(model, memory_rows(data, sizes), SERIAL)
    except FitError as error:
        return error


@every_model
@settings(deadline=None, max_examples=25)
@given(data=small_tables, draw=st.data())
def test_chunks_do_not_matter(name: str, data: Data, draw: st.DataObject) -> None:
    model, sizes = tolerant(name), draw.draw(chunkings(len(data.X)))
    whole, cut = outcome(model, data), outcome(model, data, sizes)
    if isinstance(whole, FitError) or isinstance(cut, FitError):
        assert str(whole) == str(cut)
    elif model.max_iter == 1:
        assert_same(params_of(whole), params_of(cut), rtol=1e-9)
    else:
        assert cut.history[-1] == pytest.approx(whole.history[-1], abs=model.tol)


@every_model
@settings(deadline=None, max_examples=25)
@given(data=small_tables, draw=st.data())
def test_statistics_do_not_hang_on_chunks(name: str, data: Data, draw: st.DataObject) -> None:
    model, state = make(name), fitted(name)
    whole, cut = (memory_rows(data, draw.draw(chunkings(len(data.X)))) for _ in "ab")
    first, other = (collect_first(model, rows, SERIAL) for rows in (whole, cut))
    assert_same(meaning(first), meaning(other), rtol=1e-9)
    first, other = (collect_pass(model, state, rows, SERIAL, 0) for rows in (whole, cut))
    assert_same(meaning(first), meaning(other), rtol=1e-9)


def meaning(statistics: Any) -> Arrays:
    """What statistics say; pair counts hold rows of chunks with and without a mask apart."""
    if not isinstance(statistics, PairCounts):
        return statistics.arrays()
    table = statistics.table(0)
    parts = np.broadcast_arrays(*table)
    return {**dict(zip(table._fields, parts, strict=True)), "rows": statistics.rows}


@every_model
def test_threads_give_the_bytes_of_serial(name: str) -> None:
    rows = memory_rows(probit(), [200] * 20)
    model = make(name, n_components=None)
    states = [fit(model, rows, executor) for executor in (SERIAL, ThreadsExecutor(3), SERIAL)]
    for other in states[1:]:
        assert other.history == states[0].history
        for key, values in params_of(states[0]).items():
            assert params_of(other)[key].tobytes() == values.tobytes(), key


@every_model
def test_what_is_counted_does_not_hang_on_parameters(name: str) -> None:
    data, n_counted = probit(), 0
    mask = (np.random.default_rng(7).random(data.X.shape) < 0.8).astype(np.uint8)
    for settings_ in ({}, *facts_of(name).variants):
        model = make(name, **settings_)
        first = collect_first(model, memory_rows(data), SERIAL)
        states = [start(model, first, seed=0), fitted(name, **settings_)]
        blocks = memory_blocks(data) + memory_blocks(replace(data, observed=mask))
        found = [[model.summarize(s.params, b, RowRandom(0)) for b in blocks] for s in states]
        if model.counted(N_FEATURES) is None:
            # Else sums could be kept that are not.
            assert any(a.objective != b.objective for a, b in zip(*found, strict=True))
            continue
        n_counted += 1
        for a, b in zip(*found, strict=True):
            assert_same(a.arrays(), b.arrays())
    assert n_counted in (0, 1 + len(facts_of(name).variants))


@every_model
def test_a_warm_start_from_its_own_end_stays_there(name: str) -> None:
    if not issubclass(MODELS[name], Warm):
        assert make(name).max_iter == 1
        pytest.skip("this model has one pass")
    for settings_ in ({}, *facts_of(name).variants):
        done, rows = fitted(name, **settings_), memory_rows(probit(), [1000] * 4)
        model = make(name, **{**settings_, "n_components": done.diagnostics["n_components"]})
        begun = model.warm(start(model, collect_first(model, rows, SERIAL), 0), done.params)
        again = fit(model, rows, SERIAL, state=begun)
        assert again.iteration <= 3, settings_
        assert again.history[-1] >= done.history[-1] - model.tol, settings_
        assert named_arrays(again.params).keys() == named_arrays(done.params).keys()


@every_model
def test_the_seed_alone_decides_the_start(name: str) -> None:
    first = collect_first(make(name), memory_rows(probit()), SERIAL)
    starts = [start(make(name), first, seed=5) for _ in "ab"]
    assert_same(params_of(starts[0]), params_of(starts[1]))
    assert_same(starts[0].auxiliary, starts[1].auxiliary)


@every_model
def test_the_objective_never_falls(name: str) -> None:
    whole = probit(12)
    mask = (np.random.default_rng(5).random(whole.X.shape) < 0.8).astype(np.uint8)
    for data in (whole, replace(whole, observed=mask)):
        for settings_, slack in facts_of(name).rising:
            history = fit(make(name, **settings_), memory_rows(data), SERIAL).history
            assert min(np.diff(history), default=0.0) >= -slack, settings_


def pair_shares(X: Bits) -> Floats:
    return X.T.astype(np.float64) @ X / len(X)


@every_model
def test_a_fit_recovers_the_model_that_it_sampled(name: str) -> None:
    flexible, segments = facts_of(name).flexible, np.arange(50_000) % 3
    model, params = make(name, **flexible), fitted(name, MANY, **flexible).params
    drawn = model.sample(params, len(segments), np.random.default_rng(1), segments)
    again = fit(model, memory_rows(Data(drawn, None, segments)), SERIAL)
    redrawn = model.sample(again.params, len(segments), np.random.default_rng(2), segments)
    np.testing.assert_allclose(pair_shares(redrawn), pair_shares(drawn), atol=0.015)
    shares = drawn.mean(axis=0)
    dependence = np.abs(pair_shares(drawn) - np.outer(shares, shares))
    assert (dependence > 0.05).mean() > 0.3


def assert_recovered(name: str, found: Any, truth: Any, n_rows: int) -> None:
    """Every entry lies within 4 standard errors of the worst one.

    Chance leaves a normal entry outside in 1 of 16,000. Where a model's facts give no error it is
    2 / √rows: a share has ½ / √rows at the most, a threshold or a tetrachoric correlation near
    an even split about 1.6 / √rows.
    """
    recovered, errors = facts_of(name).recovered(found, truth), facts_of(name).errors
    assert recovered
    for key, (values, expected) in recovered.items():
        assert values.shape == expected.shape, key
        within = 4 * errors.get(key, 2.0) / np.sqrt(n_rows)
        np.testing.assert_allclose(values, expected, rtol=0, atol=within, err_msg=key)


@every_model
def test_a_fit_to_a_sample_recovers_the_parameters(name: str, stored: Load) -> None:
    truth, drawn = Fitted.of(stored(name)), sampled(stored(name), n_rows := 100_000)
    again = fit(truth.model, memory_rows(drawn), SERIAL)
    assert_recovered(name, again.params, truth.params, n_rows)
    few = drawn.take(slice(None, None, 10))
    mirrored = fit(truth.model, memory_rows(replace(few, X=few.X[:, ::-1])), SERIAL)
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        assert_recovered(name, mirrored.params, truth.params, n_rows)


@every_model
def test_what_is_not_identifiable_is_said(name: str) -> None:
    assert "\nNot identifiable: " in (sys.modules[MODELS[name].__module__].__doc__ or "")


@every_model
def test_samples_have_the_pair_shares_of_the_model(name: str) -> None:
    model, params = make(name), fitted(name).params
    codes, mass, segments = facts_of(name).codes(params)
    given_codes = model.reconstruct(params, codes, segments)
    expected = np.einsum("n,ni,nj->ij", mass, given_codes, given_codes)
    np.fill_diagonal(expected, mass @ given_codes)  # x² = x
    drawn = model.sample(params, 200_000, np.random.default_rng(3))
    np.testing.assert_allclose(pair_shares(drawn), expected, atol=0.006)


def all_rows(segment: int) -> BinaryBlock:
    patterns = (np.arange(2**N_FEATURES)[:, None] >> np.arange(N_FEATURES)) & 1
    return block_of(patterns.astype(np.uint8), segment=segment)


@every_model
def test_likelihoods_are_those_of_samples(name: str) -> None:
    """By enumeration: all rows together are certain, and pairs as frequent as in samples."""
    model, params = make(name), fitted(name).params
    if not hasattr(model, "log_likelihood"):
        pytest.skip("this model has no likelihood of a row")
    for segment in range(3):
        block = all_rows(segment)
        found = model.log_likelihood(params, block, RowRandom(0))
        assert found.nats.shape == found.standard_error.shape == (len(block.rows),)
        probabilities = np.exp(found.nats)
        assert probabilities.sum() == pytest.approx(1, abs=1e-3)
        segments = np.full(200_000, segment)
        drawn = model.sample(params, len(segments), np.random.default_rng(6), segments)
        implied = np.einsum("n,ni,nj->ij", probabilities, block.dense(), block.dense())
        np.testing.assert_allclose(pair_shares(drawn), implied, atol=0.006)


@every_model
def test_bounds_lie_below_likelihoods(name: str) -> None:
    model, params, block = make(name), fitted(name).params, all_rows(0)
    if not hasattr(model, "lower_bound"):
        pytest.skip("this model has no bound")
    bound = model.lower_bound(params, block, RowRandom(0))
    found = model.log_likelihood(params, block, RowRandom(0))
    assert (bound <= found.nats + 4 * found.standard_error + 1e-6).all()
    assert bound.mean() > found.nats.mean() - 0.5


@every_model
def test_a_fit_has_the_pair_shares_of_its_data(name: str) -> None:
    params = fitted(name, MANY, **facts_of(name).flexible).params
    drawn = make(name).sample(params, 50_000, np.random.default_rng(4))
    np.testing.assert_allclose(pair_shares(drawn), pair_shares(probit(MANY).X), atol=0.025)


@every_model
def test_samples_and_reconstructions_are_well_formed(name: str) -> None:
    model, params = make(name), fitted(name).params
    drawn = [model.sample(params, 50, np.random.default_rng(seed)) for seed in (0, 0, 1)]
    assert drawn[0].shape == (50, N_FEATURES)
    assert drawn[0].dtype == np.uint8
    assert set(np.unique(drawn)) == {0, 1}
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()
    reconstructed = model.reconstruct(params, np.random.default_rng(0).standard_normal((7, 2)))
    assert reconstructed.shape == (7, N_FEATURES)
    assert np.all((reconstructed >= 0) & (reconstructed <= 1))


# --- degenerate columns --------------------------------------------------------------------------


def with_column(kind: str) -> Data:
    """Rows whose column 2 is degenerate, by itself or beside column 1."""
    X, mask = probit().X[:400].copy(), np.ones((400, N_FEATURES), np.uint8)
    first_half = np.arange(400) < 200
    if kind == "complementary":
        X[:, 2] = 1 - X[:, 1]
    elif kind == "duplicated":
        X[:, 2] = X[:, 1]
    elif kind == "never observed":
        mask[:, 2] = 0
    elif kind == "observed once":
        mask[1:, 2] = 0
    elif kind == "never observed with another":
        mask[first_half, 1] = mask[~first_half, 2] = 0
    elif kind == "constant where another is observed":
        mask[first_half, 1] = 0
        X[~first_half, 2] = 1
    else:
        X[:, 2] = {"zeros": 0, "ones": 1, "a single one": np.arange(400) == 7}[kind]
    return Data(X, None if mask.all() else mask, np.arange(400) % 3)


DEGENERATE = [
    *("zeros", "ones", "a single one", "duplicated", "complementary"),
    *("never observed", "observed once", "never observed with another"),
    "constant where another is observed",
]


def check_degenerate(model: Any, data: Data) -> FitState | None:
    """Fit; None where that is refused for column 2, else everything must be finite."""
    state = outcome(model, data, [100] * 4)
    if isinstance(state, FitError):
        assert 2 in state.notice.features
        assert "2" in str(state)
        return None
    assert_finite(params_of(state))
    block = block_of(data.X[:40], None if data.observed is None else data.observed[:40])
    assert_finite(model.transform(state.params, block, RowRandom(0)))
    assert set(np.unique(model.sample(state.params, 50, np.random.default_rng(0)))) <= {0, 1}
    return state


@every_model
@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_columns_are_refused_by_name_or_fitted(name: str, kind: str) -> None:
    data, facts = with_column(kind), facts_of(name)
    for settings_ in ({}, *facts.variants):
        check_degenerate(make(name, **settings_), data)
        check_degenerate(tolerant(name, **settings_), data)


@every_model
@pytest.mark.parametrize("kind", ["zeros", "ones", "observed once", "never observed"])
def test_a_column_without_information_is_refused_or_warned_of(name: str, kind: str) -> None:
    for model in (make(name), tolerant(name)):
        state = check_degenerate(model, with_column(kind))
        assert state is None or any(2 in notice.features for notice in state.warnings)


@every_model
def test_tolerant_settings_accept_a_constant_column(name: str) -> None:
    if facts_of(name).tolerant:
        assert check_degenerate(make(name), with_column("zeros")) is None
        assert check_degenerate(tolerant(name), with_column("zeros")) is not None


# --- parameters ----------------------------------------------------------------------------------


@every_model
def test_params_are_named_arrays(name: str) -> None:
    named = named_arrays(fitted(name).params)
    assert all(len(dims) == values.ndim for dims, values in named.values())
    sizes: dict[str, set[int]] = {}
    for dims, values in named.values():
        for dim, size in zip(dims, values.shape, strict=True):
            sizes.setdefault(dim, set()).add(size)
    assert {dim: found for dim, found in sizes.items() if len(found) > 1} == {}
    restored = params_from_arrays(MODELS[name], params_of(fitted(name)))
    assert_same(params_of(replace(fitted(name), params=restored)), params_of(fitted(name)))


@every_model
def test_parameters_of_segments_say_of_which(name: str, stored: Load) -> None:
    artifact = stored(name)
    params, names = Fitted.of(artifact).params, artifact.manifest["segment_names"]
    named, (indices, rows) = named_arrays(params), fitted_segments(params)
    lengths = {
        values.shape[dims.index("segment")] for dims, values in named.values() if "segment" in dims
    }
    assert lengths == ({len(indices)} if len(indices) else set())
    assert len(np.unique(indices)) == len(indices)
    for key, values in (("segments", indices), ("segment_rows", rows)):
        assert (key in named) == bool(lengths)
        assert values.dtype.kind == "i"
        assert values.shape == indices.shape
        assert not lengths or named[key][0] == ("segment",)
    sizes = Counter(f"s{k}" for k in varied().labels)
    found = {names[index]: n for index, n in zip(indices, rows, strict=True)}
    assert found == (sizes if lengths else {})
    assert known_segments(params, names) == {names[index]: index for index in indices}
    by_index = {index: sizes[names[index]] for index in indices}
    assert Counter(sampled(artifact, 20_000).labels) == (by_index or {0: 20_000})


def results(model: Any, params: Any, segments: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """What a model says of rows and codes of these segments; of the first one, given a block."""
    block = block_of(varied().X[:20], segment=int(segments[0]))
    codes = model.transform(params, block, RowRandom(0))
    grid = np.random.default_rng(0).random((len(segments), codes["mean"].shape[1]))
    found = {
        **codes,
        "sample": model.sample(params, len(segments), np.random.default_rng(0), segments),
        "reconstruct": model.reconstruct(params, grid, segments),
        "anywhere": model.reconstruct(params, grid),
    }
    if hasattr(model, "log_likelihood"):
        found["log_likelihood"] = model.log_likelihood(params, block, RowRandom(0)).nats
    return found


@every_model
def test_segments_matter_to_models_that_have_some(name: str, stored: Load) -> None:
    fit_ = Fitted.of(stored(name))
    model, params, n_rows = fit_.model, fit_.params, 400
    indices, _ = fitted_segments(params)
    here = [*indices.tolist(), UNKNOWN]
    found = [results(model, params, np.full(n_rows, index)) for index in here]
    for key in ("mean", "sample", "reconstruct", "log_likelihood"):
        if key in found[0]:
            assert len({values[key].tobytes() for values in found}) == len(here), key
    np.testing.assert_array_equal(found[-1]["anywhere"], found[-1]["reconstruct"])
    for index in {*range(5), 99} - {*here}:
        assert_same(results(model, params, np.full(n_rows, index)), found[-1])
    places = np.arange(n_rows) % len(here)
    mixed = results(model, params, np.array(here)[places])
    for key in ("sample", "reconstruct"):
        each = np.stack([values[key] for values in found])
        np.testing.assert_allclose(mixed[key], each[places, np.arange(n_rows)], err_msg=key)


@every_model
def test_states_survive_storage(name: str, tmp_path: Path) -> None:
    from flows.fitting.checkpoints import load_state, save_state

    accepted = with_column("ones" if facts_of(name).tolerant else "a single one")
    for state in (fitted(name), fit(tolerant(name), memory_rows(accepted), SERIAL)):
        folder = tmp_path / str(len(state.warnings))
        save_state(folder, state)
        loaded = load_state(make(name), folder)
        assert loaded is not None
        assert_same(params_of(loaded), params_of(state))
        assert_same(loaded.auxiliary, state.auxiliary)
        assert replace(loaded, params=None, auxiliary={}) == replace(
            state, params=None, auxiliary={}
        )


@every_model
def test_statistics_survive_artifacts(name: str, tmp_path: Path) -> None:
    from flows.fitting.checkpoints import load_statistics, save_statistics

    blocks = memory_blocks(Data(probit().X[:400], with_column("observed once").mask))
    for k, (part,) in enumerate(summaries(name, blocks)):
        save_statistics(tmp_path / str(k), lambda part=part: part)
        loaded = load_statistics(type(part), tmp_path / str(k))
        assert_same(loaded.arrays(), part.arrays())


# --- codes ---------------------------------------------------------------------------------------


@every_model
@settings(deadline=None, max_examples=25)
@given(data=small_tables, draw=st.data())
def test_codes_do_not_hang_on_how_rows_are_cut(name: str, data: Data, draw: st.DataObject) -> None:
    model, params = make(name), fitted(name).params
    edges = np.cumsum([0, *draw.draw(chunkings(len(data.X), max_chunks=4))]).tolist()
    whole = model.transform(params, block_of(data.X, data.observed, first_row=3), RowRandom(9))
    parts = [data.take(slice(a, b)) for a, b in pairwise(edges)]
    cut = [
        model.transform(params, block_of(part.X, part.observed, first_row=3 + a), RowRandom(9))
        for part, a in zip(parts, edges, strict=False)
    ]
    assert whole["mean"].shape == (len(data.X), 2)
    assert_finite(whole)
    for key, values in whole.items():
        assert len(values) == len(data.X)
        assert np.concatenate([part[key] for part in cut]).tobytes() == values.tobytes(), key


@every_model
def test_codes_ignore_what_lies_under_a_missing_value(name: str) -> None:
    model, params, data = (
        make(name),
        fitted(name).params,
        with_column("never observed with another"),
    )
    noise = np.random.default_rng(0).integers(0, 2, data.X.shape, dtype=np.uint8)
    other = np.where(data.mask, data.X, noise)
    codes = [
        model.transform(params, block_of(X, data.observed), RowRandom(0)) for X in (data.X, other)
    ]
    assert_same(codes[0], codes[1])


@every_model
def test_codes_have_the_dimensions_that_the_model_declares(name: str) -> None:
    model, params, declared = make(name), fitted(name).params, MODELS[name].codes
    lengths = {"component": 2, "feature": N_FEATURES}
    codes = model.transform(params, block_of(probit().X[:5]), RowRandom(0))
    assert codes.keys() == declared.keys()
    assert declared["mean"] == ("component",)
    for key, dims in declared.items():
        assert len({*dims}) == len(dims)
        assert codes[key].shape == (5, *(lengths[dim.removesuffix("_j")] for dim in dims)), key
    described = described_codes(model, params, N_FEATURES, "float32")
    assert {key: dims for key, (dims, _, _) in described.items()} == declared


@every_model
def test_no_rows_have_no_codes(name: str) -> None:
    nothing = block_of(np.empty((0, N_FEATURES), np.uint8))
    codes = make(name).transform(fitted(name).params, nothing, RowRandom(0))
    assert codes["mean"].shape == (0, 2)


# --- hyperparameters -----------------------------------------------------------------------------


def bad_values(kind: Any) -> list[Any]:
    """Values that no setting of this type takes."""
    kinds = get_args(kind) or (kind,)
    if get_origin(kind) is Literal:
        return ["no-such-choice"]
    return [-3] * (int in kinds) + [float("nan")] * (float in kinds)


def all_bad_values() -> list[Any]:
    found = [pytest.param(name, "n_components", 0, id=f"{name}-n_components-0") for name in MODELS]
    for name, model in MODELS.items():
        hints = get_type_hints(model)
        for setting in (f.name for f in fields(model) if f.init):  # type: ignore[arg-type]
            for bad in bad_values(hints[setting]):
                found.append(pytest.param(name, setting, bad, id=f"{name}-{setting}-{bad}"))
    return found


@pytest.mark.parametrize(("name", "setting", "bad"), all_bad_values())
def test_bad_hyperparameters_are_refused_by_name(name: str, setting: str, bad: Any) -> None:
    spelled = "--components" if setting == "n_components" else setting
    with pytest.raises(FitError, match=rf"{spelled}: Expected .* got '?{bad}'?\."):
        make(name, **{setting: bad})


@every_model
def test_models_are_found_by_their_names(name: str) -> None:
    assert model_class(name) is MODELS[name]
    assert MODELS[name].name == name
    with pytest.raises(FitError, match=f"Expected one of .*{name}.* Did you mean '{name}'"):
        model_class(name + "x")


@every_model
def test_memory_grows_with_the_features(name: str) -> None:
    needs = [make(name).memory(n_features, 1, 2) for n_features in (10, 100, 1000)]
    assert needs == sorted(needs)
    assert all(isinstance(need, int) and need >= 0 for need in needs)
