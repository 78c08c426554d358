"""How well latent codes keep neighbourhoods: which rows are near each other, and their labels.

Distances of all pairs are compared, so of many rows some are drawn. Of bits they are Hamming
distances, with missing values the share of those observed in both rows that differ; of codes
Euclidean ones. Of rows that are equally near the earlier comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from pipeline.data.blocks import BinaryBlock, RowSource, pack_block
from pipeline.errors import FitError
from pipeline.evaluation.evaluate import EvaluatedModel
from pipeline.evaluation.prediction import HasLabels, name_labels
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.inference.transform import cast_for_storage, iter_portions
from pipeline.models.base import Model
from pipeline.numerics.graphs.kernel_components import squared_distances
from pipeline.numerics.graphs.nearest_rows import (
    Metric,
    NearestRows,
    NumberedRows,
    empty_nearest,
    merge_nearest,
)
from pipeline.numerics.graphs.neighbourhoods import (
    NOT_AMONG_OTHERS,
    find_nearest_places,
    majority_label,
    trustworthiness,
)
from pipeline.passes.map_reduce import collect_statistics
from pipeline.passes.row_ranges import Arrays
from pipeline.random import RowRandom
from pipeline.statistics.labels import convert_labels_to_numbers, get_labels
from pipeline.statistics.row_samples import RowSample

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

N_NEIGHBORS = 5
MAX_QUERY_ROWS, MAX_REFERENCE_ROWS = 2000, 20_000
NO_PART = -1
"""Part of rows that may have any neighbour."""
_PAIRS_AT_ONCE = 1 << 20


class SampledRows(NamedTuple):
    """Rows drawn from all.

    Attributes
    ----------
    block
        The rows, in original order.
    segments
        Indices of their segments, (n_drawn,).
    labels
        Texts that say what they are, where a column was asked for; else empty, (n_drawn,).
    n_rows
        The rows that they were drawn from.
    """

    block: BinaryBlock
    segments: Indices
    labels: NDArray[np.str_]
    n_rows: int


def draw_dataset_rows(
    rows: RowSource, size: int, executor: Executor, seed: int, progress: Progress = ignore_progress
) -> SampledRows:
    """Draw so many rows, or all where there are fewer.

    Parameters
    ----------
    rows, executor, seed, progress
        As for `pipeline.passes.map_reduce.collect_statistics`; the seed decides which rows.
    size
        Rows to draw at the most.

    Raises
    ------
    FitError
        If there are no rows.
    """
    draw = partial(RowSample.from_block, size=size, rng=RowRandom(seed))
    return _sort_sample(collect_statistics(draw, rows, executor, "draw rows", progress=progress))


def draw_labelled_rows(
    rows: RowSource,
    size: int,
    column: str,
    data: HasLabels,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
) -> SampledRows:
    """Draw from the rows that have a label; the parameters beside are those of `draw_dataset_rows`.

    Parameters
    ----------
    column
        A per-row column, which the rows are read with, or `SEGMENT`.
    data
        The dataset of the rows.

    Raises
    ------
    FitError
        If no row has a label, or labels are fractions.
    """
    draw = partial(_draw_labelled_block, size, column, RowRandom(seed))
    sample = collect_statistics(draw, rows, executor, "draw rows", progress=progress)
    values, places = np.unique(sample.labels, return_inverse=True)
    if not len(values):
        raise FitError(
            f"The column {column!r} has no label in these rows. Choose another.", parameter="label"
        )
    if (values != np.floor(values)).any():
        raise FitError(
            f"Expected texts or whole numbers in column {column!r}, got fractions. Choose another.",
            parameter="label",
        )
    labels = np.array(name_labels(values, column, data), np.str_)[places]
    return _sort_sample(sample, labels)


def _draw_labelled_block(size: int, column: str, rng: RowRandom, block: BinaryBlock) -> RowSample:
    labels = convert_labels_to_numbers(get_labels(block, column))
    at = np.flatnonzero(np.isfinite(labels))
    return RowSample.from_block(block.take_rows(at), size, rng, labels[at])


def _sort_sample(sample: RowSample, labels: NDArray[np.str_] | None = None) -> SampledRows:
    at = np.argsort(sample.rows)
    observed = None if sample.observed.all() else sample.observed[at]
    block = replace(pack_block(sample.X[at], observed), rows=sample.rows[at])
    told = np.empty(0, np.str_) if labels is None else labels[at]
    return SampledRows(block, sample.segments[at], told, sample.n_samples)


def code_rows(
    subject: EvaluatedModel,
    drawn: SampledRows,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
) -> Array:
    """Return the codes of rows, (n_drawn, n_components), as `flows.transform` would.

    Parameters
    ----------
    subject
        The model; its `segments` are those of the dataset that the rows are of.
    drawn
        The rows.
    executor, seed, progress
        As for `pipeline.passes.map_reduce.collect_statistics`; the seed is that of the codes.

    Raises
    ------
    FitError
        If a code is not finite.
    """
    pieces = list(_split_by_segment(subject, drawn))
    code = partial(_code_piece, subject.model, subject.params, RowRandom(seed))
    codes, done = [], 0
    for k, part in enumerate(executor.map(code, [piece for _, piece in pieces]), start=1):
        codes.append(part)
        done += len(part)
        progress("code rows", k, len(pieces), done)
    places = np.concatenate([at for at, _ in pieces])
    found: Array = np.concatenate(codes)[np.argsort(places)]
    return found


def _split_by_segment(
    subject: EvaluatedModel, drawn: SampledRows
) -> Iterator[tuple[Indices, BinaryBlock]]:
    """Cut rows into blocks of one segment of the model's, and say where each row belongs."""
    own = (
        subject.segments[drawn.segments] if len(subject.segments) else np.zeros_like(drawn.segments)
    )
    for segment in np.unique(own):
        at = np.flatnonzero(own == segment)
        for some in iter_portions(len(at), drawn.block.n_features):
            yield at[some], replace(drawn.block.take_rows(at[some]), segment=int(segment))


