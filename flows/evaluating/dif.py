"""Differential item functioning: find items that favour one of the groups of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flows.cli.options import DATA, Option, Switch
from pipeline.data.blocks import RowSource
from pipeline.data.datasets import Dataset
from pipeline.data.features import Feature, are_binary
from pipeline.errors import FitError
from pipeline.evaluation.item_bias import (
    GroupFits,
    check_group_tests,
    count_answering_rows,
    count_by_score,
    group_rows,
    mantel_haenszel,
    run_group_tests,
    run_purified_group_tests,
)
from pipeline.evaluation.prediction import name_labels
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress
from pipeline.models.base import Model
from pipeline.models.latent_trait.model import LatentTrait
from pipeline.numerics.logistic.information import find_reversed_items
from pipeline.passes.map_reduce import collect_statistics
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts
from pipeline.words import is_missing_word
from storage.errors import DataError

Array = NDArray[np.float64]

DifTest = Annotated[
    Literal["mantel-haenszel", "likelihood-ratio"],
    Option(group=DATA, help="Test for --dif: by sum scores, or by a fit per item."),
]
DifPurify = Annotated[
    bool,
    Switch,
    Option(
        group=DATA,
        help="With --dif-test likelihood-ratio: repeat the tests without anchors that were found "
        "to be biased.",
    ),
]
_LIKELIHOOD_RATIO = "likelihood-ratio"
_MIN_GROUP_ROWS, _MAX_GROUPS = 20, 100
_MAX_LISTED = 5  # groups that an error lists


class DifGroups(NamedTuple):
    """Groups of rows: column, test, and the groups' values and names, largest group first."""

    column: str
    test: str
    is_purified: bool
    values: tuple[int, ...]
    names: tuple[str, ...]


def find_dif_groups(
    dataset: Dataset, split: str | None, column: str | None, test: str, is_purified: bool
) -> DifGroups | None:
    """Find the groups that a per-row column defines; the largest one is the reference.

    Raises `DataError` or `FitError` if there is no such column, or it does not define groups of
    enough rows for the test.
    """
    if is_purified and test != _LIKELIHOOD_RATIO:
        raise FitError("{dif_purify} needs {dif_test=likelihood-ratio}.")
    if column is None:
        if test == _LIKELIHOOD_RATIO:
            raise FitError("{dif_test} needs {dif}. Name a column.")
        return None
    dataset.check_columns([column])
    values = np.concatenate([part for _, part in dataset.iter_codes(column, split)])
    is_missing = values == -1 if column in dataset.levels else np.isnan(values)
    values, counts = np.unique(values[~is_missing], return_counts=True)
    path = getattr(dataset, "path", "the data")
    where = str(path) if split is None else f"the split {split!r} of {path}"
    start = f"{{dif}} is {column!r}, but"
    if (values != np.rint(values)).any():
        raise DataError(
            f"{start} this column of {where} has fractions. Choose a column of texts or whole "
            "numbers."
        )
    limit = 2 if test != _LIKELIHOOD_RATIO else _MAX_GROUPS
    if not 2 <= len(values) <= limit:
        choices = "two" if limit == 2 else f"2 to {limit}"
        hint = ", or use {dif_test=likelihood-ratio}" if 2 < len(values) <= _MAX_GROUPS else ""
        listed = name_labels(values, column, dataset) if len(values) <= _MAX_LISTED else ()
        if words := [name for name in listed if is_missing_word(name)]:
            hint += (
                f". {words[0]!r} is a text in such columns: if it means missing, ingest the data "
                "with empty cells instead"
            )
        shown = f" ({', '.join(map(repr, listed))})" if listed else ""
        raise DataError(
            f"{start} this column of {where} has {len(values):,} values{shown} instead of "
            f"{choices}. Choose or store another column{hint}."
        )
    largest_first = np.argsort(-counts, kind="stable")
    values, counts = values[largest_first], counts[largest_first]
    values = values if column in dataset.levels else values.astype(np.int64)
    names = name_labels(values, column, dataset)
    if (count := int(counts[-1])) < _MIN_GROUP_ROWS:
        rows = "1 row" if count == 1 else f"{count} rows"
        raise DataError(
            f"{start} the group {names[-1]!r} has only {rows} in {where}; {_MIN_GROUP_ROWS} are "
            "needed. Choose another column."
        )
    return DifGroups(column, test, is_purified, tuple(map(int, values)), names)


