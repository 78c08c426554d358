"""Likelihoods, losses and shares of pairs against dense computations and known truths."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import t, ttest_1samp

from pipeline.data.blocks import BinaryBlock, RowSource, iter_blocks
from pipeline.data.features import make_binary_features
from pipeline.errors import FitError
from pipeline.evaluation.calibration import (
    BIN_EDGES,
    N_SAMPLE_ROWS,
    choose_compared_features,
    compare_features,
    compare_pairs,
    count_implied_pairs,
    count_observed_pairs,
)
from pipeline.evaluation.evaluate import (
    EvaluatedModel,
    ModelScores,
    assign_folds,
    describe_differences,
    describe_likelihood,
    describe_reconstruction,
    describe_scores,
    find_likelihood_measure,
    make_baseline_models,
    score_models,
)
from pipeline.executors.base import SerialExecutor, ThreadsExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.bernoulli_mixture.params import BernoulliMixtureParams
from pipeline.models.capabilities import LogLikelihood
from pipeline.numerics.metrics import reconstruction_losses
from pipeline.params import array_field
from pipeline.statistics.counts import PairCounts
from pipeline.statistics.sums import Sums
from tests.support.strategies import DenseData, chunkings, make_memory_rows, tables

SERIAL = SerialExecutor()
NO_SEGMENTS = np.zeros(0, np.int64)
WEIGHTS = np.array([0.6, 0.4])
PROBABILITIES = np.array([[0.9, 0.8, 0.45, 0.01, 0.3, 0.6], [0.1, 0.3, 0.45, 0.02, 0.7, 0.6]])

ALL = np.arange(6)


def mixture(weights: Any = WEIGHTS, probabilities: Any = PROBABILITIES) -> EvaluatedModel:
    params = BernoulliMixtureParams(probabilities, weights)
    return EvaluatedModel(BernoulliMixture(n_components=len(weights)), params, NO_SEGMENTS)


def drawn(n_rows: int, seed: int = 0) -> NDArray[np.uint8]:
    subject = mixture()
    return subject.model.sample(subject.params, n_rows, np.random.default_rng(seed))


def compute_mean_error(values: NDArray[np.float64]) -> float:
    n = len(values)
    return float(values.std(ddof=1) / np.sqrt(n)) if n > 1 else 0.0


@dataclass(frozen=True)
class SegmentParams:
    """Chances of a one by segment."""

    chances: NDArray[np.float64] = array_field("segment")


@dataclass(frozen=True)
class BySegment:
    """Two features, ones as often as the segment says; a row's likelihood is its segment."""

    params: ClassVar[type[SegmentParams]] = SegmentParams
    n_features: int = 2

    def transform(self, params: SegmentParams, block: BinaryBlock, rng: Any) -> Any:
        return {"mean": np.zeros((block.n_samples, 1))}

    def reconstruct(self, params: SegmentParams, codes: Any, segments: Any) -> Any:
        return np.repeat(params.chances[segments][:, None], self.n_features, axis=1)

    def sample(self, params: SegmentParams, n_samples: int, rng: Any, segments: Any = None) -> Any:
        chances = self.reconstruct(params, np.zeros((n_samples, 1)), segments)
        return (rng.random(chances.shape) < chances).astype(np.uint8)


class Exact(BySegment):
    def log_likelihood(self, params: SegmentParams, block: BinaryBlock, rng: Any) -> Any:
        return LogLikelihood(np.full(block.n_samples, -1.0 - block.segment), np.zeros(1))


class Estimated(BySegment):
    def log_likelihood(self, params: SegmentParams, block: BinaryBlock, rng: Any) -> Any:
        n = block.n_samples
        return LogLikelihood(np.full(n, -2.0), np.full(n, 0.5))


class Integrated(BySegment):
    def log_likelihood(self, params: SegmentParams, block: BinaryBlock, rng: Any) -> Any:
        n = block.n_samples
        nats, errors = np.full(n, -2.0), np.where(block.rows % 2, 0.03, 0.01)
        return LogLikelihood(nats, np.zeros(n), integration_error=errors)


class Bounded(BySegment):
    def lower_bound(self, params: SegmentParams, block: BinaryBlock, rng: Any) -> Any:
        return np.full(block.n_samples, -3.0)


class Refusing(Bounded):
    def log_likelihood(self, params: SegmentParams, block: BinaryBlock, rng: Any) -> Any:
        raise FitError("Expected fewer features.")


class Composite(BySegment):
    def composite_log_likelihood(self, params: SegmentParams, block: BinaryBlock, rng: Any) -> Any:
        return np.full(block.n_samples, -4.0)