def _code_piece(model: Model, params: Any, rng: RowRandom, block: BinaryBlock) -> Array:
    codes = model.transform(params, block, rng)["mean"]
    return cast_for_storage("mean", codes, block.rows, "float64")


@dataclass(frozen=True)
class NearestRowSearch:
    """Folds one more block into the nearest neighbours of rows, for `pair_work.RowPairJob`.

    Attributes
    ----------
    metric
        How far apart two rows are.
    k
        Neighbours of a row.
    itself
        Whether a row of the same number may be a neighbour: where the two blocks are of different
        data.
    """

    metric: Metric
    k: int
    include_self: bool

    def __call__(self, left: BinaryBlock, right: BinaryBlock, before: Arrays | None) -> Arrays:
        """Return `distances` and `indices`, (n rows on the left, k), nearest first."""
        if before is None:
            found = empty_nearest(left.n_samples, self.k)
        else:
            found = NearestRows(before["distances"], before["indices"])
        own = left.rows if not self.include_self else np.full(left.n_samples, NO_PART)
        rows = NumberedRows(left.to_packed_rows(), left.rows, own)
        others = NumberedRows(right.to_packed_rows(), right.rows, right.rows)
        merge_nearest(self.metric, rows, others, found)
        return found._asdict()


@dataclass(frozen=True)
class NeighbourVote:
    """Labels of rows, told by those of the nearest rows among others.

    Attributes
    ----------
    column
        Which labels.
    judged
        Rows whose labels are told.
    fitted
        Rows whose labels are known.
    apart
        Whether rows of the same number are different ones: those of other data.
    """

    column: str
    queries: SampledRows
    references: SampledRows
    is_other_data: bool

    @property
    def n_neighbors(self) -> int:
        """Neighbours that vote.

        Raises
        ------
        FitError
            If there are not two rows that could be one.
        """
        n_fitted = self.references.block.n_samples
        if n_fitted < 2:
            raise FitError(
                f"At least 2 fitted rows need a label, but {n_fitted} have one. Choose another.",
                parameter="label",
            )
        return min(N_NEIGHBORS, n_fitted - 1)

    @cached_property
    def accuracy_by_bits(self) -> float:
        """Share of labels that the rows with the nearest bits tell."""
        search = NearestRowSearch("hamming", self.n_neighbors, include_self=self.is_other_data)
        found = search(self.queries.block, self.references.block, None)
        return self._vote_accuracy(np.searchsorted(self.references.block.rows, found["indices"]))

    def score_codes(self, judged: Array, fitted: Array) -> float:
        """Return the share of labels predicted correctly from the rows with the nearest codes.

        Parameters
        ----------
        judged, fitted
            Codes of the rows, (n_judged, n_components) and (n_fitted, n_components).
        """
        own, size = self._find_own_places(), max(1, _PAIRS_AT_ONCE // len(fitted))
        cuts = [slice(start, start + size) for start in range(0, len(judged), size)]
        parts = [
            find_nearest_places(
                cdist(judged[some], fitted, "sqeuclidean"), self.n_neighbors, own[some]
            )
            for some in cuts
        ]
        return self._vote_accuracy(np.concatenate(parts))

    def _find_own_places(self) -> Indices:
        """Return the place of each row among those fitted."""
        rows, among = self.queries.block.rows, self.references.block.rows
        places = np.searchsorted(among, rows)
        is_there = np.append(among, -1)[places] == rows
        return np.where(is_there & (not self.is_other_data), places, NOT_AMONG_OTHERS)

    def _vote_accuracy(self, neighbours: Indices) -> float:
        both = np.concatenate([self.queries.labels, self.references.labels])
        labels = np.unique(both, return_inverse=True)[1]
        own, others = np.split(labels, [len(self.queries.labels)])
        return float((majority_label(others[neighbours]) == own).mean())


def describe_code_quality(
    subject: EvaluatedModel,
    there: EvaluatedModel,
    judged: SampledRows,
    vote: NeighbourVote | None,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Describe how well the codes of a model keep neighbourhoods, and tell labels.

    Parameters
    ----------
    subject
        The model, among the segments of the rows to judge by.
    there
        The same among the segments of the rows that were fitted.
    judged
        The rows to judge by.
    vote
        Those with a label, if labels are to be told.
    executor, seed, progress
        As for `pipeline.evaluation.neighbourhoods.code_rows`.

    Returns
    -------
    dict
        `neighbourhoods`, as `describe_neighbourhoods` has it; and `neighbour_labels`: the `column`,
        `rows_without` a label, and what `describe_vote` has. Both are left out where empty.

    Raises
    ------
    FitError
        If a code is not finite.
    """
    how = (executor, seed, progress)
    kept = describe_neighbourhoods(judged, code_rows(subject, judged, *how))
    found = {"neighbourhoods": kept} if kept else {}
    if vote is None:
        return found
    codes = code_rows(subject, vote.queries, *how), code_rows(there, vote.references, *how)
    without = judged.n_rows - vote.queries.n_rows
    told = describe_vote(vote, *codes)
    labels = {"column": vote.column, "rows_without": without, **told}
    return {**found, "neighbour_labels": labels} if told else found


def has_distinct_codes(codes: Array) -> bool:
    """Return whether codes differ; if all are equal, no row is nearer than another."""
    return bool((codes != codes[:1]).any())


def describe_neighbourhoods(drawn: SampledRows, codes: Array) -> dict[str, Any]:
    """Describe how far neighbours in the codes are neighbours in the bits, and the other way.

    Returns
    -------
    dict
        `n_neighbors`; `rows` judged, and `of` how many; `trustworthiness`, 1 where no row that is a
        neighbour in the codes is not one in the bits, and `continuity`, the same with codes and
        bits exchanged; 0.5 is chance. Empty where all codes are the same or rows fewer than 11.
    """
    n = drawn.block.n_samples
    if n <= 2 * N_NEIGHBORS or not has_distinct_codes(codes):
        return {}
    bits = drawn.block.to_packed_rows()
    by_bits = squared_distances(bits, bits)
    by_codes = cdist(codes, codes, "sqeuclidean")
    return {
        "n_neighbors": N_NEIGHBORS,
        "rows": n,
        "of": drawn.n_rows,
        "trustworthiness": trustworthiness(by_bits, by_codes, N_NEIGHBORS),
        "continuity": trustworthiness(by_codes, by_bits, N_NEIGHBORS),
    }


def describe_vote(vote: NeighbourVote, judged: Array, fitted: Array) -> dict[str, Any]:
    """Describe how well the labels of rows with near codes tell those of other rows.

    Parameters
    ----------
    vote
        The rows.
    judged, fitted
        Their codes, (n_judged, n_components) and (n_fitted, n_components).

    Returns
    -------
    dict
        `n_neighbors` that vote, the nearest winning a tie; `rows` judged, and `of` how many;
        `neighbours`, the rows that can be one, and `neighbours_of` how many; `accuracy` with its
        `standard_error`; `accuracy_by_bits` with `standard_error_by_bits`, the same by Hamming
        distances; and `commonest`, the share of the commonest label. Empty where all codes are the
        same.
    """
    if not has_distinct_codes(fitted):
        return {}
    own, others = vote.queries, vote.references
    n = own.block.n_samples
    accuracy, by_bits = vote.score_codes(judged, fitted), vote.accuracy_by_bits
    _, counts = np.unique(own.labels, return_counts=True)
    return {
        "n_neighbors": vote.n_neighbors,
        "rows": n,
        "of": own.n_rows,
        "neighbours": others.block.n_samples,
        "neighbours_of": others.n_rows,
        "accuracy": accuracy,
        "standard_error": _standard_error(accuracy, n),
        "accuracy_by_bits": by_bits,
        "standard_error_by_bits": _standard_error(by_bits, n),
        "commonest": int(counts.max()) / n,
    }


def _standard_error(share: float, n: int) -> float:
    return float(np.sqrt(share * (1 - share) / n))
