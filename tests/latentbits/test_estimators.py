"""The estimators of all models: scikit-learn's own checks, and the results of `latentbits`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import has_fit_parameter

import latentbits as lb
from latentbits.estimators import make_estimators
from pipeline.errors import FitError
from pipeline.models.registry import find_models
from pipeline.models.settings import list_hyperparameters
from pipeline.params import get_named_arrays
from tests.support.data import draw_probit_rows

SMALL: dict[str, dict[str, Any]] = {
    "Autoencoder": {"n_components": 2, "max_iter": 2},
    "BLICA": {"n_components": 1, "starts": 1, "min_rows": 2, "regularization": 2.0},
    # As many components as classes in the checks of `predict_proba`.
    "BernoulliMixture": {"n_components": 4, "starts": 1, "max_iter": 3},
    "BinaryICALikelihood": {"n_components": 1, "starts": 1, "max_iter": 3},
    "Bottleneck": {"n_components": 2, "max_iter": 2},
    "ClippedPCA": {"n_components": 1},
    "FastICA": {},
    "HiddenMarkov": {"n_components": 2, "starts": 1, "max_iter": 3},
    "HiddenTree": {"n_components": 4, "max_iter": 3},
    "Ising": {"n_components": 1},
    "KernelPCA": {"n_components": 1},
    "LaplacianEigenmap": {"n_components": 1, "k": 1},
    # Fifteen rows separate features, and without a prior rounding errors of diverging slopes grow.
    "LatentTrait": {
        "n_components": 1,
        "max_iter": 3,
        "nodes": 5,
        "prior_precision": 0.1,
    },
    "LinearIVAE": {"n_components": 1, "max_iter": 2},
    "NoisyOr": {"n_components": 2, "epochs": 1, "starts": 1, "max_iter": 1, "sweeps": 2}
    | {"chains": 5, "temperatures": 5},
    "RestrictedBoltzmannMachine": {"n_components": 2, "max_iter": 2, "chains": 5}
    | {"temperatures": 5},
    "Stack": {"n_components": 2, "max_iter": 1, "pretrain": 1},
    "TreeMixture": {"n_components": 4, "starts": 1, "max_iter": 3},
}
"""Settings that take no time; some models have none that take few rows."""

TIME_BINS: dict[str, dict[str, Any]] = {
    "BLICA": {"n_segments": 4},
    "BinaryICALikelihood": {"n_segments": 5, "min_rows": 2},
    "LinearIVAE": {"n_segments": 3},
}
"""Segments for data whose y has only two values."""


REPRESENTATIVE = ("ClippedPCA", "BernoulliMixture", "BLICA", "Bottleneck", "HiddenTree")
"""Estimators with all checks: of counts, with classes, segments, labels, and weights of rows."""
CHECKS_OF_MODELS = (
    *("check_dtype_object", "check_estimators_dtypes", "check_estimators_pickle"),
    *("check_fit2d_1feature", "check_fit2d_1sample", "check_fit_idempotent"),
    *("check_methods_sample_order_invariance", "check_methods_subset_invariance"),
    *("check_parameters_default_constructible", "check_pipeline_consistency"),
    *("check_sample_weight_equivalence_on_dense_data", "check_transformer_general"),
)
"""Checks of what differs between models; others are of what all estimators share."""


def iter_checks() -> Iterator[Any]:
    """Yield estimators and checks of scikit-learn; the first two estimators run by default."""
    for name in sorted(SMALL, key=lambda name: (name not in REPRESENTATIVE[:2], name)):
        made = getattr(lb, name)(binarize="mean", **SMALL[name], **TIME_BINS.get(name, {}))
        for estimator, check in estimator_checks_generator(made):
            if name in REPRESENTATIVE or check.func.__name__ in CHECKS_OF_MODELS:
                yield pytest.param(estimator, check, id=f"{name}-{check.func.__name__}")


def test_every_model_is_checked() -> None:
    assert set(SMALL) == set(make_estimators())
    assert {kind.__name__ for kind in find_models().values()} == set(SMALL) < set(dir(lb))


@pytest.mark.few(108)
@pytest.mark.parametrize(("estimator", "check"), [*iter_checks()])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_scikit_learn_takes_it(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("name", SMALL)
def test_arguments_are_the_settings_of_the_model(name: str) -> None:
    kind = getattr(lb, name)
    defaults = {f.name: f.default for f in fields(kind.model_class)} | {"constant_features": "keep"}
    settings = ("n_components", *list_hyperparameters(kind.model_class))
    common = dict.fromkeys(("binarize", "reverse", "random_state", "n_jobs"))
    common |= {"n_segments": None} if name in TIME_BINS else {}
    assert kind().get_params() == {name: defaults[name] for name in settings} | common
    assert kind(3).n_components == 3
    documented = kind.__doc__.splitlines()
    assert [name for name in kind().get_params() if documented.count(name) != 1] == []


N_ROWS = 1200


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    values = draw_probit_rows(N_ROWS, 8, 2, seed=3)[0].astype(float)
    values[np.random.default_rng(4).random(values.shape) < 0.05] = np.nan
    return values


@pytest.fixture(scope="module")
def segments() -> np.ndarray:
    return np.array(["a", "b", "c", "d"])[np.random.default_rng(0).integers(0, 4, N_ROWS)]


NAMED = ["Autoencoder", "BLICA", "BernoulliMixture", "ClippedPCA", "KernelPCA", "LatentTrait"]


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_it_is_what_the_functions_give(X: np.ndarray, segments: np.ndarray, name: str) -> None:
    made = getattr(lb, name)(**SMALL[name], random_state=7, n_jobs=2)
    made.fit(X, segments=segments)
    data = lb.from_numpy(X, [f"x{i}" for i in range(8)], segment=segments, keep={"group": segments})
    settings = {**SMALL[name], "components": SMALL[name]["n_components"]}
    del settings["n_components"]
    if name in ("BernoulliMixture", "LatentTrait"):
        settings["group"] = "group"
    fitted = lb.fit(data, made.model_class.name, seed=7, **settings)
    arrays = [
        {key: values.tobytes() for key, (_, values) in get_named_arrays(params).items()}
        for params in (made.fitted_.params, fitted.params)
    ]
    assert arrays[0] == arrays[1]
    codes = lb.transform(fitted, data, seed=7)["mean"]
    assert made.transform(X, segments=segments).tobytes() == codes.tobytes()
    if hasattr(made, "score") and "log_likelihood" in (found := lb.evaluate(fitted, data, seed=7)):
        assert made.score(X, segments=segments) == pytest.approx(found["log_likelihood"], 1e-12)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_settings_of_groups_need_groups(X: np.ndarray, segments: np.ndarray) -> None:
    trait = lb.LatentTrait(n_components=1, invariance="metric")
    with pytest.raises(ValueError, match=r'invariance="metric" needs groups.*by segments\.'):
        trait.fit(X)
    with pytest.raises(ValueError, match="segments: The group 'lone' has 1 row"):
        trait.fit(X, segments=["lone", *segments[1:]])
    offsets = trait.fit(X, segments=segments).group_offsets_
    assert (np.ptp(offsets, axis=0) > 0).all()


@pytest.mark.matrix
def test_rows_without_a_segment_have_the_mean_of_those_fitted(
    X: np.ndarray, segments: np.ndarray
) -> None:
    by_y = lb.BLICA(n_components=1, random_state=0).fit(X, segments)
    by_name = lb.BLICA(n_components=1, random_state=0).fit(X, np.arange(N_ROWS), segments=segments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codes = by_y.transform(X)
    assert codes.tobytes() == by_name.transform(X).tobytes()
    assert not np.allclose(codes, by_y.transform(X, segments=segments))
    with pytest.warns(UserWarning, match="segments that were not fitted.*'new'"):
        assert by_y.transform(X, np.full(N_ROWS, "new")).tobytes() == codes.tobytes()
    assert np.isfinite(by_y.score(X))
    assert by_y.score(X, segments) == by_y.score(X, segments=segments) != by_y.score(X)


def test_segments_go_through_a_pipeline_beside_the_class(
    X: np.ndarray, segments: np.ndarray
) -> None:
    is_class = np.nan_to_num(X[:, 0]) == 1
    pipe = make_pipeline(lb.BLICA(n_components=1, random_state=0), LogisticRegression())
    pipe.fit(X, is_class, blica__segments=segments)
    assert pipe[0].fitted_.segment_names == tuple(dict.fromkeys(segments))
    assert pipe.score(X, is_class) > is_class.mean()
    assert pipe.fit(X, segments)[0].fitted_.segment_names == tuple(dict.fromkeys(segments))


def test_a_bottleneck_takes_what_it_predicts_as_y(X: np.ndarray, segments: np.ndarray) -> None:
    for column in ("segment", "label"):
        made = lb.Bottleneck(n_components=2, column=column, max_iter=2, random_state=0)
        fitted = made.fit(X, segments).fitted_
        assert set(fitted.labels) == {"a", "b", "c", "d"}
        assert fitted.segment_names == (
            tuple(dict.fromkeys(segments)) if column == "segment" else ("",)
        )


def test_names_of_columns_come_in_and_go_out(X: np.ndarray) -> None:
    frame = pd.DataFrame(X, columns=list("abcdefgh"), index=np.arange(N_ROWS) + 5)
    made = lb.ClippedPCA(n_components=2).set_output(transform="pandas")
    codes = made.fit_transform(frame)
    assert made.fitted_.feature_names == tuple("abcdefgh")
    assert codes.columns.tolist() == ["clippedpca0", "clippedpca1"]
    assert codes.index.equals(frame.index)
    assert [*made.get_feature_names_out()] == codes.columns.tolist()
    frame.loc[9, "c"] = 0.3
    with pytest.raises(FitError, match=r"row 5 \(counted from 1\), column 'c': the value is 0\.3,"):
        made.fit(frame)


def test_a_threshold_makes_bits_and_leaves_out_what_is_missing(X: np.ndarray) -> None:
    measured = np.where(X == 1, 0.7, np.where(X == 0, 0.5, np.nan))
    models = [lb.BernoulliMixture(n_components=2, random_state=0, binarize=b) for b in (0.5, None)]
    codes = [made.fit_transform(Z) for made, Z in zip(models, (measured, X), strict=True)]
    assert codes[0].tobytes() == codes[1].tobytes()


def test_the_mean_is_the_mean_of_the_fitted_rows(X: np.ndarray) -> None:
    draws = np.random.default_rng(5)
    values = np.where(np.isnan(X), np.nan, X + draws.normal(100, 1, X.shape)).astype(np.float32)
    made = lb.BernoulliMixture(n_components=2, random_state=0, binarize="mean").fit(values)
    np.testing.assert_allclose(made.binarize_, np.nanmean(values.astype(float), axis=0), rtol=1e-12)
    bits = np.where(np.isnan(values), np.nan, values > np.nanmean(values.astype(float), axis=0))
    same = lb.BernoulliMixture(n_components=2, random_state=0).fit(bits)
    codes = made.transform(values[:7])
    assert codes.dtype == np.float32
    assert codes.tobytes() == same.transform(bits[:7]).astype(np.float32).tobytes()
    with pytest.raises(FitError, match=r"^binarize must be a number, 'mean' or None"):
        lb.ClippedPCA(binarize="median").fit(values)


@pytest.mark.parametrize("name", TIME_BINS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_time_bins_are_segments_of_equal_length(X: np.ndarray, name: str) -> None:
    settings = {**SMALL[name], "random_state": 0}
    bins = np.repeat([1, 2, 3, 4], N_ROWS // 4)
    by_number = getattr(lb, name)(**settings, n_segments=4).fit(X, np.arange(N_ROWS) % 2)
    by_name = getattr(lb, name)(**settings).fit(X, bins)
    assert by_number.fitted_.segment_names == by_name.fitted_.segment_names
    assert by_number.transform(X).tobytes() == by_name.transform(X).tobytes()
    with pytest.raises(FitError, match=r"^n_segments is 7, but must be .* from 1 to .* 6"):
        getattr(lb, name)(n_segments=7).fit(X[:12])


def test_scores_of_rows_are_those_of_the_functions(X: np.ndarray) -> None:
    made = lb.LatentTrait(n_components=1, max_iter=3, random_state=0)
    nats = made.fit(X).score_samples(X)
    assert nats.shape == (len(X),)
    found = lb.evaluate(made.fitted_, X)["log_likelihood"]
    assert made.score(X) == nats.mean() == pytest.approx(found, 1e-12)
    few = [5, 900, 17]
    np.testing.assert_allclose(made.score_samples(X[few]), nats[few], rtol=1e-12)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_reversed_columns_and_scores_are_those_of_the_functions(X: np.ndarray) -> None:
    levels = np.column_stack([X[:, :3], X[:, 3] + X[:, 4]])
    made = lb.LatentTrait(1, reverse=["x3", "x[0]"], max_iter=3, random_state=0).fit(levels)
    turned = levels.copy()
    turned[:, 0], turned[:, 3] = 1 - levels[:, 0], 2 - levels[:, 3]
    plain = lb.LatentTrait(1, max_iter=3, random_state=0).fit(turned)
    Z = made.transform(levels)
    np.testing.assert_array_equal(Z, plain.transform(turned))
    assert made.score(levels) == plain.score(turned)
    expected = plain.inverse_transform(Z)
    expected[:, 0], expected[:, 3] = 1 - expected[:, 0], 2 - expected[:, 3]
    np.testing.assert_allclose(made.inverse_transform(Z), expected, rtol=1e-12)
    np.testing.assert_allclose(made.sample(4000).mean(axis=0), np.nanmean(levels, axis=0), atol=0.1)
    scorer = lb.Scorer(made)
    row = dict(zip(made.fitted_.manifest["reversed"], [1, 2], strict=True))
    for kind in ("map", "wle", "sum"):
        scores = made.transform(levels, scores=kind)
        found = lb.transform(plain.fitted_, turned, scores=kind)["score"]
        np.testing.assert_array_equal(scores.ravel(), found.ravel())
    one = scorer({"x0": 1, "x1": 0, "x2": 1, "x3": 2}, scores="wle")
    frame = pd.DataFrame({"x0": [1], "x1": [0], "x2": [1], "x3": [2]})
    assert one["score_1"] == scorer(frame, scores="wle")["score"][0, 0]
    assert one["is_finite"] is True
    assert [*scorer(row, scores="sum")] == ["score", "standard_error"]
    with pytest.raises(FitError, match=r"^scores must be 'eap', 'map'"):
        scorer(row, scores="mean")


@pytest.mark.parametrize("name", ["LatentTrait", "NoisyOr", "BLICA", "KernelPCA", "ClippedPCA"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_codes_are_turned_back_into_probabilities(
    X: np.ndarray, segments: np.ndarray, name: str
) -> None:
    made = getattr(lb, name)(**SMALL[name], random_state=7).fit(X, segments)
    if not hasattr(made, "inverse_transform"):
        assert name == "KernelPCA"
        return
    data = lb.from_numpy(X, made.fitted_.feature_names, segment=segments)
    codes = lb.transform(made.fitted_, data, reconstruct="probabilities", seed=7)
    found = made.inverse_transform(codes["mean"], segments)
    np.testing.assert_allclose(found, codes["probabilities"], rtol=1e-12)
    assert made.inverse_transform(codes["mean"].astype(np.float32)).dtype == np.float32
    with pytest.raises(ValueError, match=r"Z has 9 components, but \w+ is expecting \d components"):
        made.inverse_transform(np.zeros((1, 9)))


@pytest.mark.parametrize("name", ["TreeMixture", "BernoulliMixture", "LatentTrait"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_missing_values_are_imputed(X: np.ndarray, name: str) -> None:
    """A complete row is as probable as its other values times P of the value."""
    made = getattr(lb, name)(**SMALL[name], random_state=0).fit(X)
    if not hasattr(made, "impute"):
        assert name == "LatentTrait"
        return
    X = X[:200].copy()
    X[7, 1] = np.nan
    completed, is_missing = made.impute(X), np.isnan(X)
    np.testing.assert_array_equal(completed[~is_missing], X[~is_missing])
    assert ((completed[is_missing] > 0) & (completed[is_missing] < 1)).all()
    rows = np.repeat(X[7:8], 2, axis=0)
    rows[1, 1] = 1
    nats = made.score_samples(rows)
    assert completed[7, 1] == pytest.approx(np.exp(nats[1] - nats[0]), rel=1e-9)
    single = made.impute(X.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, completed, rtol=1e-6)


def test_a_mixture_predicts_components_and_has_criteria(X: np.ndarray) -> None:
    made = lb.BernoulliMixture(n_components=3, random_state=0).fit(X)
    shares = made.predict_proba(X)
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    components = shares.argmax(axis=1).tolist()
    assert made.predict(X).tolist() == components
    assert made.set_output(transform="pandas").predict(X).tolist() == components
    # Independently of the library's kernels: log Σ_k π_k Π_i p_ki^x_i (1 − p_ki)^(1 − x_i).
    p, observed = made.probabilities_, ~np.isnan(X)
    ones = np.nan_to_num(X)
    joint = made.weights_ * np.exp(
        ones @ np.log(p).T + (observed - ones) @ np.log(1 - p).T  # missing values are left out
    )
    np.testing.assert_allclose(shares, joint / joint.sum(axis=1, keepdims=True), rtol=1e-9)
    nats, n_parameters = np.log(joint.sum(axis=1)), 3 * X.shape[1] + 2
    np.testing.assert_allclose(made.score_samples(X), nats, rtol=1e-9)
    assert made.aic(X) == pytest.approx(2 * n_parameters - 2 * nats.sum())
    assert made.bic(X) == pytest.approx(n_parameters * np.log(len(X)) - 2 * nats.sum())
    assert not hasattr(lb.LatentTrait(), "predict_proba")


def test_a_hidden_tree_predicts_pairs_of_tree_and_state(X: np.ndarray) -> None:
    made = lb.HiddenTree(states=2, trees=3, max_iter=5, random_state=0).fit(X)
    shares = made.predict_proba(X).reshape(len(X), 3, 2)
    assert made.predict(X).tolist() == shares.reshape(len(X), 6).argmax(axis=1).tolist()
    # Each tree alone, as a fit of its own.
    params = made.fitted_.params
    for tree in range(3):
        own = replace(
            params,
            weights=params.root_weights[tree],
            transitions=params.transitions[[tree]],
            emissions=params.emissions[[tree]],
        )
        alone = deepcopy(made)
        alone.fitted_ = replace(made.fitted_, params=own)
        nats = alone.score_samples(X) - made.score_samples(X)
        expected = np.exp(nats)[:, None] / 3 * alone.predict_proba(X)
        np.testing.assert_allclose(shares[:, tree], expected, rtol=1e-9)


def test_arrays_have_the_names_of_scikit_learn(X: np.ndarray) -> None:
    made = lb.LatentTrait(n_components=2, max_iter=3).fit(X)
    assert made.weights_ is made.fitted_.params.weights
    assert made.components_.shape == (2, X.shape[1])
    assert made.components_.tobytes() == made.weights_.T.tobytes()
    assert (made.n_features_in_, made.converged_) == (X.shape[1], made.fitted_.converged)
    mixture = lb.BernoulliMixture(n_components=2).fit(X)
    assert mixture.components_ is mixture.probabilities_


@pytest.mark.parametrize("name", ["ClippedPCA", "BLICA"])
@pytest.mark.parametrize("binarize", [None, 0.5])
def test_rows_in_parts_give_the_bytes_of_all_rows(
    X: np.ndarray, name: str, binarize: float | None
) -> None:
    segments = np.repeat(["a", "b", "c", "d"], [150, 150, 200, 700])  # `d` comes later
    settings = {**SMALL[name], "binarize": binarize, "random_state": 3}
    whole = getattr(lb, name)(**settings).fit(X, segments)
    parts = getattr(lb, name)(**settings)
    for first, last in pairwise([0, 450, 451, 1000, 1200]):
        assert parts.partial_fit(X[first:last], segments[first:last]) is parts
    for key, (_, values) in get_named_arrays(whole.fitted_.params).items():
        assert getattr(parts, f"{key}_").tobytes() == values.tobytes(), key
    assert parts.fitted_.segment_names == whole.fitted_.segment_names
    assert parts.fit(X[:600], segments[:600]).thresholds_.tobytes() != whole.thresholds_.tobytes()


def test_a_part_that_is_refused_adds_no_rows(X: np.ndarray) -> None:
    parts = lb.ClippedPCA(n_components=1).partial_fit(X[:600])
    bad = X[600:].copy()
    bad[3, 2] = 5
    with pytest.raises(ValueError, match=r"row 4 .*column 'x2'.* is 5"):
        parts.partial_fit(bad)
    with pytest.raises(ValueError, match="features"):
        parts.partial_fit(X[600:, :5])
    parts.partial_fit(X[600:])
    whole = lb.ClippedPCA(n_components=1).fit(X)
    assert parts.loadings_.tobytes() == whole.loadings_.tobytes()


def test_settings_that_change_the_counts_are_refused(X: np.ndarray) -> None:
    segments = np.repeat(["a", "b", "c"], 400)
    parts = lb.BLICA(**SMALL["BLICA"]).partial_fit(X, segments)
    parts.set_params(bootstrap=20)
    with pytest.raises(ValueError, match="settings have changed since the first rows"):
        parts.partial_fit(X, segments)


def test_only_counts_can_be_added_to() -> None:
    can_add = [name for name in SMALL if hasattr(getattr(lb, name)(), "partial_fit")]
    assert can_add == ["BLICA", "ClippedPCA"]
    assert not hasattr(lb.BLICA(n_segments=3), "partial_fit")
    rows = np.random.default_rng(0).integers(0, 2, (10, 2500))
    with pytest.raises(ValueError, match=r"counts the pairs of 2,500 features in strips"):
        lb.ClippedPCA(n_components=1).partial_fit(rows)


def test_draws_are_as_common_as_ones_are(X: np.ndarray) -> None:
    made = lb.BernoulliMixture(n_components=4, random_state=0).fit(X)
    drawn = made.sample(20_000)
    assert drawn.shape == (20_000, 8)
    assert drawn.tobytes() == made.sample(20_000).tobytes()
    np.testing.assert_allclose(drawn.mean(axis=0), np.nanmean(X, axis=0), atol=0.02)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda X: lb.ClippedPCA(n_components=0).fit(X), "^n_components must be at least 1"),
        (lambda X: lb.ClippedPCA(n_components=9).fit(X), "^n_components is 9, but the limit is 8"),
        (lambda X: lb.ClippedPCA(n_components="x").fit(X), "^n_components: 'x' is neither a whole"),
        (lambda X: lb.ClippedPCA(random_state=-1).fit(X), "^random_state must be .*, but is -1"),
        (lambda X: lb.ClippedPCA(n_jobs=0).fit(X), "^n_jobs is 0"),
        (lambda X: lb.ClippedPCA(estimator="x").fit(X), "^estimator must be one of .*, but is 'x'"),
        (
            lambda X: lb.LatentTrait(constant_features="refuse").fit(X * [0, *[1] * 7]),
            "constant: 'x0'.*by constant_features=\"keep\"",
        ),
        (
            lambda X: lb.ClippedPCA().fit(X + 0.5),
            r"^row 1 .*column 'x0': the value is .* Use binarize=T",
        ),
        (lambda X: lb.BLICA().fit(X), "BLICA requires y .* Pass the segment of each row"),
        (lambda X: lb.BLICA().fit(X, X[:, 0] * 0), "but there are 1. .* each row by y, or"),
        (lambda X: lb.Bottleneck(column="party").fit(X), "Pass the party of each row"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_is_refused_names_the_argument(make: Any, said: str, X: np.ndarray) -> None:
    with pytest.raises(FitError, match=said) as refused:
        make(np.nan_to_num(X))
    assert "--" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.matrix
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_pseudo_likelihood_is_no_score(X: np.ndarray) -> None:
    made = lb.RestrictedBoltzmannMachine(n_components=2, max_iter=2, random_state=0).fit(X)
    assert np.isfinite(made.score(X))
    made.fitted_ = replace(made.fitted_, params=replace(made.fitted_.params, log_z=None))
    with pytest.raises(FitError, match=r"Boltzmann.* no log-likelihood.* log Z is missing"):
        made.score(X)


def test_embeddings_have_no_score() -> None:
    without = [name for name in SMALL if not hasattr(getattr(lb, name)(), "score")]
    assert without == ["FastICA", "KernelPCA", "LaplacianEigenmap"]
    assert not hasattr(lb.KernelPCA(), "sample")
    assert not hasattr(lb, "_private")


def test_values_are_predicted_from_the_codes_of_other_features() -> None:
    rng = np.random.default_rng(8)
    X = (rng.standard_normal((60, 1)) + rng.standard_normal((60, 7)) > 0.3).astype(float)
    X[:, 6] += rng.random(60) < 0.4  # three levels
    X[rng.random(X.shape) < 0.1] = np.nan
    made = lb.ClippedPCA(1, random_state=0).fit(X)
    expected = np.zeros(60)
    for fold in range(5):
        held_out = np.arange(7) % 5 == fold
        codes = made.transform(np.where(held_out, np.nan, X))
        fitted = made.fitted_
        P = fitted.model.reconstruct(fitted.params, codes.astype(float), None)
        P = np.column_stack([1 - P[:, :6], P[:, :6], 1 - P[:, 6], P[:, 6] - P[:, 7], P[:, 7]])
        for i in np.flatnonzero(held_out):
            values = np.nan_to_num(X[:, i]).astype(int)
            places = 12 + values if i == 6 else i + 6 * values
            expected += np.where(np.isnan(X[:, i]), 0.0, np.log(P[np.arange(60), places]))
    np.testing.assert_allclose(made.score_samples(X), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["Autoencoder", "Bottleneck", "ClippedPCA", "Stack"])
@pytest.mark.filterwarnings("ignore")
def test_numbers_of_components_are_compared_without_a_scorer(
    X: np.ndarray, segments: np.ndarray, name: str
) -> None:
    made = getattr(lb, name)(**SMALL[name], random_state=0)
    options = {"cv": 2, "error_score": "raise", "refit": False}
    search = GridSearchCV(made, {"n_components": [1, 2]}, **options)
    search.fit(X[:100], segments[:100])
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize("random_state", [None, 3, np.random.RandomState(3)])
def test_every_kind_of_seed_is_taken(X: np.ndarray, random_state: Any) -> None:
    made = lb.BernoulliMixture(n_components=2, max_iter=2, random_state=random_state)
    with pytest.warns(UserWarning, match="before converging"):
        seeds = [made.fit(X).seed_ for _ in range(2)]
    assert (seeds[0] == seeds[1] == 3) is (random_state == 3)


@pytest.fixture(scope="module")
def digits() -> tuple[np.ndarray, np.ndarray]:
    found = load_digits()
    return found.data, found.target


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "settings", "least"),
    [
        ("ClippedPCA", {}, 0.8),
        ("BernoulliMixture", {"starts": 1}, 0.75),
        ("RestrictedBoltzmannMachine", {"max_iter": 10}, 0.65),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_model_in_a_pipeline_and_a_grid_search(
    digits: tuple[np.ndarray, np.ndarray], name: str, settings: dict[str, Any], least: float
) -> None:
    model = getattr(lb, name)(binarize=7, random_state=0, **settings)
    pipe = make_pipeline(model, LogisticRegression(max_iter=1000))
    search = GridSearchCV(pipe, {f"{name.lower()}__n_components": [2, 20]}, cv=3).fit(*digits)
    assert search.best_params_ == {f"{name.lower()}__n_components": 20}
    assert search.best_score_ > least


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_warning_is_not_repeated_for_every_fold(X: np.ndarray) -> None:
    estimator = lb.ClippedPCA(n_components=1, empty_cells="half")
    twice = np.column_stack([X[:, :4], X[:, 0]])
    with pytest.warns(UserWarning, match="pairs with an empty cell") as warned:
        cross_validate(estimator, twice, scoring=lambda *_: 0.0, cv=4)
    texts = [str(warning.message) for warning in warned]
    assert len(texts) == len({*texts})
    for _ in range(2):  # fits of one's own always warn
        with pytest.warns(UserWarning, match="pairs with an empty cell"):
            estimator.fit(twice)


@pytest.mark.parametrize("name", ["ClippedPCA", "LatentTrait"])
def test_pixels_that_are_constant_in_a_fold_are_kept(
    digits: tuple[np.ndarray, np.ndarray], name: str
) -> None:
    X, y = digits[0][:600], digits[1][:600]
    made = getattr(lb, name)(1, binarize=7, **({"nodes": 15} if name == "LatentTrait" else {}))
    pipe = make_pipeline(made, LogisticRegression())
    with pytest.warns(UserWarning, match="constant features, kept with"):
        scores = cross_val_score(pipe, X, y, cv=3)
    assert (scores > 0.15).all()
    made.fit(X)
    bits = X > 7
    is_constant = (bits == bits[0]).all(axis=0)
    np.testing.assert_array_equal(made.components_[0] == 0, is_constant)
    differs = made.sample(200)[:, is_constant] != bits[0, is_constant]
    assert differs.mean() < 0.01  # the prior of a margin leaves a little to the other value


def test_a_short_name_is_the_same_estimator() -> None:
    assert lb.RBM is lb.RestrictedBoltzmannMachine


def test_components_are_chosen_by_rows_held_out(digits: tuple[np.ndarray, np.ndarray]) -> None:
    model = lb.BernoulliMixture(binarize=7, random_state=0, starts=1)
    search = GridSearchCV(model, {"n_components": [1, 10]}, cv=3).fit(digits[0])
    assert search.best_params_ == {"n_components": 10}
    assert search.best_score_ < search.best_estimator_.score(digits[0])


WEIGHTED, FURTHER_WEIGHTED = (
    ["BernoulliMixture", "ClippedPCA", "LatentTrait"],
    ["HiddenTree", "Ising", "TreeMixture"],
)


@pytest.mark.parametrize("binarize", [None, "mean"])
@pytest.mark.parametrize(
    "name",
    [*WEIGHTED, *(pytest.param(name, marks=pytest.mark.matrix) for name in FURTHER_WEIGHTED)],
)
def test_whole_sample_weights_repeat_rows(X: np.ndarray, name: str, binarize: Any) -> None:
    values = X if binarize is None else X + np.random.default_rng(1).normal(100, 0.1, X.shape)
    weights = np.random.default_rng(2).integers(0, 5, N_ROWS)
    settings = {"n_components": 1, "random_state": 0, "binarize": binarize}
    repeated = getattr(lb, name)(**settings).fit(values.repeat(weights, axis=0))
    weighted = getattr(lb, name)(**settings).fit(values, sample_weight=weights)
    if binarize:
        np.testing.assert_allclose(weighted.binarize_, repeated.binarize_, rtol=1e-12)
    for key, (_, expected) in get_named_arrays(repeated.fitted_.params).items():
        found = getattr(weighted, f"{key}_")
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=key)


def test_other_sample_weights_are_those_of_a_survey(X: np.ndarray) -> None:
    weights = np.random.default_rng(2).uniform(0.5, 3, N_ROWS)
    made = lb.LatentTrait(n_components=1, random_state=0).fit(X, sample_weight=weights)
    data = lb.from_numpy(X, made.fitted_.feature_names, keep={"w": weights})
    fitted = lb.fit(data, "latent-trait", components=1, weight="w", weights="sampling")
    assert made.weights_error_.tobytes() == fitted.params.weights_error.tobytes()
    half = lb.LatentTrait(n_components=1, random_state=0).fit(X, sample_weight=weights / 2)
    assert half.weights_.tobytes() == made.weights_.tobytes()
    assert made.fitted_.manifest["row_weights"]["column"] == "sample_weight"


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (np.where(np.arange(N_ROWS) == 3, -1, 1), "^sample_weight: row 4: the weight -1"),
        (np.zeros(N_ROWS), "^All values of sample_weight are zero"),
        (np.ones(5), r"^sample_weight has the shape \(5,\), but X has 1,200 rows"),
        (np.full(N_ROWS, np.nan), "sample_weight contains NaN"),
    ],
)
def test_sample_weights_that_cannot_be_used_are_refused(
    X: np.ndarray, weights: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        lb.ClippedPCA(n_components=1).fit(X, sample_weight=weights)


def test_only_estimators_whose_models_weigh_rows_take_sample_weight() -> None:
    takers = [n for n in sorted(SMALL) if has_fit_parameter(getattr(lb, n)(), "sample_weight")]
    assert takers == sorted([*WEIGHTED, *FURTHER_WEIGHTED])


def test_no_number_of_components_lets_the_model_choose() -> None:
    X = (np.random.default_rng(0).random((200, 6)) < 0.5).astype(float)
    mixture = lb.BernoulliMixture(n_components=None, random_state=0).fit(X)
    assert mixture.fitted_.model.n_components is None
    assert len(mixture.fitted_.manifest["diagnostics"]["held_out_scores"]) > 1
    again = lb.fit(X, "bernoulli-mixture", components="auto", seed=mixture.seed_)
    np.testing.assert_array_equal(again.params.weights, mixture.weights_)


def test_advice_to_leave_columns_out_names_no_argument(X: np.ndarray) -> None:
    table = pd.DataFrame(X.astype(float)).add_prefix("q").assign(q1=np.nan)
    message = r"no observed value: 'q1'\. Leave their columns out of X\.$"
    with pytest.raises(FitError, match=message):
        lb.ClippedPCA(n_components=1).fit(table)
    with pytest.raises(FitError, match=r"'q1'\. Leave them out by drop="):
        lb.fit(table, components=1)
