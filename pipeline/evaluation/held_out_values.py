"""How well a model predicts values from the other values of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.data.features import Feature
from pipeline.evaluation.evaluate import EvaluatedModel
from pipeline.evaluation.neighbourhoods import SampledRows, split_by_segment
from pipeline.evaluation.value_scores import (
    average_scores,
    compute_number_losses,
    describe_number_losses,
    sum_value_losses,
)
from pipeline.executors.base import Executor
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.models.capabilities import CanImpute, HasContinuousFeatures
from pipeline.random import RowRandom

MAX_HELD_OUT_FEATURES = 20
"""Maximum number of continuous features that are predicted; a random choice if there are more."""
_INTERVAL = 0.9  # probability of the predicted interval


def describe_held_out_values(
    subject: EvaluatedModel,
    sample: SampledRows,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Predict observed values of sampled rows, one at a time, from all other values of their row.

    Features with levels are predicted by models that can impute them exactly. For a continuous
    feature, the code of the row is computed as if the value were missing, and the prediction is the
    expected value given this code. Other parameters are as for
    `pipeline.evaluation.neighbourhoods.code_rows`.

    Returns
    -------
    dict
        `held_out`: the number of `rows` in the sample and the number `of` rows it was drawn from.
        Of features with levels, the share of `wrong_values`, which are not the most probable ones,
        and the mean `nll_per_value`, −log P(value) in nats. Of continuous features, the entries of
        `describe_number_losses`, and for each and on average also the share that is `inside_90`,
        between the 5 % and 95 % quantiles of the predicted distribution. Empty if the model
        predicts neither.
    """
    found = {
        **_describe_levels(subject, sample, executor, seed, progress),
        **_describe_numbers(subject, sample, executor, seed, progress),
    }
    if not found:
        return {}
    return {"held_out": {"rows": sample.block.n_samples, "of": sample.n_rows, **found}}


def _describe_levels(
    subject: EvaluatedModel, sample: SampledRows, executor: Executor, seed: int, progress: Progress
) -> dict[str, Any]:
    if not isinstance(subject.model, CanImpute) or not sample.block.n_features:
        return {}
    features = subject.features_with_levels
    score = partial(_score_values, subject.model, subject.params, RowRandom(seed), features)
    blocks = [block for _, block in split_by_segment(subject, sample)]
    sums, n_done = np.zeros(3), 0
    for k, (block, part) in enumerate(zip(blocks, executor.map(score, blocks), strict=True), 1):
        sums += part
        n_done += block.n_samples
        progress("predict values", k, len(blocks), n_done)
    wrong, nats, n_observed = sums.tolist()
    if not n_observed:
        return {}
    return {"wrong_values": wrong / n_observed, "nll_per_value": nats / n_observed}


def _score_values(
    model: CanImpute, params: Any, rng: RowRandom, features: Sequence[Feature], block: BinaryBlock
) -> Array:
    """Sum the losses of features with levels, each predicted from all other values."""
    check_cancelled()
    return sum_value_losses(block, model.impute(params, block, rng), features)


def _describe_numbers(
    subject: EvaluatedModel, sample: SampledRows, executor: Executor, seed: int, progress: Progress
) -> dict[str, Any]:
    names = subject.continuous_features
    if not names or not isinstance(subject.model, HasContinuousFeatures):
        return {}
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(names))[:MAX_HELD_OUT_FEATURES])
    pieces = list(split_by_segment(subject, sample))
    predict = partial(_predict_numbers, subject.model, subject.params, RowRandom(seed), chosen)
    results, n_done = np.empty((2, sample.block.n_samples, len(chosen))), 0
    parts = executor.map(predict, [block for _, block in pieces])
    for k, ((places, _), part) in enumerate(zip(pieces, parts, strict=True), start=1):
        results[:, places] = part
        n_done += len(places)
        progress("predict values", k, len(pieces), n_done)
    predictions, probabilities = results
    assert sample.block.numbers is not None
    block = replace(sample.block, numbers=sample.block.numbers[chosen])
    losses = compute_number_losses(block, predictions)
    scores = describe_number_losses(losses, [names[j] for j in chosen])
    is_inside = np.abs(probabilities - 0.5) <= _INTERVAL / 2
    shares = is_inside.sum(axis=0) / np.maximum(losses["observed_numbers"], 1)
    for own, share in zip(scores["continuous"], shares.tolist(), strict=True):
        own["inside_90"] = None if own["rmse"] is None else share
    scores["inside_90"] = average_scores(scores["continuous"], "inside_90")
    return scores


def _predict_numbers(
    model: Any, params: Any, rng: RowRandom, features: NDArray[np.intp], block: BinaryBlock
) -> Array:
    """Predict some continuous features, each from all other values.

    Returns expected values, and the probabilities of values that are at most the true ones,
    (2, n_samples, n_features); the latter are NaN where the value is missing.
    """
    assert block.numbers is not None
    segments, values = np.full(block.n_samples, block.segment), block.numbers.T.astype(np.float64)
    results = np.empty((2, block.n_samples, len(features)))
    for k, feature in enumerate(features.tolist()):
        check_cancelled()
        numbers = block.numbers.copy()
        numbers[feature] = np.nan
        codes = model.transform(params, replace(block, numbers=numbers), rng)
        expected = model.reconstruct_numbers(params, codes["mean"], segments)
        probabilities = model.number_probabilities(params, codes, values, segments)
        results[:, :, k] = expected[:, feature], probabilities[:, feature]
    return results
