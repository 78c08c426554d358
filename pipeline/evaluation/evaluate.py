"""How well a fitted model describes rows: likelihood, reconstruction and cross-validation folds.

Likelihoods and losses are sums over rows, collected in one pass. `pipeline.evaluation.calibration`
compares the shares of ones of features and of pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.data.blocks import BinaryBlock, PackedChunk, RowSource, number_rows, start_reading
from pipeline.data.features import (
    Feature,
    HasFeatures,
    are_binary,
    find_continuous,
    list_features,
    select_with_levels,
)
from pipeline.data.matching import find_segment_indices, make_empty_rows
from pipeline.errors import FitError
from pipeline.evaluation.prediction import TargetLabels, describe_prediction, summarize_predictions
from pipeline.evaluation.value_scores import (
    ReconstructionSums,
    compute_level_losses,
    compute_number_losses,
    describe_level_losses,
    describe_number_losses,
)
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.inference.sequences import link_blocks
from pipeline.inference.transform import compute_likelihoods
from pipeline.models.base import Model
from pipeline.models.capabilities import (
    CanReconstruct,
    HasCompositeLikelihood,
    HasContinuousFeatures,
    HasLogLikelihood,
    HasLowerBound,
    HasPseudoLikelihood,
    HasSequences,
    LogLikelihood,
)
from pipeline.models.structure import Structure
from pipeline.numerics.metrics import compute_bit_losses
from pipeline.passes.arrival_order import cut_in_arrival_order
from pipeline.passes.map_reduce import collect_statistics
from pipeline.random import RowRandom
from pipeline.statistics.sums import JointStatistics, Sums

if TYPE_CHECKING:
    from pipeline.models.bernoulli_mixture.model import BernoulliMixture


_LIKELIHOOD_MEASURES: dict[str, tuple[type, str]] = {
    "log_likelihood": (HasLogLikelihood, "exact"),
    "lower_bound": (HasLowerBound, "bound"),
    "pseudo_log_likelihood": (HasPseudoLikelihood, "pseudo"),
    "composite_log_likelihood": (HasCompositeLikelihood, "composite"),
}
_LIKELIHOOD_KINDS = {"exact", "estimate", "bound"}  # kinds that are comparable with each other
_CELLS_AT_ONCE = 1 << 21
_LEVEL, _MIN_ROWS = 0.05, 6
"""Significance level of tests of differences, and the fewest rows that are tested.