def check_has_no_weights(manifests: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse fits with weights, by name: the tests would count every row once."""
    for name, manifest in manifests.items():
        if manifest.get("row_weights") is not None:
            raise FitError(
                f"{name} was fitted to rows with weights, but {{dif}} counts every row once. "
                "Name a fit without weights."
            )


def check_has_no_asymptotes(manifests: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse fits with guessing or slipping, by name: the fits of the tests have neither."""
    for name, manifest in manifests.items():
        settings = manifest["hyperparameters"]
        if any(settings.get(kind, "none") != "none" for kind in ("guessing", "slipping")):
            raise FitError(
                f"{name} has items with guessing or slipping, but "
                "{dif_test=likelihood-ratio} fits items without. Name another fit, or compare fits "
                "with {group} and {free}."
            )


def find_slopes(model: Model, params: Any, features: Sequence[Feature]) -> Array | None:
    """Return the slopes of a fit of one trait for features with levels; None for other fits."""
    if not isinstance(model, LatentTrait) or params.weights.shape[1] != 1:
        return None
    return np.asarray(params.weights[[bool(feature.levels) for feature in features], 0])


def compute_item_bias(
    groups: DifGroups,
    rows: RowSource,
    features: Sequence[Feature],
    seed: int,
    executor: Executor,
    progress: Progress,
    slopes: Array | None = None,
) -> dict[str, Any]:
    """Test all items; list the most biased first. `rows` must have the column of the groups.

    With more than two groups, what concerns the focal group becomes a list. `slopes` are those of
    a fit of one trait, (n_features,), which show the reversed items of sum scores.
    """
    rows = group_rows(rows, groups.column, groups.values)
    first = collect_statistics(
        FeatureCounts.from_block, rows, executor, FeatureCounts.label, progress=progress
    )
    count = partial(count_answering_rows, len(groups.names))
    answering = collect_statistics(count, rows, executor, "answers", progress=progress)
    fits = GroupFits(rows, groups.names, tuple(features), first, executor, seed, progress)
    is_by_score, names = groups.test != _LIKELIHOOD_RATIO, tuple(f.name for f in features)
    if not is_by_score:
        found = _compare_fits(fits, groups, names)
    elif are_binary(features):
        found = _compare_scores(fits, names, slopes)
    else:
        found = _compare_level_scores(fits, groups, slopes)
    return {
        "column": groups.column,
        "test": groups.test,
        "reference": groups.names[0],
        "focal": _unpack_only(list(groups.names[1:])),
        "rows": answering.values["rows"].tolist(),
        "has_drawn_answers": is_by_score and not first.is_complete and are_binary(features),
        **found,
    }


def _compare_level_scores(
    fits: GroupFits, groups: DifGroups, slopes: Array | None
) -> dict[str, Any]:
    """Compare levels by sum score; rows with missing answers are left out."""
    n_planes = np.array([feature.n_planes for feature in fits.features])
    is_reversed = _find_reversed_items(slopes, len(n_planes))
    count = partial(count_by_score, None, np.repeat(is_reversed, n_planes), RowRandom(fits.seed))
    sums = collect_statistics(
        count, fits.rows, fits.executor, "sum scores", progress=fits.progress
    ).values
    names = tuple(feature.name for feature in fits.features)
    n_rows = sums["rows"].sum(axis=(1, 2)).tolist()
    for name, n in zip(groups.names, n_rows, strict=True):
        if n < _MIN_GROUP_ROWS:
            raise FitError(
                f"{{dif}} compares rows that have all answers, but the group {name!r} has only {n} "
                f"of them; {_MIN_GROUP_ROWS} are needed. Leave out features with many missing "
                "values, choose another column, or, for a latent-trait fit, use "
                "{dif_test=likelihood-ratio}, which uses all answers."
            )
    tests = mantel_haenszel(sums["rows"], sums["ones"], n_planes)
    return {
        "rows": n_rows,
        "has_only_complete_rows": not fits.first.is_complete,
        "reversed": [names[item] for item in np.flatnonzero(is_reversed)],
        "items": _list_items(tests._asdict(), names),
    }


def _compare_scores(
    fits: GroupFits, names: tuple[str, ...], slopes: Array | None
) -> dict[str, Any]:
    params = None if fits.first.is_complete else fits.fit().params
    if slopes is None and params is not None:
        slopes = params.weights[:, 0]
    is_reversed = _find_reversed_items(slopes, len(names))
    count = partial(count_by_score, params, is_reversed, RowRandom(fits.seed))
    sums = collect_statistics(
        count, fits.rows, fits.executor, "sum scores", progress=fits.progress
    ).values
    columns = mantel_haenszel(sums["rows"], sums["ones"])._asdict()
    del columns["df"]  # 1 for all items
    found = [names[item] for item in np.flatnonzero(is_reversed)]
    return {"reversed": found, "items": _list_items(columns, names)}


def _find_reversed_items(slopes: Array | None, n_items: int) -> NDArray[np.bool_]:
    return np.zeros(n_items, np.bool_) if slopes is None else find_reversed_items(slopes)


def _compare_fits(fits: GroupFits, groups: DifGroups, names: tuple[str, ...]) -> dict[str, Any]:
    check_group_tests(fits.first, groups.names, fits.features)
    found: dict[str, Any] = {}
    if groups.is_purified:
        tests, purification = run_purified_group_tests(fits)
        excluded = [names[item] for item in purification.excluded]
        found["purification"] = {**purification._asdict(), "excluded": excluded}
    else:
        tests = run_group_tests(fits)
    traits = zip(tests.trait_mean[1:].tolist(), tests.trait_sd[1:].tolist(), strict=True)
    columns = tests.items._asdict()
    if are_binary(fits.features):
        found["df"] = int(columns.pop("df")[0])  # the same for all items
    return {
        "focal_trait": _unpack_only([{"mean": mean, "sd": sd} for mean, sd in traits]),
        **found,
        "unfinished": [names[item] for item in tests.unfinished],
        "items": _list_items(columns, names),
    }


def _list_items(columns: dict[str, Any], names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [
        {"feature": names[item], **{n: _unpack_only(v[item].tolist()) for n, v in columns.items()}}
        for item in np.argsort(columns["p"], kind="stable").tolist()
    ]


def _unpack_only(values: Any) -> Any:
    """Return the only element of a list, and everything else as it is."""
    return values[0] if isinstance(values, list) and len(values) == 1 else values
