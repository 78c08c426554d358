"""How well positions classify votes, by vote and by member.

Features are roll calls and rows are members. Each value is predicted from the code of its own row,
as the most probable one. With e errors, and m values that are not the majority's,

    PRE = (m − e) / m,   APRE = Σ (m − e) / Σ m,   GMP = exp(mean log P(value)),

where Σ is over all roll calls (K. T. Poole, H. Rosenthal, Congress: A Political-Economic History of
Roll Call Voting, 1997). The PRE of a row compares its errors with its votes against the majority.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock, RowSource
from pipeline.data.datasets import Dataset, get_row_columns
from pipeline.data.features import Feature, are_binary, select_with_levels
from pipeline.data.level_probabilities import count_levels
from pipeline.data.periods import name_members
from pipeline.evaluation.evaluate import EvaluatedModel, split_block
from pipeline.evaluation.value_scores import compute_value_losses
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.models.capabilities import check_can_reconstruct
from pipeline.passes.map_reduce import collect_statistics
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, count_group_level_rows
from pipeline.statistics.sums import Sums

MAX_DESCRIBED_ROWS = 100_000
"""With more rows, rows are not described one by one."""
_MIN_DISTINCT = 0.9  # share of distinct texts in a column that names rows
_BY_ROW = ("rows", "row_counts", "row_nats")


@dataclass(frozen=True)
class _VoteSums(Sums):
    """Sums of features, and values of single rows, which are joined."""

    def merge(self, other: Self) -> Self:
        """Add further rows."""
        own, others = (
            replace(sums, values={n: v for n, v in sums.values.items() if n not in _BY_ROW})
            for sums in (self, other)
        )
        joined = {n: np.concatenate([self.values[n], other.values[n]]) for n in _BY_ROW}
        total = Sums.merge(own, others)
        return replace(total, values={**total.values, **joined})


def describe_roll_calls(
    subject: EvaluatedModel,
    dataset: Dataset,
    features: Sequence[Feature],
    rows: RowSource,
    split: str | None,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Describe how well a model classifies the values of rows at their codes.

    Parameters
    ----------
    subject
        The fitted model.
    dataset, split, rows
        The dataset, the split, and its rows.
    features
        The features of the dataset; continuous ones are left out.
    executor, seed, progress
        As for `collect_statistics`; `seed` determines the codes.

    Returns
    -------
    dict
        `votes`, the number of observed values; `errors`, and `minority`, the values that are not
        the most frequent ones of their feature; `correct`, the share of values that are classified
        correctly; `apre` and `gmp`; `unanimous`, the number of features without a minority.
        `by_feature` has the same for each feature, with `majority`, its most frequent level, and
        `pre` instead of `apre`. `by_row` has it for each row, with its number `row`, counted from
        0, and its `name`; None if there are more than `MAX_DESCRIBED_ROWS` rows. Ratios without
        votes, or without a minority, are None.

    Raises
    ------
    FitError
        If the model cannot reconstruct values.
    """
    check_can_reconstruct(subject.model)
    features = select_with_levels(features)
    counts = collect_statistics(
        FeatureCounts.from_block, rows, executor, FeatureCounts.label, progress=progress
    )
    n_levels = count_levels(features)
    by_level = np.split(
        count_group_level_rows(counts, features).sum(axis=0), np.cumsum(n_levels)[:-1]
    )
    majority = np.array([int(own.argmax()) for own in by_level])
    has_rows = counts.n_rows <= MAX_DESCRIBED_ROWS
    score = partial(_score_part, subject, features, majority, RowRandom(seed), has_rows)
    sums = collect_statistics(
        partial(_score_block, score), rows, executor, "roll calls", progress=progress
    ).values
    totals = _describe(sums["counts"].sum(axis=0).tolist(), float(sums["nats"].sum()))
    names = [(f.name, f.levels or ("0", "1")) for f in features]
    by_feature = [
        {"feature": name, "majority": levels[k], **_describe(own, nats)}
        for (name, levels), k, own, nats in zip(
            names, majority.tolist(), sums["counts"].tolist(), sums["nats"].tolist(), strict=True
        )
    ]
    totals["apre"] = totals.pop("pre")
    return {
        **totals,
        "unanimous": int((sums["counts"][:, 1] == 0).sum()),
        "by_feature": by_feature,
        "by_row": _describe_rows(sums, dataset, split) if has_rows else None,
    }


