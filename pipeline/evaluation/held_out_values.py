"""How well a model predicts measurements from the other values of their rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.evaluation.evaluate import EvaluatedModel
from pipeline.evaluation.neighbourhoods import SampledRows, split_by_segment
from pipeline.evaluation.number_scores import (
    average_scores,
    compute_number_losses,
    describe_number_losses,
)
from pipeline.executors.base import Executor
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.models.capabilities import HasContinuousFeatures
from pipeline.random import RowRandom

Array = NDArray[np.float64]

MAX_HELD_OUT_FEATURES = 20
"""Maximum number of features that are predicted; a random choice if there are more."""
_INTERVAL = 0.9  # probability of the predicted interval


def describe_held_out_values(
    subject: EvaluatedModel,
    sample: SampledRows,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Predict continuous features of sampled rows, one at a time, from all other values.

    The code of a row is computed as if the value were missing, and the prediction is the expected
    value given this code. Other parameters are as for
    `pipeline.evaluation.neighbourhoods.code_rows`.

    Returns
    -------
    dict
        `held_out`: the number of `rows` in the sample and the number `of` rows it was drawn from,
        and the entries of `describe_number_losses`. The values of each feature, and on average,
        also have the share that is `inside_90`, between the 5 % and 95 % quantiles of the predicted
        distribution. Empty if the model has no continuous features.
    """
    names = subject.continuous_features
    if not names or not isinstance(subject.model, HasContinuousFeatures):
        return {}
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(names))[:MAX_HELD_OUT_FEATURES])
    pieces = list(split_by_segment(subject, sample))
    predict = partial(_predict_values, subject.model, subject.params, RowRandom(seed), chosen)
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
    return {"held_out": {"rows": block.n_samples, "of": sample.n_rows, **scores}}


def _predict_values(
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