In five rows, all differences have the same sign by chance with probability 2/2⁵ > 0.05.
"""


@dataclass(frozen=True)
class EvaluatedModel:
    """A fitted model, matched with the segments and labels of a dataset.

    Attributes
    ----------
    model, params
        The fitted model.
    segments
        The model's index for each segment of the dataset; empty if the model has no segments.
    labels
        The labels that the model predicts, as the dataset encodes them, if any.
    features
        The features of the dataset; empty if all are binary.
    """

    model: Model
    params: Any
    segments: Counts
    labels: TargetLabels | None = None
    features: tuple[Feature, ...] = ()

    @property
    def features_with_levels(self) -> tuple[Feature, ...]:
        """The features with levels; empty if all of these are binary."""
        features = select_with_levels(self.features)
        return () if are_binary(features) else features

    @property
    def continuous_features(self) -> list[str]:
        """Names of the continuous features."""
        return [self.features[index].name for index in find_continuous(self.features)]


def match_segments(
    model: Model,
    params: Any,
    fitted_segments: Mapping[str, int],
    segment_names: Sequence[str],
    labels: TargetLabels | None = None,
    features: tuple[Feature, ...] = (),
) -> EvaluatedModel:
    """Match the segments of a fitted model with those of a dataset, by name.

    `fitted_segments` maps the names of segments with their own parameters to their indices.
    `features` are the features of the dataset; empty if all are binary.
    """
    names = segment_names if fitted_segments else ()
    segments = find_segment_indices(fitted_segments, names)
    return EvaluatedModel(model, params, segments, labels, features)


class LikelihoodMeasure(NamedTuple):
    """The best available measure of how probable a model finds a row.

    Attributes
    ----------
    name
        `log_likelihood`; `lower_bound`; `pseudo_log_likelihood`, the sum over features given all
        other features; `composite_log_likelihood`, the sum over pairs of features; or None. The
        pseudo- and the composite log-likelihood are not likelihoods of a row.
    refusals
        Why the model cannot compute the measures that come earlier in this list.
    """

    name: str | None
    refusals: tuple[str, ...] = ()


def check_has_levels(dataset: HasFeatures, option: str) -> None:
    """Refuse an option that compares features with levels if all are continuous."""
    if not select_with_levels(list_features(dataset)):
        raise FitError(
            f"{option} compares features with levels, but all features are continuous. "
            "Leave it out."
        )


def check_has_order(dataset: HasFeatures, option: str) -> None:
    """Refuse an option that adds up or orders levels if some features are nominal."""
    if nominal := [own.name for own in list_features(dataset) if own.kind == "nominal"]:
        raise FitError(
            f"{option} takes levels as numbers, but the categories of {nominal[0]!r} have no "
            "order. Name a fit without nominal features."
        )


def make_baseline_models(n_rows: int, features: Sequence[Feature]) -> dict[str, BernoulliMixture]:
    """Return simple models that any other model fitted to `n_rows` rows should beat.

    Their fits end early: what further passes would gain is far below the standard errors of scores.
    """
    from pipeline.models.bernoulli_mixture.model import BernoulliMixture  # slow to import

    n_components = min(20, n_rows)
    models = {
        "independent features": BernoulliMixture(n_components=1, smoothing=1.0, errors="none"),
        f"mixture of {n_components}": BernoulliMixture(n_components, errors="none", tol=1e-3),
    }
    structure = Structure(features=tuple(features))
    return {name: model.with_structure(structure) for name, model in models.items()}


def find_likelihood_measure(subject: EvaluatedModel, n_features: int) -> LikelihoodMeasure:
    """Find the best measure of a fitted model by trying each one on a row of zeros."""
    segment = int(subject.segments[0]) if len(subject.segments) else 0
    block = make_empty_rows(subject.params, 1, n_features, segment)
    refusals = []
    for name, (capability, _) in _LIKELIHOOD_MEASURES.items():
        if not isinstance(subject.model, capability):
            continue
        try:
            getattr(subject.model, name)(subject.params, block, RowRandom(0))
        except FitError as error:
            refusals.append(str(error))
        else:
            return LikelihoodMeasure(name, tuple(refusals))
    return LikelihoodMeasure(None, tuple(refusals))


def evaluate_rows(
    subject: EvaluatedModel,
    rows: RowSource,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Describe how well a model fits rows; parameters as for `score_models`."""
    measure = find_likelihood_measure(subject, rows.n_features)
    scores = score_models({"": (subject, measure.name)}, rows, executor, seed, progress)
    return describe_scores(subject, measure, scores.models[""])


K = TypeVar("K")


class ModelScores(NamedTuple):
    """Sums over the same rows: of each model, and of the differences between each two models.

    Attributes
    ----------
    models
        Likelihoods and losses of each model, by its name.
    pairs
        Row-wise differences, first minus second model, and their squares, by both names.
    """

    models: Mapping[str, Sums]
    pairs: Mapping[tuple[str, str], Sums]

    def merge(self, other: ModelScores) -> ModelScores:
        """Add further rows; models that were scored on only one of both are left out."""
        return ModelScores(
            _merge_common(self.models, other.models), _merge_common(self.pairs, other.pairs)
        )


def _merge_common(a: Mapping[K, Sums], b: Mapping[K, Sums]) -> dict[K, Sums]:
    return {key: sums.merge(b[key]) for key, sums in a.items() if key in b}


SubjectsByName = Mapping[str, tuple[EvaluatedModel, str | None]]
"""Fitted models, each with the name of its `LikelihoodMeasure`, by a name for error messages."""


def score_models(
    subjects: SubjectsByName,
    rows: RowSource,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
) -> ModelScores:
    """Sum likelihoods and losses of models, and their differences, over all rows in one pass.

    `seed` determines the codes; the other parameters are as for
    `pipeline.passes.map_reduce.collect_statistics`.
    """
    conditions: dict[str, Callable[[BinaryBlock], BinaryBlock]] = {}
    for name, (subject, _) in subjects.items():
        if isinstance(subject.model, HasSequences):
            rows = cut_in_arrival_order(rows)
            own = (subject.model, subject.params, rows, executor, progress)
            conditions[name] = link_blocks(*own)
    if conditions and any(len(subject.segments) for subject, _ in subjects.values()):
        raise FitError(
            f"{next(iter(conditions))} takes rows in their order, other fits by segment. Evaluate "
            "them one by one."
        )
    score = partial(_score_block, subjects, conditions, RowRandom(seed))
    joint = collect_statistics(score, rows, executor, "score", progress=progress)
    keys = [*subjects, *combinations(subjects, 2)]
    parts: dict[Any, Any] = dict(zip(keys, joint.parts, strict=True))
    models = {name: parts.pop(name) for name in subjects}
    return ModelScores(models, parts)