def _score_block(score: Callable[[BinaryBlock], Sums], block: BinaryBlock) -> Sums:
    """MAP: count the votes, the minority and the errors of features and of rows."""
    return reduce(lambda total, part: total.merge(part), map(score, split_block(block)))


def _score_part(
    subject: EvaluatedModel,
    features: Sequence[Feature],
    majority: NDArray[np.int64],
    rng: RowRandom,
    has_rows: bool,
    block: BinaryBlock,
) -> Sums:
    if len(subject.segments):
        block = replace(block, segment=int(subject.segments[block.segment]))
    model: Any = check_can_reconstruct(subject.model)
    codes = subject.model.transform(subject.params, block, rng)["mean"]
    segments = np.full(block.n_samples, block.segment)
    planes = model.reconstruct(subject.params, codes, segments)
    losses = compute_value_losses(block, planes, () if are_binary(features) else features)
    seen = losses.observed
    flags = np.stack([seen, (losses.levels != majority) & seen, losses.wrong & seen], axis=-1)
    nats = np.where(seen, losses.nats, 0.0)
    by_row = slice(None if has_rows else 0)
    values = {
        "counts": flags.sum(axis=0),
        "nats": nats.sum(axis=0),
        "rows": np.asarray(block.rows)[by_row],
        "row_counts": flags.sum(axis=1)[by_row],
        "row_nats": nats.sum(axis=1)[by_row],
    }
    return _VoteSums(block.n_samples, block.n_samples, 0.0, values)


def _describe(counts: Sequence[int], nats: float) -> dict[str, Any]:
    """Describe votes, given their number, the minority, the errors, and the sum of −log P(vote)."""
    votes, minority, errors = counts
    return {
        "votes": votes,
        "minority": minority,
        "errors": errors,
        "correct": 1 - errors / votes if votes else None,
        "pre": (minority - errors) / minority if minority else None,
        "gmp": float(np.exp(-nats / votes)) if votes else None,
    }


def _describe_rows(
    sums: Mapping[str, NDArray[Any]], dataset: Dataset, split: str | None
) -> list[dict[str, Any]]:
    names = find_row_names(dataset, split)
    order = np.argsort(sums["rows"])
    rows, counts, nats = (sums[name][order].tolist() for name in _BY_ROW)
    return [
        {"row": row, "name": names.get(row), **_describe(own, loss)}
        for row, own, loss in zip(rows, counts, nats, strict=True)
    ]


def find_row_names(dataset: Dataset, split: str | None) -> dict[int, str]:
    """Return the names of rows: the first per-row column of texts that nearly all differ, if any.

    Rows without a text are left out. Rows of members at times have the names of both.
    """
    if (periods := get_row_columns(dataset).periods) is not None:
        ids = dataset.iter_codes(periods.row_id, split)
        return {
            row: f"{member}, {time:.10g}"
            for (rows, own), (_, times) in zip(
                ids, dataset.iter_numbers(periods.time, split), strict=True
            )
            for row, member, time in zip(
                rows.tolist(),
                name_members(own, dataset.levels.get(periods.row_id)),
                times.tolist(),
                strict=True,
            )
        }
    for column in dataset.levels:
        parts = [*dataset.iter_codes(column, split)]
        codes = np.concatenate([own for _, own in parts]) if parts else np.zeros(0)
        if codes.dtype.kind == "i" and len(np.unique(codes)) > _MIN_DISTINCT * len(codes):
            rows, texts = np.concatenate([own for own, _ in parts]), [*dataset.levels[column]]
            pairs = zip(rows.tolist(), codes.tolist(), strict=True)
            return {row: texts[code] for row, code in pairs if code >= 0}
    return {}
