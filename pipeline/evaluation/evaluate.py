"""How well a fitted model describes rows: their likelihood, and their bits coded and decoded.

Both are sums over rows, one pass of any executor. `pipeline.evaluation.calibration` compares
shares of
features and pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, PackedChunk, RowSource, pack_block
from pipeline.data.segments import find_segment_indices
from pipeline.errors import FitError
from pipeline.evaluation.prediction import (
    TargetLabels,
    describe_prediction,
    summarize_predictions,
)
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.models.base import Model
from pipeline.models.bernoulli_mixture.model import BernoulliMixture
from pipeline.models.capabilities import (
    CanReconstruct,
    HasCompositeLikelihood,
    HasLogLikelihood,
    HasLowerBound,
    HasPseudoLikelihood,
    LogLikelihood,
)
from pipeline.numerics.metrics import reconstruction_losses
from pipeline.passes.map_reduce import collect_statistics
from pipeline.random import RowRandom
from pipeline.statistics.sums import Sums

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_LIKELIHOOD_MEASURES: dict[str, tuple[type, str]] = {
    "log_likelihood": (HasLogLikelihood, "exact"),
    "lower_bound": (HasLowerBound, "bound"),
    "pseudo_log_likelihood": (HasPseudoLikelihood, "pseudo"),
    "composite_log_likelihood": (HasCompositeLikelihood, "composite"),
}
_CELLS_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class EvaluatedModel:
    """A fitted model and where it stands among the segments of the data.

    Attributes
    ----------
    model, params
        The fitted model.
    segments
        The model's index of every segment of the data; empty where the model has none.
    labels
        What the model predicts, as the data have it; None where it predicts nothing.
    """

    model: Model
    params: Any
    segments: Counts
    labels: TargetLabels | None = None


def match_segments(
    model: Model,
    params: Any,
    fitted_segments: Mapping[str, int],
    segment_names: Sequence[str],
    labels: TargetLabels | None = None,
) -> EvaluatedModel:
    """Match the segments of a fitted model with those of a dataset, by name.

    Parameters
    ----------
    model, params
        The fitted model.
    fitted_segments
        Index of each segment that has its own parameters, by name.
    segment_names
        Names of the dataset's segments.
    labels
        The labels that the model predicts.
    """
    names = segment_names if fitted_segments else ()
    return EvaluatedModel(model, params, find_segment_indices(fitted_segments, names), labels)


class LikelihoodMeasure(NamedTuple):
    """What a model says of the probability of a row.

    Attributes
    ----------
    name
        `log_likelihood`, `lower_bound`, `pseudo_log_likelihood` (the sum over features given all
        others), `composite_log_likelihood` (the sum over pairs of features), or None where the
        model offers nothing. The last two are no likelihood of a row.
    refusals
        Why those before it were not taken.
    """

    name: str | None
    refusals: tuple[str, ...] = ()


def make_baseline_models(n_rows: int) -> dict[str, Model]:
    """Return the simple models that any other model should beat, given the number of rows."""
    n_components = min(20, n_rows)
    return {
        "independent features": BernoulliMixture(n_components=1, smoothing=1.0),
        f"mixture of {n_components}": BernoulliMixture(n_components=n_components),
    }


def find_likelihood_measure(subject: EvaluatedModel, n_features: int) -> LikelihoodMeasure:
    """Find what a model offers, by asking for the probability of a row without ones."""
    segment = int(subject.segments[0]) if len(subject.segments) else 0
    block = pack_block(np.zeros((1, n_features), np.uint8), segment=segment)
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
) -> tuple[dict[str, Any], Sums]:
    """Describe how well a model fits rows: likelihood, reconstruction and predicted labels.

    Returns
    -------
    tuple
        The description, as of `describe_likelihood`, `describe_reconstruction` and
        `describe_prediction`; and the sums of `score_rows`.

    Raises
    ------
    FitError
        If there are no rows, or a row's likelihood is not finite.
    """
    measure = find_likelihood_measure(subject, rows.n_features)
    sums = score_rows(subject, measure.name, rows, executor, seed, progress)
    description = {
        **describe_likelihood(measure, sums),
        **describe_reconstruction(sums),
        **describe_prediction(subject.labels, sums.values),
    }
    return description, sums


def score_rows(
    subject: EvaluatedModel,
    measure: str | None,
    rows: RowSource,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
) -> Sums:
    """Sum likelihoods and losses over all rows.

    Parameters
    ----------
    subject
        What is evaluated.
    measure
        Name of the measure of likelihood, or None.
    rows, executor, seed, progress
        As for `pipeline.passes.map_reduce.collect_statistics`; the seed is that of the codes.

    Raises
    ------
    FitError
        If there are no rows, or a row's likelihood is not finite.
    """
    score = partial(_score_block, subject, measure, RowRandom(seed))
    return collect_statistics(score, rows, executor, "score", progress=progress)


def _score_block(
    subject: EvaluatedModel, measure: str | None, rng: RowRandom, block: BinaryBlock
) -> Sums:
    predicted = summarize_predictions(subject.labels, subject.model, subject.params, block, rng)
    segment_rows = np.zeros(len(subject.segments), np.int64)
    here = block
    if len(subject.segments):
        segment_rows[block.segment] = block.n_samples
        here = replace(block, segment=int(subject.segments[block.segment]))
    scored = reduce(
        Sums.merge, (_score_part(subject, measure, rng, part) for part in _split_block(here))
    )
    return replace(scored, values={**scored.values, **predicted, "segment_rows": segment_rows})


def _split_block(block: BinaryBlock) -> Iterator[BinaryBlock]:
    """Cut a block so that a matrix of floats of its shape stays small."""
    size = 64 * max(1, _CELLS_AT_ONCE // (64 * block.n_features))
    for start in range(0, block.n_samples, size):
        yield block.take_rows(np.arange(start, min(start + size, block.n_samples)))


def _score_part(
    subject: EvaluatedModel, measure: str | None, rng: RowRandom, block: BinaryBlock
) -> Sums:
    found, n = _compute_likelihoods(subject, measure, rng, block), block.n_samples
    shared = np.broadcast_to(found.shared_error + found.integration_error, n)
    values = {
        "squared_nats": np.array((found.nats**2).sum()),
        "error_variance": np.array((found.standard_error**2).sum()),
        "shared_error": np.array(shared.sum()),
        **_sum_losses(subject, rng, block),
    }
    return Sums(n, float(found.nats.sum()), values)


def _compute_likelihoods(
    subject: EvaluatedModel, measure: str | None, rng: RowRandom, block: BinaryBlock
) -> LogLikelihood:
    """Return the measure of each row, and its standard error."""
    nothing = np.zeros(block.n_samples)
    if measure is None:
        return LogLikelihood(nothing, nothing)
    found = getattr(subject.model, measure)(subject.params, block, rng)
    scored = found if isinstance(found, LogLikelihood) else LogLikelihood(found, nothing)
    if not (finite := np.isfinite(scored.nats)).all():
        at = int(np.argmin(finite))
        raise FitError(
            f"row {block.rows[at] + 1}: Expected a finite {measure}, got {scored.nats[at]}. "
            "Fit again with other settings."
        )
    return scored


def _sum_losses(
    subject: EvaluatedModel, rng: RowRandom, block: BinaryBlock
) -> dict[str, NDArray[Any]]:
    """Sum the losses of reconstruction over observed values, where the model reconstructs."""
    if not isinstance(subject.model, CanReconstruct):
        return {}
    observed = np.ones((block.n_samples, block.n_features), np.bool_)
    if (mask := block.unpack_mask()) is not None:
        observed = mask.astype(np.bool_)
    codes = subject.model.transform(subject.params, block, rng)["mean"]
    segments = np.full(block.n_samples, block.segment)
    probabilities = subject.model.reconstruct(subject.params, codes, segments)
    n_observed = int(observed.sum())
    losses = {"wrong_bits": 0.0, "nll_per_bit": 0.0}
    if n_observed:
        losses = reconstruction_losses(block.unpack_values(), observed, probabilities)
    sums = {name: np.array(mean * n_observed) for name, mean in losses.items()}
    return {**sums, "observed": np.array(n_observed)}


def describe_likelihood(measure: LikelihoodMeasure, sums: Sums) -> dict[str, Any]:
    """Describe the likelihood of a row.

    Returns
    -------
    dict
        `kind`: exact, estimate, bound, pseudo, composite or none; the mean of a row in nats under
        the name of the measure, and in `bits`; `standard_error` of that mean for the choice of
        rows, and `estimation_error` of it for how it was estimated: row by row, or for all at once
        or by an approximation, which more rows do not lessen; `refusals`.
    """
    if measure.name is None:
        return {"kind": "none", "refusals": list(measure.refusals)}
    n, mean = sums.n_samples, sums.objective / sums.n_samples
    variance = max(float(sums.values["squared_nats"]) / n - mean**2, 0.0)
    own, shared = float(sums.values["error_variance"]), float(sums.values["shared_error"]) / n
    error = float(np.hypot(np.sqrt(own) / n, shared))
    kind = "estimate" if error > 0 else _LIKELIHOOD_MEASURES[measure.name][1]
    return {
        "kind": kind,
        measure.name: mean,
        "bits": mean / np.log(2),
        "standard_error": float(np.sqrt(variance / n)),
        "estimation_error": error,
        "refusals": list(measure.refusals),
    }


def describe_reconstruction(sums: Sums) -> dict[str, float]:
    """Return the mean loss per observed value, given the codes of its own row.

    There are none of a model that does not reconstruct.
    """
    if "observed" not in sums.values:
        return {}
    n_observed = max(int(sums.values["observed"]), 1)
    return {name: float(sums.values[name]) / n_observed for name in ("wrong_bits", "nll_per_bit")}


def assign_folds(rows: NDArray[np.int64], n_folds: int, seed: int) -> NDArray[np.int64]:
    """Return the fold of each original row, (n_rows,)."""
    hands, places = np.divmod(rows, n_folds)
    draws = RowRandom(seed).stream("folds").uniform(hands, n_folds)
    own = np.take_along_axis(draws, places[:, None], axis=1)
    folds: NDArray[np.int64] = (draws < own).sum(axis=1)
    return folds


@dataclass(frozen=True)
class RowFold:
    """One fold of several.

    Attributes
    ----------
    index, n_folds
        Which of how many.
    seed
        Of the deal.
    """

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
    """Reads chunks in any process, and keeps the rows of a fold, or all others."""

    read: Callable[[int], PackedChunk]
    fold: RowFold
    held_out: bool

    def __call__(self, key: int) -> PackedChunk:
        chunk = self.read(key)
        of_fold = assign_folds(chunk.rows, self.fold.n_folds, self.fold.seed) == self.fold.index
        keep = of_fold == self.held_out
        if chunk.keep is not None:
            keep &= chunk.keep
        return replace(chunk, keep=keep)  # type: ignore[type-var]