def _score_block(
    subjects: SubjectsByName,
    conditions: Mapping[str, Callable[[BinaryBlock], BinaryBlock]],
    rng: RowRandom,
    block: BinaryBlock,
) -> JointStatistics:
    blocks = [conditions[name](block) if name in conditions else block for name in subjects]
    parts = zip(*map(split_block, blocks), strict=True)
    return reduce(
        JointStatistics.merge, (_score_parts(subjects, rng, own_parts) for own_parts in parts)
    )


def split_block(block: BinaryBlock) -> Iterator[BinaryBlock]:
    """Cut a block into parts whose dense matrices of floats stay small."""
    n_columns = block.n_features + (0 if block.numbers is None else len(block.numbers))
    size = 64 * max(1, _CELLS_AT_ONCE // (64 * n_columns))
    for start in range(0, block.n_samples, size):
        yield block.take_rows(range(start, min(start + size, block.n_samples)))


class _RowScores(NamedTuple):
    """Scores of single rows, (n_samples,) each.

    `errors` has the numbers of wrong and of observed values: of `bits`, and of `levels` if features
    have several; it is empty if the model cannot reconstruct rows.
    """

    nats: Array
    errors: Mapping[str, tuple[Counts, Counts]]


def _score_parts(
    subjects: SubjectsByName, rng: RowRandom, blocks: Sequence[BinaryBlock]
) -> JointStatistics:
    """Score the same rows by each model; `blocks` are as each model needs them."""
    sums, row_scores = [], []
    for block, (name, (subject, measure)) in zip(blocks, subjects.items(), strict=True):
        try:
            model_sums, scores = _score_rows(subject, measure, rng, block)
        except FitError as error:
            raise (error.with_prefix(name) if name else error) from None
        sums.append(model_sums)
        row_scores.append(scores)
    return JointStatistics((*sums, *(_sum_differences(*p) for p in combinations(row_scores, 2))))


def _score_rows(
    subject: EvaluatedModel, measure: str | None, rng: RowRandom, block: BinaryBlock
) -> tuple[Sums, _RowScores]:
    predicted = summarize_predictions(subject.labels, subject.model, subject.params, block, rng)
    segment_rows = np.zeros(len(subject.segments), np.int64)
    if len(subject.segments):
        segment_rows[block.segment] = block.n_samples
        block = replace(block, segment=int(subject.segments[block.segment]))
    n = block.n_samples
    if measure is None:
        scores = LogLikelihood(np.zeros(n), np.zeros(n))
    else:
        scores = compute_likelihoods(subject.model, measure, subject.params, block, rng)
    shared = np.broadcast_to(scores.shared_error + scores.integration_error, n)
    losses, errors = _compute_losses(subject, rng, block)
    values = {
        "squared_nats": np.array((scores.nats**2).sum()),
        "error_variance": np.array((scores.standard_error**2).sum()),
        "shared_error": np.array(shared.sum()),
        "segment_rows": segment_rows,
        **losses,
        **predicted,
    }
    sums = ReconstructionSums(n, n, float(scores.nats.sum()), values)
    return sums, _RowScores(scores.nats, errors)


def _sum_differences(a: _RowScores, b: _RowScores) -> Sums:
    nats = a.nats - b.nats
    values = {"squared_nats": np.array((nats**2).sum())}
    for kind in (kind for kind in a.errors if kind in b.errors):
        wrong, n_observed = a.errors[kind][0] - b.errors[kind][0], a.errors[kind][1]
        products = {
            f"wrong_{kind}": wrong,
            f"observed_{kind}": n_observed,
            f"squared_wrong_{kind}": wrong**2,
            f"squared_observed_{kind}": n_observed**2,
            f"wrong_by_observed_{kind}": wrong * n_observed,
        }
        values |= {name: np.array(products[name].sum()) for name in products}
    return Sums(len(nats), len(nats), float(nats.sum()), values)


def _compute_losses(
    subject: EvaluatedModel, rng: RowRandom, block: BinaryBlock
) -> tuple[dict[str, NDArray[Any]], dict[str, tuple[Counts, Counts]]]:
    """Return sums of reconstruction losses, and the errors of each row as in `_RowScores`.

    Only observed values count. If the model cannot reconstruct, there are no sums and errors.
    """
    if not isinstance(subject.model, CanReconstruct):
        return {}, {}
    codes = subject.model.transform(subject.params, block, rng)["mean"]
    segments = np.full(block.n_samples, block.segment)
    losses: dict[str, NDArray[Any]] = {}
    errors: dict[str, tuple[Counts, Counts]] = {}
    if block.n_features:
        probabilities = subject.model.reconstruct(subject.params, codes, segments)
        losses, errors["bits"] = _compute_bit_losses(block, probabilities)
        if features := subject.features_with_levels:
            levels = compute_level_losses(block, probabilities, features)
            losses |= levels.values
            errors["levels"] = levels.wrong_levels, levels.n_observed
    if subject.continuous_features and isinstance(subject.model, HasContinuousFeatures):
        numbers = subject.model.reconstruct_numbers(subject.params, codes, segments)
        losses |= compute_number_losses(block, numbers)
    return losses, errors


def _compute_bit_losses(
    block: BinaryBlock, probabilities: Array
) -> tuple[dict[str, NDArray[Any]], tuple[Counts, Counts]]:
    """Return the sums and errors of bits, given the probability that each is 1."""
    wrong, nats = compute_bit_losses(block.unpack_values(), probabilities)
    n_observed = np.full(block.n_samples, block.n_features)
    if (mask := block.unpack_mask()) is not None:
        wrong, nats = wrong & (mask == 1), nats * mask
        n_observed = mask.sum(axis=1, dtype=np.int64)
    wrong_bits = wrong.sum(axis=1)
    sums = {
        "wrong_bits": wrong_bits.sum(),
        "nll_per_bit": nats.sum(),
        "observed": n_observed.sum(),
    }
    return {name: np.asarray(value) for name, value in sums.items()}, (wrong_bits, n_observed)


def describe_scores(
    subject: EvaluatedModel, measure: LikelihoodMeasure, sums: Sums
) -> dict[str, Any]:
    """Combine `describe_likelihood`, `describe_reconstruction` and `describe_prediction`."""
    return {
        **describe_likelihood(measure, sums),
        **describe_reconstruction(sums, subject),
        **describe_prediction(subject.labels, sums.values),
    }


def describe_likelihood(measure: LikelihoodMeasure, sums: Sums) -> dict[str, Any]:
    """Describe the mean likelihood per row.

    Returns
    -------
    dict
        `kind`: exact, estimate, bound, pseudo, composite or none; the mean per row in nats, under
        the name of the measure, and in `bits`; `standard_error`, the error due to the sampling of
        rows; `estimation_error`, the error of the estimate itself, part of which is common to all
        rows and does not shrink with their number; `refusals`.
    """
    if measure.name is None:
        return {"kind": "none", "refusals": list(measure.refusals)}
    n, mean = sums.n_rows, sums.objective / sums.n_rows
    row_variance = float(sums.values["error_variance"])
    shared = float(sums.values["shared_error"]) / n
    error = float(np.hypot(np.sqrt(row_variance) / n, shared))
    kind = "estimate" if error > 0 else _LIKELIHOOD_MEASURES[measure.name][1]
    return {
        "kind": kind,
        measure.name: mean,
        "bits": mean / np.log(2),
        "standard_error": _compute_mean_error(sums),
        "estimation_error": error,
        "refusals": list(measure.refusals),
    }


def _compute_mean_error(sums: Sums) -> float:
    """Return the standard error of the mean of nats per row; 0 for a single row."""
    n = sums.n_rows
    squares = float(sums.values["squared_nats"]) - sums.objective**2 / n
    return float(np.sqrt(max(squares, 0.0) / n / max(n - 1, 1)))


def describe_reconstruction(sums: Sums, subject: EvaluatedModel | None = None) -> dict[str, Any]:
    """Return the mean reconstruction losses per observed value; empty without reconstruction.

    Features of a `subject` with several levels also have the losses of `describe_level_losses`, and
    continuous ones the entries of `describe_number_losses`. With nominal features, there are none
    of bits, which depend on the order of categories.
    """
    found: dict[str, Any] = {}
    features = () if subject is None else subject.features_with_levels
    if "observed" in sums.values and not any(own.kind == "nominal" for own in features):
        n_observed = max(int(sums.values["observed"]), 1)
        for name in ("wrong_bits", "nll_per_bit"):
            found[name] = float(sums.values[name]) / n_observed
    if subject is not None and "level_table" in sums.values:
        found |= describe_level_losses(sums.values, subject.features_with_levels)
    if subject is not None and "number_means" in sums.values:
        found |= describe_number_losses(sums.values, subject.continuous_features)
    return found


def describe_differences(
    models: Sequence[Mapping[str, Any]], scores: ModelScores
) -> list[dict[str, Any]]:
    """Describe how each two models differ, with standard errors from row-wise differences.

    Parameters
    ----------
    models
        Descriptions from `describe_scores`, each with the `name` of the model.
    scores
        The scores of these models.

    Returns
    -------
    list of dict
        `models`, the two names; `nats_per_row`, if their likelihoods are comparable; `wrong_bits`,
        and `wrong_levels` of features with several, if both reconstruct rows. Each has the
        `difference`, first minus second model, its `standard_error`, and whether it
        `is_significant`: at the 5 % level of a paired t test, of six rows or more.
    """
    by_name = {model["name"]: model for model in models}
    return [
        {"models": [first, second], **_describe_pair(by_name[first], by_name[second], sums)}
        for (first, second), sums in scores.pairs.items()
    ]


def is_comparable(kind: str, other: str) -> bool:
    """Return whether likelihoods of two kinds can be compared."""
    return kind != "none" and (kind == other or {kind, other} <= _LIKELIHOOD_KINDS)


def _describe_pair(a: Mapping[str, Any], b: Mapping[str, Any], sums: Sums) -> dict[str, Any]:
    differences, n = {}, sums.n_rows
    if is_comparable(a["kind"], b["kind"]):
        errors = [_compute_mean_error(sums), a["estimation_error"], b["estimation_error"]]
        differences["nats_per_row"] = (sums.objective / n, float(np.linalg.norm(errors)))
    for kind in ("bits", "levels"):
        if sums.values.get(f"observed_{kind}", 0):
            differences[f"wrong_{kind}"] = _compare_errors(kind, sums.values, n)
    quantile = float(scipy.special.stdtrit(n - 1, 1 - _LEVEL / 2))
    return {
        name: {
            "difference": difference,
            "standard_error": error,
            "is_significant": n >= _MIN_ROWS and abs(difference) > quantile * error,
        }
        for name, (difference, error) in differences.items()
    }


def _compare_errors(kind: str, values: Mapping[str, NDArray[Any]], n: int) -> tuple[float, float]:
    """Return the difference in the share of wrong bits or levels, and its standard error.

    The share is a ratio of sums over `n` rows. Its error follows from the residuals of the rows:
    number of wrong values − share × number of observed values.
    """
    n_observed = int(values[f"observed_{kind}"])
    share = int(values[f"wrong_{kind}"]) / n_observed
    squares = (
        float(values[f"squared_wrong_{kind}"])
        - 2 * share * float(values[f"wrong_by_observed_{kind}"])
        + share**2 * float(values[f"squared_observed_{kind}"])
    )
    return share, float(np.sqrt(max(squares, 0.0) * n / max(n - 1, 1))) / n_observed


def assign_folds(rows: NDArray[np.int64], n_folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of each original row, (n_rows,)."""
    # Every group of n_folds consecutive rows is spread over all folds in random order.
    groups, places = np.divmod(rows, n_folds)
    draws = RowRandom(seed).stream("folds").uniform(groups, n_folds)
    row_draws = np.take_along_axis(draws, places[:, None], axis=1)
    folds: NDArray[np.int64] = (draws < row_draws).sum(axis=1)
    return folds


@dataclass(frozen=True)
class RowFold:
    """One fold of a cross-validation; `seed` assigns rows to folds."""

    index: int
    n_folds: int
    seed: int

    def select_held_out(self, rows: RowSource) -> RowSource:
        """Return the rows of the fold."""
        return replace(rows, read=_FoldReader(rows.read, self, held_out=True))

    def select_training(self, rows: RowSource) -> RowSource:
        """Return all other rows."""
        return replace(rows, read=_FoldReader(rows.read, self, held_out=False))


@dataclass(frozen=True)
class _FoldReader:
    """Reads chunks in any process and keeps the rows inside or outside a fold."""

    read: Callable[[int], PackedChunk]
    fold: RowFold
    held_out: bool

    def __call__(self, key: int) -> PackedChunk:
        chunk = self.read(key)
        folds = assign_folds(number_rows(chunk.row_numbers), self.fold.n_folds, self.fold.seed)
        keep = (folds == self.fold.index) == self.held_out
        if chunk.keep is not None:
            keep &= chunk.keep
        return replace(chunk, keep=keep)  # type: ignore[type-var]

    def read_ahead(self, keys: Iterable[int]) -> None:
        """Start to read the chunks that are needed next."""
        start_reading(self.read, keys)