class Infinite(BySegment):
    nats: ClassVar[float] = -np.inf

    def log_likelihood(self, params: SegmentParams, block: BinaryBlock, rng: Any) -> Any:
        return LogLikelihood(np.where(block.rows == 7, self.nats, -1.0), np.zeros(block.n_samples))


def by_segment(kind: type[BySegment], segments: Any = (0, 1, 2)) -> EvaluatedModel:
    params = SegmentParams(np.array([0.1, 0.5, 0.9]))
    return EvaluatedModel(kind(), params, np.array(segments))  # type: ignore[arg-type]


def two_columns(labels: NDArray[np.int64]) -> DenseData:
    X = np.random.default_rng(0).integers(0, 2, (len(labels), 2), dtype=np.uint8)
    return DenseData(X, None, labels)


def score_rows(
    subject: EvaluatedModel, measure: str | None, rows: RowSource, executor: Any = SERIAL
) -> Sums:
    return score_models({"": (subject, measure)}, rows, executor, 0).models[""]


# --- likelihoods and losses ----------------------------------------------------------------------


@given(data=tables(st.just(6)), draw=st.data())
def test_scores_are_those_of_the_dense_matrix(data: DenseData, draw: st.DataObject) -> None:
    subject = mixture()
    rows = make_memory_rows(data, draw.draw(chunkings(len(data.X))))
    sums = score_rows(subject, "log_likelihood", rows)
    X, mask = data.X, data.mask.astype(bool)
    given_k = [np.where(X, p, 1 - p) for p in PROBABILITIES]
    joint = WEIGHTS * np.array([np.where(mask, g, 1.0).prod(axis=1) for g in given_k]).T
    nats = np.log(joint.sum(axis=1))
    found = describe_likelihood(find_likelihood_measure(subject, 2), sums)
    assert found["kind"] == "exact"
    assert found["log_likelihood"] == pytest.approx(nats.mean())
    assert found["bits"] == pytest.approx(nats.mean() / np.log(2))
    assert found["standard_error"] == pytest.approx(compute_mean_error(nats), abs=1e-6)
    assert found["estimation_error"] == 0
    if mask.any():
        probabilities = joint / joint.sum(axis=1, keepdims=True) @ PROBABILITIES
        expected = reconstruction_losses(X, mask, probabilities)
        assert describe_reconstruction(sums) == pytest.approx(expected, abs=1e-9)


@given(data=tables(st.just(6)), draw=st.data())
def test_differences_are_paired_by_row(data: DenseData, draw: st.DataObject) -> None:
    """The standard errors are those of the row-wise differences of the dense matrix."""
    subjects = {"a": mixture(), "b": mixture([1.0], PROBABILITIES[:1])}
    measure = find_likelihood_measure(subjects["a"], 6)
    by_name = {name: (subject, measure.name) for name, subject in subjects.items()}
    n = len(data.X)
    scores = score_models(by_name, make_memory_rows(data, draw.draw(chunkings(n))), SERIAL, 0)
    models = [
        {"name": name, **describe_scores(subject, measure, scores.models[name])}
        for name, subject in subjects.items()
    ]
    (found,) = describe_differences(models, scores)
    assert found["models"] == ["a", "b"]

    X, mask = data.X, data.mask.astype(bool)
    per_row = {}
    for name, subject in subjects.items():
        p, weights = subject.params.probabilities, subject.params.weights
        joint = weights * np.array([np.where(mask, np.where(X, q, 1 - q), 1).prod(1) for q in p]).T
        expected = joint / joint.sum(axis=1, keepdims=True) @ p
        per_row[name] = np.log(joint.sum(axis=1)), (((expected > 0.5) != X) & mask).sum(axis=1)
    (nats, wrong), (other_nats, other_wrong) = per_row["a"], per_row["b"]
    error = compute_mean_error(nats - other_nats)
    assert found["nats_per_row"]["difference"] == pytest.approx((nats - other_nats).mean())
    assert found["nats_per_row"]["standard_error"] == pytest.approx(error, abs=1e-6)
    if mask.any():
        observed = mask.sum(axis=1)
        share = (wrong - other_wrong).sum() / observed.sum()
        residuals = wrong - other_wrong - share * observed
        error = np.sqrt((residuals**2).sum() * n / max(n - 1, 1)) / observed.sum()
        assert found["wrong_bits"]["difference"] == pytest.approx(share)
        assert found["wrong_bits"]["standard_error"] == pytest.approx(error, abs=1e-9)
    for value in found.values():
        if value != found["models"]:
            limit = t.isf(0.025, n - 1) * value["standard_error"]
            assert value["is_significant"] == (n >= 6 and abs(value["difference"]) > limit)


