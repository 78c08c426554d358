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
from pipeline.evaluation.number_scores import compute_number_losses, describe_number_losses
from pipeline.executors.base import Executor
from pipeline.executors.cancellation import check_cancelled
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.models.capabilities import HasContinuousFeatures
from pipeline.random import RowRandom

Array = NDArray[np.float64]

MAX_HELD_OUT_FEATURES = 20
"""Maximum number of features that are predicted; a random choice if there are more."""


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
        and the entries of `describe_number_losses`. Empty if the model has no continuous features.
    """
    names = subject.continuous_features
    if not names or not isinstance(subject.model, HasContinuousFeatures):
        return {}
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(names))[:MAX_HELD_OUT_FEATURES])
    pieces = list(split_by_segment(subject, sample))
    predict = partial(_predict_values, subject.model, subject.params, RowRandom(seed), chosen)
    predictions, n_done = np.empty((sample.block.n_samples, len(chosen))), 0
    parts = executor.map(predict, [block for _, block in pieces])
    for k, ((places, _), part) in enumerate(zip(pieces, parts, strict=True), start=1):
        predictions[places] = part
        n_done += len(part)
        progress("predict values", k, len(pieces), n_done)
    assert sample.block.numbers is not None
    block = replace(sample.block, numbers=sample.block.numbers[chosen])
    losses = compute_number_losses(block, predictions)
    scores = describe_number_losses(losses, [names[j] for j in chosen])
    return {"held_out": {"rows": block.n_samples, "of": sample.n_rows, **scores}}


def _predict_values(
    model: Any, params: Any, rng: RowRandom, features: NDArray[np.intp], block: BinaryBlock
) -> Array:
    """Return the values of some continuous features, each given all others, (n_samples, n)."""
    assert block.numbers is not None
    segments = np.full(block.n_samples, block.segment)
    predictions = np.empty((block.n_samples, len(features)))
    for k, feature in enumerate(features.tolist()):
        check_cancelled()
        numbers = block.numbers.copy()
        numbers[feature] = np.nan
        codes = model.transform(params, replace(block, numbers=numbers), rng)["mean"]
        predictions[:, k] = model.reconstruct_numbers(params, codes, segments)[:, feature]
    return predictions
