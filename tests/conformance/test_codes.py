"""Codes: of a row alone, whatever the rows beside it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from warnings import catch_warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latentbits import functions as api
from latentbits.fitted import Fitted
from latentbits.scorer import Scorer
from pipeline.data.datasets import make_memory_dataset
from pipeline.data.tables import convert_array
from pipeline.inference.transform import describe_codes
from pipeline.models.base import reverse_components
from pipeline.models.capabilities import CanReconstruct
from pipeline.params import replace_arrays
from pipeline.random import RowRandom
from tests.conformance.checks import assert_finite, assert_same
from tests.conformance.facts import Facts
from tests.conformance.rows import (
    draw_probit_values,
    fitted,
    probit,
    small_tables,
)
from tests.support.strategies import chunkings


@given(draw=st.data())
def test_codes_do_not_depend_on_how_rows_are_cut(facts: Facts, draw: st.DataObject) -> None:
    data = draw.draw(small_tables(facts))
    model, params = facts.make(), fitted(facts).params
    edges = np.cumsum([0, *draw.draw(chunkings(len(data.X), max_chunks=4))]).tolist()
    whole = model.transform(params, data.pack(first_row=3), RowRandom(9))
    parts = [data.take_rows(slice(a, b)) for a, b in pairwise(edges)]
    cut = [
        model.transform(params, part.pack(first_row=3 + a), RowRandom(9))
        for part, a in zip(parts, edges, strict=False)
    ]
    assert whole["mean"].shape == (len(data.X), 2)
    assert_finite(whole)
    for key, values in whole.items():
        assert len(values) == len(data.X)
        assert np.concatenate([part[key] for part in cut]).tobytes() == values.tobytes(), key


@pytest.mark.parametrize("segment", [None, "b"])
def test_a_scorer_gives_the_bytes_of_transform(facts: Facts, segment: str | None) -> None:
    names = facts.structure.feature_names
    levels = {f.name: f.levels for f in facts.features if f.kind != "binary"}
    manifest = {
        "feature_names": names,
        "feature_levels": levels,
        "segment_names": ("a", "b", "c"),
    }
    model = Fitted(facts.make(), fitted(facts).params, manifest)
    scorer, X = Scorer(model), draw_probit_values(facts)[0][:5].astype(np.float32).astype(float)
    X[2, 1] = X[3, 0] = np.nan

    def transform(rows: np.ndarray) -> Any:
        tables = convert_array(
            rows,
            names,
            [segment or "unknown"] * len(rows),
            levels={name: own for name, own in levels.items() if own},
            continuous=[name for name, own in levels.items() if not own],
        )
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


def test_codes_have_the_dimensions_that_the_model_declares(facts: Facts) -> None:
    model, params, declared = facts.make(), fitted(facts).params, facts.model.codes
    lengths, rows = {"component": 2, "feature": facts.n_features}, probit(facts)
    codes = model.transform(params, rows.take_rows(slice(5)).pack(), RowRandom(0))
    assert codes.keys() == declared.keys()
    assert declared["mean"] == ("component",)
    for key, dims in declared.items():
        assert len({*dims}) == len(dims)
        assert codes[key].shape == (5, *(lengths[dim.removesuffix("_j")] for dim in dims)), key
    described = describe_codes(model, params, rows.X.shape[1], "float32")
    assert {key: dims for key, (dims, _, _) in described.items()} == declared


def test_reversed_components_have_codes_of_the_other_sign(facts: Facts) -> None:
    """A model whose components have signs says the same about rows if they are reversed."""
    model, params = facts.make(), fitted(facts).params
    if not model.signed_arrays:
        pytest.skip("the sign of a component has a meaning")
    signs = np.array([-1.0, 1.0])
    other = replace_arrays(params, reverse_components(model, params, signs))
    block = probit(facts).take_rows(slice(20)).pack()
    means = [model.transform(p, block, RowRandom(0))["mean"] for p in (params, other)]
    np.testing.assert_allclose(means[1], means[0] * signs, atol=1e-5)
    if isinstance(model, CanReconstruct):
        parts = [model.reconstruct(p, mean) for p, mean in zip((params, other), means, strict=True)]
        np.testing.assert_allclose(parts[1], parts[0], atol=1e-5)


def test_no_rows_have_no_codes(facts: Facts) -> None:
    nothing = probit(facts).take_rows(slice(0)).pack()
    codes = facts.make().transform(fitted(facts).params, nothing, RowRandom(0))
    assert codes["mean"].shape == (0, 2)