@pytest.mark.parametrize("n", [1, 2, 5, 6, 8, 40])
def test_significance_is_that_of_a_paired_t_test(n: int) -> None:
    """Equal differences in all rows are not significant either if there are few rows."""
    means = np.array([-0.5, 0.5, 0.6, 0.7, 1.0])
    rng = np.random.default_rng(n)
    for mean in means:
        nats = rng.normal(mean, 1, n)
        sums = Sums(n, n, float(nats.sum()), {"squared_nats": np.array((nats**2).sum())})
        assert _is_significant(sums) == (n >= 6 and ttest_1samp(nats, 0).pvalue < 0.05)
    same = Sums(n, n, 3.0 * n, {"squared_nats": np.array(9.0 * n)})
    assert _is_significant(same) == (n >= 6)


def _is_significant(differences: Sums) -> bool:
    model = {"kind": "exact", "estimation_error": 0.0}
    scores = ModelScores({}, {("a", "b"): differences})
    (found,) = describe_differences([{"name": name, **model} for name in "ab"], scores)
    return bool(found["nats_per_row"]["is_significant"])


def test_only_comparable_likelihoods_have_differences() -> None:
    """Errors of estimates are part of the standard error of a difference."""
    kinds = [Exact, Integrated, Bounded, Composite, BySegment]
    subjects = {kind.__name__: by_segment(kind) for kind in kinds}
    measures = {name: find_likelihood_measure(s, 2) for name, s in subjects.items()}
    by_name = {name: (subject, measures[name].name) for name, subject in subjects.items()}
    rows = make_memory_rows(two_columns(np.arange(900) % 3))
    scores = score_models(by_name, rows, SERIAL, 0)
    models = [
        {"name": name, **describe_scores(subject, measures[name], scores.models[name])}
        for name, subject in subjects.items()
    ]
    pairs = {tuple(one["models"]): one for one in describe_differences(models, scores)}
    compared = {pair for pair, one in pairs.items() if "nats_per_row" in one}
    assert compared == {("Exact", "Integrated"), ("Exact", "Bounded"), ("Integrated", "Bounded")}
    assert len(pairs) == 10
    assert all("wrong_bits" in one for one in pairs.values())
    constant = pairs["Integrated", "Bounded"]["nats_per_row"]
    assert constant == {
        "difference": pytest.approx(1.0),
        "standard_error": pytest.approx(0.02),
        "is_significant": True,
    }


def test_large_blocks_are_scored_in_parts_and_by_threads_alike() -> None:
    data = DenseData(drawn(800_000))
    subject = mixture()
    scores = [
        score_rows(subject, "log_likelihood", make_memory_rows(data, sizes), executor)
        for sizes, executor in (
            ([800_000], SERIAL),
            ([50_000] * 16, SERIAL),
            ([50_000] * 16, ThreadsExecutor(3)),
        )
    ]
    assert scores[1].objective == scores[2].objective
    assert scores[1].objective == pytest.approx(scores[0].objective, rel=1e-12)
    for name, value in scores[1].to_arrays().items():
        assert scores[2].to_arrays()[name].tobytes() == value.tobytes()
        np.testing.assert_allclose(value, scores[0].to_arrays()[name], rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Exact, {"kind": "exact", "log_likelihood": -2.0, "estimation_error": 0.0}),
        (Estimated, {"kind": "estimate", "log_likelihood": -2.0, "estimation_error": 0.5 / 30}),
        (Integrated, {"kind": "estimate", "log_likelihood": -2.0, "estimation_error": 0.02}),
        (Bounded, {"kind": "bound", "lower_bound": -3.0}),
        (
            Refusing,
            {"kind": "bound", "lower_bound": -3.0, "refusals": ["Expected fewer features."]},
        ),
        (Composite, {"kind": "composite", "composite_log_likelihood": -4.0}),
        (BySegment, {"kind": "none"}),
    ],
)
def test_a_measure_is_called_what_it_is(kind: type[BySegment], expected: dict[str, Any]) -> None:
    subject = by_segment(kind)
    measure = find_likelihood_measure(subject, 2)
    rows = make_memory_rows(two_columns(np.arange(900) % 3))
    found = describe_likelihood(measure, score_rows(subject, measure.name, rows))
    assert found.items() >= {name: pytest.approx(x) for name, x in expected.items()}.items()


