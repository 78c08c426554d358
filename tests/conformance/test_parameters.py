"""Parameters: arrays with names, and parameters of single segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from latentbits.functions import Fitted
from pipeline.data.matching import UNKNOWN_SEGMENT, get_fitted_segments, map_fitted_segments
from pipeline.errors import FitError
from pipeline.inference.from_artifact import model_from_artifact
from pipeline.models.capabilities import CanReconstruct, CanSample, HasLogLikelihood
from pipeline.params import get_named_arrays, params_from_arrays
from pipeline.random import RowRandom
from storage.artifacts.artifacts import Artifact
from tests.conformance.checks import assert_same, params_of
from tests.conformance.facts import Facts, widen
from tests.conformance.rows import (
    N_VARIED_FEATURES,
    fitted,
    sampled,
    varied,
)


def test_params_are_named_arrays(facts: Facts) -> None:
    named = get_named_arrays(fitted(facts).params)
    assert all(len(dims) == values.ndim for dims, values in named.values())
    sizes: dict[str, set[int]] = {}
    for dims, values in named.values():
        for dim, size in zip(dims, values.shape, strict=True):
            sizes.setdefault(dim, set()).add(size)
    assert {dim: found for dim, found in sizes.items() if len(found) > 1} == {}
    restored = params_from_arrays(facts.model.params, params_of(fitted(facts)))
    assert_same(params_of(replace(fitted(facts), params=restored)), params_of(fitted(facts)))


def test_parameters_of_segments_say_of_which(facts: Facts, stored: Artifact) -> None:
    artifact = stored
    params, names = Fitted.from_artifact(artifact).params, artifact.manifest["segment_names"]
    named, (indices, rows) = get_named_arrays(params), get_fitted_segments(params)
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
    sizes = Counter(f"s{k}" for k in varied(widen(facts, N_VARIED_FEATURES)).labels)
    found = {names[index]: n for index, n in zip(indices, rows, strict=True)}
    assert found == (sizes if lengths else {})
    assert map_fitted_segments(params, names) == {names[index]: index for index in indices}
    by_index = {index: sizes[names[index]] for index in indices}
    if isinstance(facts.make(), CanSample):
        drawn = sampled(widen(facts, N_VARIED_FEATURES), artifact, facts.n_varied)
        assert Counter(drawn.labels) == (by_index or {0: facts.n_varied})


class ChangedArtifact(dict[str, NDArray[Any]]):
    """An artifact in memory."""

    manifest: Mapping[str, Any]


def results(
    facts: Facts, model: Any, params: Any, segments: NDArray[np.int64], n_rows: int = 20
) -> dict[str, NDArray[Any]]:
    """What a model says of rows and codes of these segments; of the first one, given a block."""
    rows = varied(widen(facts, N_VARIED_FEATURES)).take_rows(slice(n_rows))
    block = rows.pack(segment=int(segments[0]))
    codes = model.transform(params, block, RowRandom(0))
    grid = np.random.default_rng(0).random((len(segments), codes["mean"].shape[1]))
    found = dict(codes)
    if isinstance(model, CanSample):
        drawn = model.sample(params, len(segments), np.random.default_rng(0), segments)
        found["sample"] = drawn
    if isinstance(model, CanReconstruct):
        found["reconstruct"] = model.reconstruct(params, grid, segments)
        found["anywhere"] = model.reconstruct(params, grid)
    if isinstance(model, HasLogLikelihood):
        found["log_likelihood"] = model.log_likelihood(params, block, RowRandom(0)).nats
    return found


def test_segments_matter_to_models_that_have_some(facts: Facts, stored: Artifact) -> None:
    fit_ = Fitted.from_artifact(stored)
    model, params, n_rows = fit_.model, fit_.params, 400
    indices, _ = get_fitted_segments(params)
    here = [*indices.tolist(), UNKNOWN_SEGMENT]
    found = [results(facts, model, params, np.full(n_rows, index)) for index in here]
    for key in ("mean", "sample", "reconstruct", "log_likelihood"):
        if key in found[0]:
            n_kinds = len({values[key].tobytes() for values in found})
            assert n_kinds == (1 if key in facts.alike else len(here)), key
    if "anywhere" in found[-1]:
        np.testing.assert_array_equal(found[-1]["anywhere"], found[-1]["reconstruct"])
    for index in {*range(5), 99} - {*here}:
        assert_same(results(facts, model, params, np.full(n_rows, index)), found[-1])
    places = np.arange(n_rows) % len(here)
    mixed = results(facts, model, params, np.array(here)[places])
    for key in {"sample", "reconstruct"} & mixed.keys():
        each = np.stack([values[key] for values in found])
        np.testing.assert_allclose(mixed[key], each[places, np.arange(n_rows)], err_msg=key)


CHANGES = {"negative": np.negative, "zero": np.zeros_like, "2.5": lambda a: np.full(a.shape, 2.5)}


@pytest.mark.parametrize("how", CHANGES)
def test_impossible_values_are_refused(facts: Facts, stored: Artifact, how: str) -> None:
    """Values of an artifact that no fit gives are refused in one line, or harmless."""
    arrays = {name: np.asarray(values) for name, values in stored.items()}
    for name, values in arrays.items():
        artifact = ChangedArtifact({**arrays, name: CHANGES[how](values).astype(values.dtype)})
        artifact.manifest = stored.manifest
        with np.errstate(all="ignore"), suppress(FitError):
            loaded = model_from_artifact(artifact)
            model, params = loaded.model, loaded.params
            found = results(facts, model, params, np.arange(20) % 5 - 1, n_rows=3)
            if isinstance(model, CanSample):
                found["rows"] = model.sample(params, 20, np.random.default_rng(0))
            assert [key for key in found if not np.isfinite(found[key]).all()] == [], name
