"""Ordered categories from arrays and data frames, through fits to codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import latentbits as lb
from pipeline.data.features import split_levels
from pipeline.data.plane_views import cut_levels
from pipeline.errors import FitError
from tests.support.data import write_arrays

LEVELS = ("no", "perhaps", "yes")
NAMES = ("q0", "q1", "q2", "q3")
RBM: dict[str, Any] = {"model": "rbm", "components": 2, "max_iter": 2}


@pytest.fixture(scope="module")
def codes() -> np.ndarray:
    rng = np.random.default_rng(3)
    wish = rng.normal(size=(300, 1)) + rng.normal(size=(300, 4))
    return (wish > 0.5).astype(int) + (wish > -0.5)


@pytest.fixture(scope="module")
def texts(codes: np.ndarray) -> np.ndarray:
    texts = np.array(LEVELS, object)[codes]
    texts[5, 2] = None
    return texts


def make_pandas(texts: np.ndarray) -> pd.DataFrame:
    columns = {
        n: pd.Categorical(x, LEVELS, ordered=True) for n, x in zip(NAMES, texts.T, strict=True)
    }
    return pd.DataFrame(columns)


def make_polars(texts: np.ndarray) -> pl.DataFrame:
    return pl.DataFrame(
        [pl.Series(n, x, pl.Enum(LEVELS)) for n, x in zip(NAMES, texts.T.tolist(), strict=True)]
    )


def make_arrow(texts: np.ndarray) -> pa.Table:
    codes = {None: None, **{level: code for code, level in enumerate(LEVELS)}}
    columns = [
        pa.DictionaryArray.from_arrays(
            pa.array([codes[text] for text in column]), pa.array(LEVELS), ordered=True
        )
        for column in texts.T
    ]
    return pa.table(columns, [*NAMES])


FRAMES: dict[str, Callable[[np.ndarray], Any]] = {
    "pandas": make_pandas,
    "polars": make_polars,
    "lazy": lambda texts: make_polars(texts).lazy(),
    "arrow": make_arrow,
}


@pytest.mark.parametrize("kind", FRAMES)
def test_ordered_categoricals_are_recognised(texts: np.ndarray, kind: str, tmp_path: Path) -> None:
    frame = FRAMES[kind](texts)
    dataset: Any = lb.from_dataframe(frame)
    assert dataset.feature_levels == dict.fromkeys(NAMES, LEVELS)
    assert dataset.describe() == lb.from_numpy(texts, NAMES, levels=LEVELS).describe()
    stored: Any = lb.from_dataframe(frame, path=tmp_path / "answers.zarr")
    assert stored.feature_levels == dataset.feature_levels
    (table,) = dataset.iter_tables()
    X, observed = stored.dense(0)
    np.testing.assert_array_equal(X, table.X)
    np.testing.assert_array_equal(observed, table.observed)


def test_models_of_planes_fit_levels(codes: np.ndarray, texts: np.ndarray, tmp_path: Path) -> None:
    dataset = lb.from_numpy(texts, NAMES, levels=LEVELS)
    stored = lb.from_numpy(texts, NAMES, levels=LEVELS, path=tmp_path / "answers.zarr")
    fits = [lb.fit(data, **RBM) for data in (dataset, stored, make_pandas(texts))]
    names = [f"{name}>={level}" for name in NAMES for level in LEVELS[1:]]
    planes = np.column_stack([codes[:, [i]] > [0, 1] for i in range(4)]).astype(float)
    planes[5, 4:6] = np.nan
    fits.append(lb.fit(lb.from_numpy(planes, names), **RBM))
    for fitted in fits:
        assert fitted.feature_names == tuple(names)
        assert fitted.params.weights.tobytes() == fits[0].params.weights.tobytes()
    found = [lb.transform(fits[0], rows)["mean"] for rows in (dataset, stored, make_polars(texts))]
    for mean in found:
        np.testing.assert_array_equal(mean, lb.transform(fits[0], planes)["mean"])
    evaluations = [lb.evaluate(fits[0], rows)["log_likelihood"] for rows in (dataset, planes)]
    assert evaluations[0] == evaluations[1]


def test_levels_are_reconstructed(codes: np.ndarray, texts: np.ndarray) -> None:
    dataset = lb.from_numpy(texts, NAMES, levels=LEVELS)
    models: list[dict[str, Any]] = [RBM, {"model": "bernoulli-mixture", "components": 2}]
    for options in models:
        fitted = lb.fit(dataset, **options)
        kinds = ("probabilities", "expected-levels", "levels")
        found = [lb.transform(fitted, texts, reconstruct=kind) for kind in kinds]  # type: ignore[arg-type]
        names = [kind.replace("-", "_") for kind in kinds]
        values, expected, levels = (a[name] for a, name in zip(found, names, strict=True))
        by_level = values.reshape(len(codes), 4, 3)
        assert by_level.min() >= 0
        np.testing.assert_allclose(by_level.sum(axis=2), 1, rtol=1e-12)
        np.testing.assert_allclose(by_level @ np.arange(3.0), expected, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(by_level.argmax(axis=2), levels)
        with pytest.raises(
            FitError, match=r"^Feature 'q0' has the levels no<perhaps<yes, so its values are"
        ):
            lb.transform(fitted, dataset, reconstruct="bits")
    binary = lb.fit(codes > 0, **RBM)
    bits, ones = (lb.transform(binary, codes > 0, reconstruct=k)[k] for k in ("bits", "levels"))  # type: ignore[arg-type]
    np.testing.assert_array_equal(bits, ones)


def test_missing_levels_are_imputed(codes: np.ndarray, texts: np.ndarray) -> None:
    """By the weights of the kinds given the other values of the row."""
    fitted = lb.fit(lb.from_numpy(texts, NAMES, levels=LEVELS), "bernoulli-mixture", components=3)
    found = lb.transform(fitted, texts, impute="probabilities")["imputed_probabilities"]
    by_level = found.reshape(len(codes), 4, 3)
    by_kind = fitted.params.level_probabilities.reshape(3, 4, 3)
    weights = fitted.params.weights.copy()
    for j in (0, 1, 3):
        weights *= by_kind[:, j, codes[5, j]]
    np.testing.assert_allclose(by_level[5, 2], weights @ by_kind[:, 2] / weights.sum(), rtol=1e-9)
    is_observed = np.ones(codes.shape, bool)
    is_observed[5, 2] = False
    np.testing.assert_array_equal(by_level[is_observed], np.eye(3)[codes][is_observed])
    levels = lb.transform(fitted, texts, impute="levels")["imputed_levels"]
    np.testing.assert_array_equal(levels, by_level.argmax(axis=2))
    expected = lb.transform(fitted, texts, impute="expected-levels")["imputed_expected_levels"]
    np.testing.assert_allclose(expected, by_level @ np.arange(3.0), rtol=1e-12)
    with pytest.raises(FitError, match=r'so its values are not bits\. Choose impute="levels"'):
        lb.transform(fitted, texts, impute="bits")


def test_cut_makes_binary_features(codes: np.ndarray, texts: np.ndarray) -> None:
    frame = make_pandas(texts)
    fitted = lb.fit(frame, components=1, cut=["q0>=yes", "q[123]>=perhaps"])
    assert fitted.feature_names == ("q0>=yes", "q1>=perhaps", "q2>=perhaps", "q3>=perhaps")
    bits = (codes > [1, 0, 0, 0]).astype(float)
    bits[5, 2] = np.nan
    expected = lb.fit(bits, components=1)
    np.testing.assert_array_equal(fitted.params.loadings, expected.params.loadings)
    np.testing.assert_array_equal(
        lb.transform(fitted, frame)["mean"], lb.transform(expected, bits)["mean"]
    )
    reverse = lb.from_numpy(texts, NAMES, levels=LEVELS[::-1])  # `q1>=perhaps` means the opposite
    for use in (lb.transform, lb.evaluate):
        with pytest.raises(FitError, match="levels yes<perhaps<no, but the levels no<perhaps<yes"):
            use(fitted, reverse)


def test_levels_that_cannot_be_used_are_refused(texts: np.ndarray) -> None:
    frame = make_pandas(texts)
    with pytest.raises(
        FitError,
        match=r"^noisy-or takes binary features, but 'q0' and 3 more have more than two levels\. "
        r"Cut each in two, such as by cut=\"\*>=perhaps\", or use one of bernoulli-mixture, .*rbm",
    ):
        lb.fit(frame, "noisy-or")
    unordered = frame.assign(q1=frame["q1"].cat.as_unordered())
    with pytest.raises(
        FitError,
        match=r"^rbm takes binary and ordinal features, but 'q1' is nominal, without an order\. "
        r"Leave them out by drop=\"?NAME\"?, or use one of bernoulli-mixture, ",
    ):
        lb.fit(unordered, **RBM)
    ordered: Any = lb.from_dataframe(unordered, levels={"q1": LEVELS})
    assert ordered.describe() == lb.from_dataframe(frame).describe()  # type: ignore[attr-defined]
    fitted = lb.fit(frame, **RBM)
    renamed = frame.assign(q1=frame["q1"].cat.rename_categories(["no", "maybe", "yes"]))
    with pytest.raises(
        FitError, match=r"the value is 'maybe', not one of the levels no, perhaps, y"
    ):
        lb.transform(fitted, renamed)
    with pytest.raises(FitError, match=r"^Feature 'q1' has the levels no<maybe<yes, but the l"):
        lb.transform(fitted, lb.from_dataframe(renamed))


def test_two_named_levels_are_a_binary_feature() -> None:
    rows = np.array([["yes", "no"], ["no", "no"], ["no", "yes"], ["yes", "yes"]] * 20)
    dataset: Any = lb.from_numpy(rows, levels=["no", "yes"])
    assert dataset.feature_levels == {"f0": ("no", "yes"), "f1": ("no", "yes")}
    fitted = lb.fit(dataset, "noisy-or", components=1, max_iter=2)
    assert [feature.levels for feature in fitted.features] == [("no", "yes")] * 2
    codes = lb.transform(fitted, rows)["mean"]
    np.testing.assert_array_equal(codes, lb.transform(fitted, dataset)["mean"])
    scorer = lb.Scorer(fitted)
    score: Any = scorer({"f0": "yes", "f1": "no"})
    assert score["mean_1"] == pytest.approx(codes[0, 0], rel=1e-12)
    with pytest.raises(FitError, match=r"column 'f1': the value is 'maybe', not one of the levels"):
        scorer({"f1": "maybe"})
    with pytest.raises(FitError, match="'f0' has the levels 0<1, but the levels no<yes in the fit"):
        lb.transform(fitted, lb.from_numpy(np.eye(2)))


def make_rbm() -> Any:
    return lb.RestrictedBoltzmannMachine(n_components=2, max_iter=2, random_state=0)


def test_estimators_take_codes_and_categoricals(codes: np.ndarray) -> None:
    texts = np.array(LEVELS, object)[codes]
    expected = make_rbm().fit(codes)
    assert expected.levels_ == dict.fromkeys(["x0", "x1", "x2", "x3"], ("0", "1", "2"))
    Z = expected.transform(codes)
    frames = [(make_pandas(texts), None), (make_polars(texts), None), (texts, LEVELS)]
    for X, levels in (*frames, (codes.astype(float), range(3))):
        fitted = make_rbm().fit(X, levels=levels)
        assert fitted.transform(X).tobytes() == Z.tobytes()
        assert fitted.score(X) == expected.score(codes)
    sample = expected.sample(200)
    assert sample.shape == (200, 4)
    assert {*sample.ravel().tolist()} == {0, 1, 2}
    means = expected.inverse_transform(Z)
    assert means.shape == codes.shape
    np.testing.assert_allclose(means.mean(axis=0), codes.mean(axis=0), atol=0.2)
    planes = split_levels(codes.astype(np.uint8), expected._list_features())
    assert make_rbm().fit(planes).transform(planes).tobytes() == Z.tobytes()


def test_estimators_refuse_levels_that_the_fit_lacks(codes: np.ndarray) -> None:
    with pytest.raises(
        FitError, match=r"^row 2 .*column 'x1': the value is 3, not one of the levels 0, 1, 2 or"
    ):
        make_rbm().fit(codes).transform([[0, 1, 1, 1], [0, 3, 1, 1]])
    with pytest.warns(UserWarning, match="constant features.*'x0>=3'"):
        more = make_rbm().fit(codes, levels=range(4))
    assert more.transform([[0, 1, 1, 1], [0, 3, 1, 1]]).shape == (2, 2)
    with pytest.raises(FitError, match=r"^row \d+ .*: the value is 2, not 0, 1.* Use binarize=T"):
        lb.NoisyOr(n_components=2).fit(codes)
    frame = make_pandas(np.array(LEVELS, object)[codes])
    with pytest.raises(FitError, match="'q0' has 3 levels, but NoisyOr takes only binary features"):
        lb.NoisyOr(n_components=2).fit(frame)
    for X in (codes * 8, codes + 0.5, codes - 1):
        with pytest.raises(FitError, match=r"the value is .*, not 0, 1, .* Use binarize=T"):
            make_rbm().fit(X)


def test_a_dataset_survives_xarray(tmp_path: Path) -> None:
    levels = {"q": ("no", "maybe", "yes"), "age": ()}
    X, age = np.array([[2, 1, 0], [0, 0, 0], [1, 1, 0]], np.uint8), [0.5, np.nan, -3.25]
    observed = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 1]], np.uint8)
    numbers = np.array(age, np.float32)[:, None]
    stored = write_arrays(
        tmp_path / "d", X, observed, names=["q", "b", "age"], feature_levels=levels, numbers=numbers
    )
    again = lb.from_dataframe(stored.to_xarray())
    assert again.feature_levels == levels
    (table,) = again.iter_tables()
    np.testing.assert_array_equal(table.X * table.observed, X * observed)
    np.testing.assert_array_equal(table.observed[:, :2], observed[:, :2])
    np.testing.assert_array_equal(table.numbers, numbers)
    some = lb.from_dataframe(stored.to_xarray().sel(feature=["b", "q"]))
    assert some.feature_levels == {"q": ("no", "maybe", "yes")}


def test_dictionaries_of_chunks_may_lack_categories_but_not_contradict_each_other() -> None:
    def make_table(*dictionaries: list[str]) -> pa.Table:
        chunks = [
            pa.DictionaryArray.from_arrays(pa.array([*range(len(words))]), words, ordered=True)
            for words in dictionaries
        ]
        column = pa.chunked_array(chunks)
        return pa.table({"a": column, "b": pa.array([0] * len(column))})

    dataset: Any = lb.from_dataframe(make_table(["Mild", "NA"], ["None", "Mild", "<18", "NA"]))
    assert dataset.feature_levels == {"a": ("None", "Mild", "<18", "NA")}
    assert next(dataset.iter_tables()).X[:, 0].tolist() == [1, 3, 0, 1, 2, 3]
    with pytest.raises(ValueError, match=r"'a' has the categories \['b', 'a', 'c'\] and, in other"):
        lb.from_dataframe(make_table(["a", "b"], ["b", "a", "c"]))


def test_a_level_may_contain_the_mark_of_a_cut() -> None:
    levels = ["<18", "<65", ">=65"]
    columns = {"age": pd.Categorical(levels, levels, ordered=True), "b": [0, 1, 0]}
    dataset = lb.from_dataframe(pd.DataFrame(columns))
    assert cut_levels(dataset, ["age>=>=65"]).feature_names == ("age>=>=65", "b")
    assert cut_levels(dataset, ["age>=<65"]).feature_names == ("age>=<65", "b")
    with pytest.raises(FitError, match=r'no level .6.. It has "<18"<"<65"<">=65"'):
        cut_levels(dataset, ["age>=6"])


def test_categories_in_another_order_than_those_of_the_fit(texts: np.ndarray) -> None:
    fitted = lb.fit(make_pandas(texts), "clipped-pca", components=1)
    frame = make_pandas(texts)
    frame["q1"] = frame["q1"].cat.reorder_categories(LEVELS[::-1])
    message = (
        "'q1' has the categories yes<perhaps<no, but feature 'q1' of the fit has the levels no<"
    )
    with pytest.raises(FitError, match=message):
        lb.transform(fitted, frame)
    part = make_pandas(texts[:3])
    part["q1"] = part["q1"].cat.remove_unused_categories().cat.add_categories("unused")
    assert len(lb.transform(fitted, part)["mean"]) == 3