def test_segments_are_those_of_the_model() -> None:
    labels = np.repeat([0, 1, 2], [500, 100, 50])
    subject = by_segment(Exact, (2, 0, 1))
    sums = score_rows(subject, "log_likelihood", make_memory_rows(two_columns(labels)))
    assert sums.objective == pytest.approx(-500 * 3 - 100 * 1 - 50 * 2)
    assert sums.values["segment_rows"].tolist() == [500, 100, 50]


@pytest.mark.parametrize("nats", [-np.inf, -1e200])
def test_a_row_without_a_usable_likelihood_is_named(
    nats: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Infinite, "nats", nats)
    rows = make_memory_rows(two_columns(np.zeros(20, np.int64)))
    with pytest.raises(FitError, match="row 8: the log_likelihood is -"):
        score_rows(by_segment(Infinite, (0,)), "log_likelihood", rows)


def test_the_first_baseline_is_independence_with_one_pseudo_count() -> None:
    X = drawn(300)
    features = make_binary_features([f"x{i}" for i in range(X.shape[1])])
    fitted = {
        name: EvaluatedModel(
            model, fit_model(model, make_memory_rows(DenseData(X)), SERIAL).params, NO_SEGMENTS
        )
        for name, model in make_baseline_models(len(X), features).items()
    }
    p = (X.sum(axis=0) + 1) / (len(X) + 2)
    expected = np.where(X, np.log(p), np.log(1 - p)).sum(axis=1).mean()
    scores = [
        score_rows(subject, "log_likelihood", make_memory_rows(DenseData(X))).objective / len(X)
        for subject in fitted.values()
    ]
    assert scores[0] == pytest.approx(expected)
    assert scores[1] > scores[0] + 0.1
    assert [m.n_components for m in make_baseline_models(7, features).values()] == [1, 7]


# --- shares of features and pairs ----------------------------------------------------------------


def exact_pairs(subject: EvaluatedModel) -> NDArray[np.float64]:
    p = subject.params.probabilities
    pairs = np.einsum("k,ki,kj->ij", subject.params.weights, p, p)
    np.fill_diagonal(pairs, subject.params.weights @ p)
    return pairs


def test_implied_pairs_are_those_of_the_model_wherever_they_are_drawn() -> None:
    subject, exact = mixture(), exact_pairs(mixture())
    drawn_pairs = [
        count_implied_pairs(subject, NO_SEGMENTS, 6, ALL, executor, 5)
        for executor in (SERIAL, ThreadsExecutor(3))
    ]
    assert drawn_pairs[0].joint.tobytes() == drawn_pairs[1].joint.tobytes()
    assert drawn_pairs[0].n_rows == N_SAMPLE_ROWS
    error = np.sqrt(exact * (1 - exact) / N_SAMPLE_ROWS)
    assert (np.abs(drawn_pairs[0].joint[0] / N_SAMPLE_ROWS - exact) < 5 * error).all()
    other = count_implied_pairs(subject, NO_SEGMENTS, 6, ALL, SERIAL, 6)
    assert other.joint.tobytes() != drawn_pairs[0].joint.tobytes()


def test_segments_are_drawn_as_often_as_they_are_in_the_data() -> None:
    subject = by_segment(BySegment, (2, -1, 0))
    implied = count_implied_pairs(subject, np.array([300, 0, 100]), 2, ALL[:2], SERIAL, 0)
    assert implied.n_rows == N_SAMPLE_ROWS
    shares = implied.joint[0].diagonal() / N_SAMPLE_ROWS
    np.testing.assert_allclose(shares, 0.75 * 0.9 + 0.25 * 0.1, atol=0.005)


def test_the_true_model_differs_by_chance_and_another_by_more() -> None:
    X = drawn(20_000)
    observed = count_observed_pairs(make_memory_rows(DenseData(X), [5000] * 4), ALL, SERIAL)
    means = mixture(np.ones(1), (WEIGHTS @ PROBABILITIES)[None])
    true, flat = (
        compare_pairs(observed, count_implied_pairs(subject, NO_SEGMENTS, 6, ALL, SERIAL, 1))
        for subject in (mixture(), means)
    )
    assert np.abs(true.z).max() < 4.5
    assert true.rmse < 2 * true.chance_rmse
    assert flat.features[flat.find_largest(1)[0]].tolist() == [0, 1]
    assert flat.rmse > 10 * flat.chance_rmse
    exact = exact_pairs(mixture())[0, 1]
    assert flat.observed[0] == pytest.approx(exact, abs=0.02)
    margins = compare_features(observed, count_implied_pairs(means, NO_SEGMENTS, 6, ALL, SERIAL, 1))
    assert np.abs(margins.z).max() < 4.5
    np.testing.assert_allclose(margins.observed, X.mean(axis=0))


