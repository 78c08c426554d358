"""Codes: of a row alone, whatever the rows beside it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any
from warnings import catch_warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latentbits import functions as api
from latentbits.fitted import Fitted
from latentbits.scorer import Scorer
from pipeline.data.blocks import pack_block
from pipeline.data.datasets import make_memory_dataset
from pipeline.data.tables import convert_array
from pipeline.inference.transform import describe_codes
from pipeline.models.base import reverse_components
from pipeline.models.capabilities import CanReconstruct
from pipeline.random import RowRandom
from tests.conformance.checks import assert_finite, assert_same
from tests.conformance.facts import Facts
from tests.conformance.rows import (
    N_FEATURES,
    fitted,
    probit,
    small_tables,
    with_column,
)
from tests.support.strategies import (
    DenseData,
    chunkings,
)


@settings(settings.get_profile("laws"))
@given(data=small_tables, draw=st.data())
def test_codes_do_not_depend_on_how_rows_are_cut(
    facts: Facts, data: DenseData, draw: st.DataObject
) -> None:
    model, params = facts.make(), fitted(facts).params
    edges = np.cumsum([0, *draw.draw(chunkings(len(data.X), max_chunks=4))]).tolist()
    whole = model.transform(params, pack_block(data.X, data.observed, first_row=3), RowRandom(9))
    parts = [data.take_rows(slice(a, b)) for a, b in pairwise(edges)]
    cut = [
        model.transform(params, pack_block(part.X, part.observed, first_row=3 + a), RowRandom(9))
        for part, a in zip(parts, edges, strict=False)
    ]
    assert whole["mean"].shape == (len(data.X), 2)
    assert_finite(whole)
    for key, values in whole.items():
        assert len(values) == len(data.X)
        assert np.concatenate([part[key] for part in cut]).tobytes() == values.tobytes(), key


@pytest.mark.parametrize("segment", [None, "b"])
def test_a_scorer_gives_the_bytes_of_transform(facts: Facts, segment: str | None) -> None:
    names = [f"f{i}" for i in range(N_FEATURES)]
    manifest = {"feature_names": names, "segment_names": ("a", "b", "c")}
    model = Fitted(facts.make(), fitted(facts).params, manifest)
    scorer, X = Scorer(model), probit().X[:5].astype(float)
    X[2, 1] = X[3, 0] = np.nan

    def transform(rows: np.ndarray) -> Any:
        tables = convert_array(rows, names, [segment or "unknown"] * len(rows))
        with catch_warnings(action="ignore"):  # the mean of the segments is used
            return api.transform(model, make_memory_dataset(tables), n_jobs=1)

    assert_same(scorer(pd.DataFrame(X, columns=names), segment), transform(X))
    for values in X:
        row = {name: value for name, value in zip(names, values, strict=True) if value == value}
        found, expected = scorer(row, segment), transform(values[None])
        assert {"mean_1", "mean_2"} <= found.keys()
        for name, dims in facts.model.codes.items():
            if not dims:
                assert found[name] == expected[name][0]
            elif len(dims) == 1:
                labels = range(1, 3) if dims == ("component",) else names
                assert [found[f"{name}_{label}"] for label in labels] == expected[name][0].tolist()


def test_codes_ignore_what_lies_under_a_missing_value(facts: Facts) -> None:
    model, params, data = (
        facts.make(),
        fitted(facts).params,
        with_column("never observed with another"),
    )
    noise = np.random.default_rng(0).integers(0, 2, data.X.shape, dtype=np.uint8)
    other = np.where(data.mask, data.X, noise)
    codes = [
        model.transform(params, pack_block(X, data.observed), RowRandom(0)) for X in (data.X, other)
    ]
    assert_same(codes[0], codes[1])


def test_codes_have_the_dimensions_that_the_model_declares(facts: Facts) -> None:
    model, params, declared = facts.make(), fitted(facts).params, facts.model.codes
    lengths = {"component": 2, "feature": N_FEATURES}
    codes = model.transform(params, pack_block(probit().X[:5]), RowRandom(0))
    assert codes.keys() == declared.keys()
    assert declared["mean"] == ("component",)
    for key, dims in declared.items():
        assert len({*dims}) == len(dims)
        assert codes[key].shape == (5, *(lengths[dim.removesuffix("_j")] for dim in dims)), key
    described = describe_codes(model, params, N_FEATURES, "float32")
    assert {key: dims for key, (dims, _, _) in described.items()} == declared


def test_reversed_components_have_codes_of_the_other_sign(facts: Facts) -> None:
    """A model whose components have signs says the same about rows if they are reversed."""
    model, params = facts.make(), fitted(facts).params
    if not model.signed_arrays:
        pytest.skip("the sign of a component has a meaning")
    signs = np.array([-1.0, 1.0])
    other = replace(params, **reverse_components(model, params, signs))
    block = pack_block(probit().X[:20])
    means = [model.transform(p, block, RowRandom(0))["mean"] for p in (params, other)]
    np.testing.assert_allclose(means[1], means[0] * signs, atol=1e-5)
    if isinstance(model, CanReconstruct):
        parts = [model.reconstruct(p, mean) for p, mean in zip((params, other), means, strict=True)]
        np.testing.assert_allclose(parts[1], parts[0], atol=1e-5)


def test_no_rows_have_no_codes(facts: Facts) -> None:
    nothing = pack_block(np.empty((0, N_FEATURES), np.uint8))
    codes = facts.make().transform(fitted(facts).params, nothing, RowRandom(0))
    assert codes["mean"].shape == (0, 2)


__all__ = [name for name in globals() if name.startswith("test_")]
