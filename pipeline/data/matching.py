"""Match the features and segments of other data with those of a fit, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, pack_block
from pipeline.data.datasets import Dataset
from pipeline.data.features import Feature, list_features, restore_names
from pipeline.errors import FitError, FitWarning, format_suggestion
from pipeline.params import get_array

UNKNOWN_SEGMENT = -1
"""Index of segments that were not fitted; models use the mean of the fitted segments."""
_MAX_SHOWN = 60  # characters of a name that an error shows


def get_fitted_segments(params: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the fitted segments and their numbers of rows, (n_segments,) each.

    Both are empty if the model has no parameters by segment.
    """
    if (segments := get_array(params, "segments")) is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return segments, get_array(params, "segment_rows")


def make_empty_rows(params: Any, n_rows: int, n_planes: int, segment: int = 0) -> BinaryBlock:
    """Return rows of zeros, with values of continuous features and covariates if needed."""
    n_levels = get_array(params, "n_levels")
    n_continuous = 0 if n_levels is None else np.count_nonzero(n_levels == 1)
    numbers = np.zeros((n_continuous, n_rows), np.float32) if n_continuous else None
    block = pack_block(np.zeros((n_rows, n_planes), np.uint8), segment=segment, numbers=numbers)
    center = get_array(params, "covariate_center")
    return block if center is None else replace(block, covariates=np.zeros((n_rows, len(center))))


def draw_segments(params: Any, n_samples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw segments in proportion to their fitted rows, (n_samples,)."""
    indices, rows = get_fitted_segments(params)
    return rng.choice(indices, n_samples, p=rows / rows.sum())


def map_fitted_segments(params: Any, names: Sequence[str]) -> dict[str, int]:
    """Return the index of each fitted segment by name, given the names in the fitted data.

    There are none if segments are hidden states, which have nothing to do with those of data.
    """
    if get_array(params, "transition") is not None:
        return {}
    indices, _ = get_fitted_segments(params)
    return {names[index]: index for index in indices.tolist()}


def find_segment_index(fitted: Mapping[str, int], name: str, remedy: str) -> int:
    """Return the model's index of a segment; refuse an unknown name with this remedy."""
    if not fitted:
        raise FitError("The fit has the same parameters in all segments. Leave the segment out.")
    if name not in fitted:
        shown = str(name)[:_MAX_SHOWN]
        raise FitError(
            f"The fit has no segment {shown!r}.{format_suggestion(shown, fitted)} {remedy}"
        )
    return fitted[name]


def find_segment_indices(fitted: Mapping[str, int], names: Sequence[str]) -> NDArray[np.int64]:
    """Return the model's index of each named segment, or `UNKNOWN_SEGMENT`, (n_segments,)."""
    return np.array([fitted.get(name, UNKNOWN_SEGMENT) for name in names], np.int64)


def describe_unknown_segments(fitted: Mapping[str, int], names: Sequence[str]) -> list[str]:
    """Return a warning that lists the segments without parameters, if the model has segments.

    A segment without a name holds rows of unknown segments; the warning does not list it.
    """
    indices = np.flatnonzero(find_segment_indices(fitted, names) == UNKNOWN_SEGMENT)
    unknown = [index for index in indices.tolist() if names[index]]
    if not fitted or not unknown:
        return []
    text = "segments that were not fitted, so the mean of all fitted segments is used: {segments}"
    return [FitWarning(text, segments=tuple(unknown)).render(segments=names)]


def check_same_features(
    expected: Sequence[str],
    got: Sequence[str],
    fit: str = "the fit",
    remedy: str = "Use the features of the fit in the same order, or fit again.",
) -> None:
    """Refuse data without the features of a fit in the same order, and name the first difference.

    Of more features than those of the fit, the first one that is missing is named.

    Parameters
    ----------
    expected, got
        Names of the features of the fit and of the data.
    fit, remedy
        How the message calls the fit, and the last sentence of the message.
    """
    known = {*got}
    if len(got) > len(expected) and (missing := [name for name in expected if name not in known]):
        hint = format_suggestion(missing[0], got)
        raise FitError(f"There is no feature {missing[0]!r}, which is in {fit}.{hint} {remedy}")
    for position, (fitted, name) in enumerate(zip_longest(expected, got), start=1):
        if fitted != name:
            raise FitError(
                f"Feature {position} is {_format_name(name)}, but {_format_name(fitted)} in {fit}. "
                f"{remedy}"
            )


def check_same_levels(expected: Sequence[Feature], got: Sequence[Feature], fit: str) -> None:
    """Refuse data whose features, equal to those of a fit by name, have other levels."""
    for fitted, own in zip(expected, got, strict=True):
        if fitted.levels != own.levels:
            raise FitError(
                f"Feature {own.name!r} has {own.describe_levels()}, but "
                f"{fitted.describe_levels()} in {fit}. Use the levels of the fit, or fit again."
            )


def check_split_levels(manifest: Mapping[str, Any], dataset: Dataset, fit: str) -> None:
    """Refuse data in which features that a fit cut or split into planes have other levels.

    The names of planes alone do not tell: in reverse order, `q3>=often` means the opposite.
    """
    split = [Feature(name, tuple(own)) for name, own in manifest.get("split_levels", {}).items()]
    levels = {feature.name: feature.levels for feature in restore_names(split, manifest)}
    own = [feature for feature in list_features(dataset) if feature.name in levels]
    expected = [Feature(feature.name, levels[feature.name]) for feature in own]
    check_same_levels(expected, own, fit)


def _format_name(name: str | None) -> str:
    return "missing" if name is None else repr(name)