def test_scores_in_standard_errors_are_standard_normal() -> None:
    """Over many data sets drawn from the model itself."""
    implied = count_implied_pairs(mixture(), NO_SEGMENTS, 6, ALL, SERIAL, 2)
    scores = [
        compare_pairs(
            count_observed_pairs(make_memory_rows(DenseData(drawn(3000, seed))), ALL, SERIAL),
            implied,
        ).z
        for seed in range(1, 150)
    ]
    assert np.std(scores, axis=0) == pytest.approx(np.ones(15), abs=0.25)


@given(data=tables(st.just(6)))
def test_pairs_never_observed_together_are_left_out(data: DenseData) -> None:
    observed = count_observed_pairs(make_memory_rows(data), ALL, SERIAL)
    found = compare_pairs(observed, pair_counts())
    together = data.mask.T.astype(int) @ data.mask
    i, j = np.triu_indices(6, 1)
    seen = together[i, j] > 0
    np.testing.assert_array_equal(found.features, np.column_stack([i, j])[seen])
    joint = ((data.X & data.mask).T.astype(int) @ (data.X & data.mask))[i, j]
    np.testing.assert_allclose(found.observed, joint[seen] / together[i, j][seen])
    assert np.isfinite([*found.z, found.rmse, found.chance_rmse]).all()
    bins = found.bin_shares()
    assert sum(one["number"] for one in bins) == seen.sum()
    assert all(one["from"] <= one["implied"] <= one["to"] for one in bins)
    assert {one["from"] for one in bins} <= set(BIN_EDGES)


def pair_counts() -> PairCounts:
    return count_observed_pairs(make_memory_rows(DenseData(drawn(500))), ALL, SERIAL)


def test_wide_data_are_counted_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = make_memory_rows(DenseData(drawn(500)))
    whole = count_observed_pairs(rows, ALL, SERIAL)
    monkeypatch.setattr("pipeline.evaluation.calibration.TASK_MEMORY", 600)
    tiled = count_observed_pairs(rows, ALL, SERIAL)
    np.testing.assert_array_equal(tiled.joint, whole.joint)


def test_of_very_many_features_some_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.evaluation.calibration.MAX_COMPARED_FEATURES", 3)
    judged = choose_compared_features(6, 0)
    assert len(judged) == 3
    assert (np.diff(judged) > 0).all()
    assert (
        judged.tolist()
        == choose_compared_features(6, 0).tolist()
        != choose_compared_features(6, 1).tolist()
    )
    rows = make_memory_rows(DenseData(drawn(500)))
    whole, some = (count_observed_pairs(rows, features, SERIAL) for features in (ALL, judged))
    np.testing.assert_array_equal(some.joint[0], whole.joint[0][np.ix_(judged, judged)])
    wanted, found = (
        count_implied_pairs(mixture(), NO_SEGMENTS, 6, features, SERIAL, 2)
        for features in (ALL, judged)
    )
    np.testing.assert_array_equal(found.joint[0], wanted.joint[0][np.ix_(judged, judged)])


@given(
    n_folds=st.integers(2, 12),
    n_hands=st.integers(1, 50),
    left=st.integers(0, 11),
    seed=st.integers(0, 2**63 - 1),
)
def test_folds_are_of_one_size(n_folds, n_hands, left, seed):
    n_rows = n_hands * n_folds + left % n_folds
    sizes = np.bincount(assign_folds(np.arange(n_rows), n_folds, seed), minlength=n_folds)
    assert sizes.sum() == n_rows
    assert set(sizes) <= {n_hands, n_hands + 1}


def test_a_row_is_dealt_by_its_number_and_the_seed():
    rows = np.arange(1000)
    folds = assign_folds(rows, 5, 3)
    np.testing.assert_array_equal(assign_folds(rows[::-7], 5, 3), folds[::-7])
    assert 0.1 < (assign_folds(rows, 5, 4) == folds).mean() < 0.3  # a fifth by chance
    assert 0.1 < (folds == rows % 5).mean() < 0.3


def kept(rows: RowSource) -> np.ndarray:
    blocks = [block for key in range(rows.n_chunks) for block in iter_blocks(rows.read(key))]
    return np.sort(np.concatenate([block.rows for block in blocks]))


def test_shares_that_are_certain_on_both_sides_have_no_distance() -> None:
    counts = pair_counts()
    joint = counts.joint.copy()
    joint[0, 0, 1] = 0
    never = replace(counts, joint=joint)
    assert compare_pairs(never, never).z[0] == 0.0
