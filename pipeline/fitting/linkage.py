"""Check before a fit whether rows link all features, and name the features that they do not.

Two sets of features without a common row, such as two test forms that nobody answered both of, say
nothing about each other. What a fit then cannot determine depends on the model, which says so in
`Model.unlinked_effect`.
"""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import RowSource, iter_blocks
from pipeline.data.features import find_continuous, find_first_planes
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.models.base import Model
from pipeline.models.structure import Structure
from pipeline.passes.map_reduce import NO_KEPT_SUMS, KeptSums, ReadBlocks, collect_groups
from pipeline.passes.task_sizes import CHUNKS_PER_GROUP, WorkEstimate
from pipeline.statistics.linkage import Linkage


def collect_linkage(
    model: Model,
    rows: RowSource,
    executor: Executor,
    progress: Progress = ignore_progress,
    kept: KeptSums[Any] = NO_KEPT_SUMS,
) -> Linkage:
    """Find which features the rows link.

    The first chunk almost always links all of them, so the others are only read if it does not.
    """
    by_segment = bool(len(model.find_features_by_group()))
    if not by_segment:
        read_first = partial(_link_chunk, rows)
        with closing(executor.map(read_first, range(min(1, rows.n_chunks)))) as results:
            for first in results:
                if first is not None and (first.is_linked or rows.n_chunks == 1):
                    return first
    fold = partial(_link_group, by_segment)
    linkage: Linkage = collect_groups(
        # A piece is read only until all features are linked, so it should not be small.
        *(fold, rows, executor, Linkage.label),
        progress=progress,
        kept=kept,
        work=WorkEstimate(0, n_chunks=CHUNKS_PER_GROUP),
    )
    return linkage


def has_every_value(model: Model, first: Any) -> bool:
    """Return whether a model's first statistics show that no value is missing."""
    features = model.structure.features
    return bool(getattr(first, "is_complete", False)) and not find_continuous(features)


def get_linkage_key(model: Model) -> str:
    """Return a key of the linkage of a block, to keep it with the dataset."""
    return "by segment" if len(model.find_features_by_group()) else "pooled"


def _link_chunk(rows: RowSource, key: int) -> Linkage | None:
    return _link_group(False, lambda: (b for b in iter_blocks(rows.read(key)) if b.n_samples))


def _link_group(by_segment: bool, blocks: ReadBlocks) -> Linkage | None:
    """Link the features of a piece; stop reading once all are linked."""
    total: Linkage | None = None
    for block in blocks():
        part = Linkage.from_block(block, by_segment=by_segment)
        total = part if total is None else total.merge(part)
        if total.is_linked and not by_segment:
            break
    return total


def warn_about_unlinked_features(model: Model, linkage: Linkage) -> tuple[FitWarning, ...]:
    """Return a warning that names the features outside the largest part, if there are several.

    Raises
    ------
    FitError
        If the model cannot be fitted to several parts.
    """
    structure, own = model.structure, model.find_features_by_group()
    columns, _ = _find_columns(structure, linkage.parts.shape[1])
    # Groups without any common parameter need no link.
    linkages = linkage.split_by_segment() if len(own) == len(columns) else [linkage]
    parts_by_linkage = [_find_parts(structure, own, each) for each in linkages]
    n_parts = max(map(len, parts_by_linkage))
    if not model.unlinked_effect or n_parts < 2:
        return ()
    outside: set[int] = set()
    for parts in parts_by_linkage:
        largest = max(parts, key=len, default=[])
        outside |= {feature for part in parts if part is not largest for feature in part}
    names = structure.feature_names
    places = sorted(outside)
    features: Any = tuple(names[i] for i in places) if names else tuple(places)
    others = [
        name
        for name, part in (("groups", structure.groups), ("covariates", structure.covariates))
        if part
    ]
    link = f"that only {' and '.join(others)} link" if others else "without a common row"
    text = f"the features fall into {n_parts:,} parts {link}, so {model.unlinked_effect}. "
    text += "Features outside the largest part: {features}"
    if model.needs_linked_features:
        raise FitError(f"{text[0].upper()}{text[1:]}. Fit the parts separately.", features)
    return (FitWarning(text, features),)


def _find_parts(structure: Structure, own: NDArray[np.intp], linkage: Linkage) -> list[list[int]]:
    """Return the features of each part, by index; a feature may be in several parts.

    Features in `own` have parameters by group and do not link groups. Known items link everything.
    """
    n_columns = linkage.parts.shape[1]
    columns, known = _find_columns(structure, n_columns)
    n_features, n_seen = len(columns), len(linkage.segments)
    # Vertices: every column in each segment; the features; and one for all known items.
    feature = n_seen * n_columns + np.arange(n_features)
    size = n_seen * n_columns + n_features + 1
    left, right = [feature[known]], [np.full(known.sum(), size - 1)]
    is_shared = ~np.isin(np.arange(n_features), own)
    is_seen = linkage.parts[:, columns] >= 0
    for k, parts in enumerate(linkage.parts):
        first, (seen,) = k * n_columns, np.nonzero(parts >= 0)
        shared = is_shared & is_seen[k]
        left += [first + seen, feature[shared]]
        right += [first + parts[seen], first + columns[shared]]
    pairs = np.concatenate(left), np.concatenate(right)
    graph = scipy.sparse.coo_array((np.ones(len(pairs[0])), pairs), shape=(size, size))
    _, labels = scipy.sparse.csgraph.connected_components(graph, directed=False)
    found: dict[int, set[int]] = {}
    for k in range(n_seen):
        for i in np.flatnonzero(is_seen[k]).tolist():
            found.setdefault(int(labels[k * n_columns + columns[i]]), set()).add(i)
    return sorted(map(sorted, found.values()))


def _find_columns(
    structure: Structure, n_columns: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the first column of each feature, and which features are known items with a slope."""
    features = structure.features
    if not features:
        return np.arange(n_columns), np.zeros(n_columns, np.bool_)
    firsts = find_first_planes(features)
    has_planes = np.diff(firsts) > 0
    number = np.cumsum(~has_planes) - 1
    columns = np.where(has_planes, firsts[:-1], firsts[-1] + number)
    if structure.known_items is None:
        return columns, np.zeros(len(features), np.bool_)
    forms = np.where(has_planes, firsts[:-1], firsts[-1] + 2 * number)
    slopes = structure.known_items[forms, :-1]
    return columns, ~np.isnan(slopes).any(axis=1) & (np.nan_to_num(slopes) != 0).any(axis=1)
