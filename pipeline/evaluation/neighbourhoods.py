"""How well latent codes preserve neighbourhoods and the labels of neighbouring rows.

All pairs of rows are compared, so large datasets are sampled first. Distances between codes are
Euclidean. Those between values are Hamming distances if all features are binary, and else the mean
over features of 0 or 1 for equal or different categories, and of the difference of levels or
numbers divided by the largest one (J. C. Gower, Biometrics 27, 1971). They are over the features
that are observed in both rows. Ties go to the earlier row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from pipeline.arrays import Array, Indices
from pipeline.data.blocks import BinaryBlock, RowSource, pack_block
from pipeline.data.features import Feature, are_binary, find_continuous
from pipeline.errors import FitError
from pipeline.evaluation.evaluate import EvaluatedModel
from pipeline.evaluation.prediction import HasLabels, name_labels
from pipeline.executors.base import Executor
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.inference.orientation import read_values
from pipeline.inference.transform import cast_for_storage, iter_portions
from pipeline.models.base import Model
from pipeline.numerics.graphs.kernel_components import compute_squared_distances
from pipeline.numerics.graphs.neighbours import (
    Metric,
    NearestRows,
    NumberedRows,
    empty_nearest,
    merge_nearest,
)
from pipeline.numerics.metrics import (
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

N_NEIGHBORS = 5
MAX_QUERY_ROWS, MAX_REFERENCE_ROWS = 2000, 20_000
NO_PART = -1
"""Part of a row that may have any other row as its neighbour."""
_PAIRS_AT_ONCE = 1 << 20
_DECIMALS = 9


class SampledRows(NamedTuple):
    """Rows drawn from a dataset by (seed, stream, original row)."""

    block: BinaryBlock  # the rows, in original order
    segments: Indices  # segment index of each row, (n_drawn,)
    # Label of each row as text, (n_drawn,); empty if no column was requested.
    labels: NDArray[np.str_]
    n_rows: int  # number of rows that the sample was drawn from


def draw_dataset_rows(
    rows: RowSource, size: int, executor: Executor, seed: int, progress: Progress = ignore_progress
) -> SampledRows:
    """Draw at most `size` rows; the seed determines which.

    The other parameters are those of `pipeline.passes.map_reduce.collect_statistics`.
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
    """Draw at most `size` rows that have a label; see `draw_dataset_rows`.

    `column` is a per-row column, which `rows` must read, or `SEGMENT`. Labels must not be
    fractions. `data` is the dataset, which names them.
    """
    draw = partial(_draw_labelled_block, size, column, RowRandom(seed))
    sample = collect_statistics(draw, rows, executor, "draw rows", progress=progress)
    values, places = np.unique(sample.labels, return_inverse=True)
    if not len(values):
        raise FitError(
            f"Column {column!r} has no labels in these rows. Choose another column.",
            parameter="label",
        )
    if (values != np.floor(values)).any():
        raise FitError(
            f"Column {column!r} holds fractions, but labels must be text or whole numbers. "
            "Choose another column.",
            parameter="label",
        )
    labels = np.array(name_labels(values, column, data), np.str_)[places]
    return _sort_sample(sample, labels)


def _draw_labelled_block(size: int, column: str, rng: RowRandom, block: BinaryBlock) -> RowSample:
    labels = convert_labels_to_numbers(get_labels(block, column))
    labelled = np.flatnonzero(np.isfinite(labels))
    return RowSample.from_block(block.take_rows(labelled), size, rng, labels[labelled])


def _sort_sample(sample: RowSample, labels: NDArray[np.str_] | None = None) -> SampledRows:
    order = np.argsort(sample.rows)
    observed = None if sample.observed.all() else sample.observed[order]
    block = replace(
        pack_block(sample.X[order], observed),
        row_numbers=sample.rows[order],
        covariates=sample.covariates[order] if sample.covariates.size else None,
        numbers=np.ascontiguousarray(sample.numbers[order].T) if sample.numbers.size else None,
    )
    labels = np.empty(0, np.str_) if labels is None else labels[order]
    return SampledRows(block, sample.segments[order], labels, sample.n_rows)


def code_rows(
    subject: EvaluatedModel,
    sample: SampledRows,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
) -> Array:
    """Compute the codes of a sample, (n_drawn, n_components), as `flows.transform` would.

    `subject.segments` must refer to the dataset that the sample was drawn from.
    """
    pieces = list(split_by_segment(subject, sample))
    code = partial(_code_piece, subject.model, subject.params, RowRandom(seed))
    codes, n_coded = [], 0
    for k, part in enumerate(executor.map(code, [piece for _, piece in pieces]), start=1):
        codes.append(part)
        n_coded += len(part)
        progress("code rows", k, len(pieces), n_coded)
    places = np.concatenate([places for places, _ in pieces])
    in_order: Array = np.concatenate(codes)[np.argsort(places)]
    return in_order


def split_by_segment(
    subject: EvaluatedModel, sample: SampledRows
) -> Iterator[tuple[Indices, BinaryBlock]]:
    """Yield blocks with one of the model's segments each, and their rows' places in the sample."""
    segments = np.zeros_like(sample.segments)
    if len(subject.segments):
        segments = subject.segments[sample.segments]
    for segment in np.unique(segments):
        places = np.flatnonzero(segments == segment)
        for part in iter_portions(len(places), sample.block.n_features):
            rows = sample.block.take_rows(places[part])
            yield places[part], replace(rows, segment=int(segment))


def _code_piece(model: Model, params: Any, rng: RowRandom, block: BinaryBlock) -> Array:
    codes = model.transform(params, block, rng)["mean"]
    return cast_for_storage("mean", codes, block.rows, "float64")


@dataclass(frozen=True)
class NearestRowSearch:
    """Searches a block for nearer neighbours of rows, for `pair_work.RowPairJob`."""

    metric: Metric
    k: int  # number of neighbours per row
    # Whether a row with the same number counts as a neighbour, because it is in other data.
    include_self: bool

    def __call__(self, left: BinaryBlock, right: BinaryBlock, before: Arrays | None) -> Arrays:
        """Return `distances` and `indices`, (n_left_rows, k), nearest first."""
        if before is None:
            nearest = empty_nearest(left.n_samples, self.k)
        else:
            nearest = NearestRows(before["distances"], before["indices"])
        references = NumberedRows(right.to_packed_rows(), right.rows, right.rows)
        if left is right and not self.include_self:
            queries = references
        else:
            parts = np.full(left.n_samples, NO_PART) if self.include_self else left.rows
            queries = NumberedRows(left.to_packed_rows(), left.rows, parts)
        merge_nearest(self.metric, queries, references, nearest)
        return nearest._asdict()


@dataclass(frozen=True)
class NeighbourVote:
    """Labels to predict by a majority vote of the nearest rows.

    `column` is the column of the labels. The labels of `queries` are predicted; `references` vote.
    If `is_other_data`, the references are from other data, so that equal row numbers are different
    rows. `features` may be empty if all are binary.
    """

    column: str
    queries: SampledRows
    references: SampledRows
    is_other_data: bool
    features: tuple[Feature, ...] = ()

    @property
    def n_neighbors(self) -> int:
        """Number of neighbours that vote."""
        n_references = self.references.block.n_samples
        if n_references < 2:
            raise FitError(
                f"Only {n_references} of the fitted rows have a label, but at least 2 need one. "
                "Choose another column.",
                parameter="label",
            )
        return min(N_NEIGHBORS, n_references - 1)

    @cached_property
    def accuracy_by_values(self) -> float:
        """Share of labels predicted correctly from the rows with the nearest values."""
        queries, references = self.queries.block, self.references.block
        if not are_binary(self.features):
            own, others = (read_values(rows, self.features) for rows in (queries, references))
            compute = partial(compute_value_distances, others=others, features=self.features)
            return self._score_nearest(own, len(others), compute)
        search = NearestRowSearch("hamming", self.n_neighbors, include_self=self.is_other_data)
        nearest = search(queries, references, None)
        return self._vote_accuracy(np.searchsorted(references.rows, nearest["indices"]))

    def score_codes(self, query_codes: Array, reference_codes: Array) -> float:
        """Return the share of labels predicted correctly from the rows with the nearest codes.

        The codes are (n_queries, n_components) and (n_references, n_components).
        """
        compute = partial(cdist, XB=reference_codes, metric="sqeuclidean")
        return self._score_nearest(query_codes, len(reference_codes), compute)

    def _score_nearest(
        self,
        queries: NDArray[Any],
        n_references: int,
        compute_distances: Callable[[NDArray[Any]], Array],
    ) -> float:
        """Return the share of labels predicted correctly; distances are to all references."""
        own_places = self._find_own_places()
        size = max(1, _PAIRS_AT_ONCE // n_references)
        neighbours = []
        for start in range(0, len(queries), size):
            part = slice(start, start + size)
            distances = compute_distances(queries[part])
            neighbours.append(find_nearest_places(distances, self.n_neighbors, own_places[part]))
        return self._vote_accuracy(np.concatenate(neighbours))

    def _find_own_places(self) -> Indices:
        """Return the place of each query among the references, if it is one of them."""
        queries, references = self.queries.block.rows, self.references.block.rows
        places = np.searchsorted(references, queries)
        is_reference = np.append(references, -1)[places] == queries
        return np.where(is_reference & (not self.is_other_data), places, NOT_AMONG_OTHERS)

    def _vote_accuracy(self, neighbours: Indices) -> float:
        texts = np.concatenate([self.queries.labels, self.references.labels])
        labels = np.unique(texts, return_inverse=True)[1]
        truth, votes = np.split(labels, [len(self.queries.labels)])
        return float((majority_label(votes[neighbours]) == truth).mean())


def describe_code_quality(
    subject: EvaluatedModel,
    reference_subject: EvaluatedModel,
    sample: SampledRows,
    vote: NeighbourVote | None,
    executor: Executor,
    seed: int,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Describe how well a model's codes preserve neighbourhoods and predict labels.

    `subject` and `reference_subject` are the model, matched with the segments of the evaluated and
    of the fitted dataset; `sample` has the rows to evaluate on.

    Returns
    -------
    dict
        `neighbourhoods`, from `describe_neighbourhoods`; and `neighbour_labels`: the `column`, the
        number of `rows_without` a label, and the entries of `describe_vote`. Empty ones are left
        out.
    """
    run = (executor, seed, progress)
    description = {}
    codes = code_rows(subject, sample, *run)
    if neighbourhoods := describe_neighbourhoods(sample, codes, subject.features):
        description["neighbourhoods"] = neighbourhoods
    if vote is None:
        return description
    query_codes = code_rows(subject, vote.queries, *run)
    reference_codes = code_rows(reference_subject, vote.references, *run)
    if accuracy := describe_vote(vote, query_codes, reference_codes):
        n_unlabelled = sample.n_rows - vote.queries.n_rows
        labels = {"column": vote.column, "rows_without": n_unlabelled}
        description["neighbour_labels"] = {**labels, **accuracy}
    return description


def compute_value_distances(
    values: NDArray[np.float32], others: NDArray[np.float32], features: Sequence[Feature]
) -> Array:
    """Return Gower's distance of every pair of rows, (n_rows, n_others).

    Values are those of `read_values`, (n_rows, n_features) and (n_others, n_features). Numbers are
    divided by the range of the others. Distances are infinite if no feature is observed in both.
    """
    weights, planes, masks = zip(*map(partial(_split, features), (values, others)), strict=True)
    # Bits are 0 unless observed, so |a − b| = a m' + m b − 2 a b where both are observed.
    left = np.hstack([planes[0] * weights[0], masks[0]])
    distances = left @ np.hstack([masks[1] - 2 * planes[1], planes[1] * weights[1]]).T
    is_observed, is_other_observed = np.isfinite(values), np.isfinite(others)
    n_common = is_observed.astype(np.float64) @ is_other_observed.T.astype(np.float64)
    for k in find_continuous(features):
        seen = others[is_other_observed[:, k], k].astype(np.float64)
        difference = abs(np.subtract.outer(values[:, k].astype(np.float64), others[:, k]))
        if len(seen) and np.ptp(seen) > 0:
            distances += np.nan_to_num(difference / np.ptp(seen))
    distances = np.round(distances, _DECIMALS)  # so that equal distances are ties
    means: Array = np.full(distances.shape, np.inf)
    np.divide(distances, n_common, out=means, where=n_common > 0)
    return means


def _split(features: Sequence[Feature], values: NDArray[np.float32]) -> tuple[Array, Array, Array]:
    """Return a weight of each plane, and its bits and mask, (n_rows, n_planes), as numbers.

    A category is a plane of weight 1/2, as two of them differ. The n planes of levels have 1/n.
    """
    bits, masks, weights = [np.empty((len(values), 0))], [np.empty((len(values), 0))], [np.empty(0)]
    for feature, own in zip(features, values.T, strict=True):
        steps = np.arange(len(feature.levels))
        is_nominal = feature.kind == "nominal"
        own_bits = own[:, None] == steps if is_nominal else own[:, None] >= steps[1:]
        bits.append(own_bits.astype(np.float64))
        n_bits = own_bits.shape[1]
        masks.append(np.repeat(np.isfinite(own)[:, None], n_bits, 1).astype(np.float64))
        weights.append(np.full(n_bits, 0.5 if is_nominal else 1 / max(1, len(steps) - 1)))
    return np.concatenate(weights), np.hstack(bits), np.hstack(masks)


def has_distinct_codes(codes: Array) -> bool:
    """Return whether codes differ; if all are equal, no row is nearer than another."""
    return bool((codes != codes[:1]).any())


def describe_neighbourhoods(
    sample: SampledRows, codes: Array, features: Sequence[Feature] = ()
) -> dict[str, Any]:
    """Compare the neighbourhoods in code space with those by values.

    `features` may be empty if all are binary.

    Returns
    -------
    dict
        `n_neighbors`; the number of `rows` in the sample and the number `of` rows it was drawn
        from; `trustworthiness`, 1 if all neighbours in code space are also neighbours by values,
        0.5 by chance; `continuity`, the same with codes and values exchanged. Empty if all codes
        are equal, there are fewer than 11 rows, or all features are continuous.
    """
    n = sample.block.n_samples
    if n <= 2 * N_NEIGHBORS or not sample.block.n_features or not has_distinct_codes(codes):
        return {}
    if are_binary(features):
        bits = sample.block.to_packed_rows()
        by_values = compute_squared_distances(bits, bits)
    else:
        values = read_values(sample.block, features)
        by_values = compute_value_distances(values, values, features)
    by_codes = cdist(codes, codes, "sqeuclidean")
    return {
        "n_neighbors": N_NEIGHBORS,
        "rows": n,
        "of": sample.n_rows,
        "trustworthiness": trustworthiness(by_values, by_codes, N_NEIGHBORS),
        "continuity": trustworthiness(by_codes, by_values, N_NEIGHBORS),
    }


def describe_vote(
    vote: NeighbourVote, query_codes: Array, reference_codes: Array
) -> dict[str, Any]:
    """Describe how well labels are predicted from the rows with the nearest codes.

    The codes of the labelled rows are (n_queries, n_components) and (n_references, n_components).

    Returns
    -------
    dict
        `n_neighbors` that vote, where the nearest one decides a tie; the number of query `rows` and
        the number `of` rows they were drawn from; the number of reference rows (`neighbours`) and
        the number of rows they were drawn from (`neighbours_of`); `accuracy` and its
        `standard_error`; the same for distances between values (`accuracy_by_values`,
        `standard_error_by_values`); and the share of the most frequent label (`commonest`). Empty
        if all codes are equal.
    """
    if not has_distinct_codes(reference_codes):
        return {}
    queries, references = vote.queries, vote.references
    n = queries.block.n_samples
    accuracy, by_values = vote.score_codes(query_codes, reference_codes), vote.accuracy_by_values
    _, counts = np.unique(queries.labels, return_counts=True)
    return {
        "n_neighbors": vote.n_neighbors,
        "rows": n,
        "of": queries.n_rows,
        "neighbours": references.block.n_samples,
        "neighbours_of": references.n_rows,
        "accuracy": accuracy,
        "standard_error": _standard_error(accuracy, n),
        "accuracy_by_values": by_values,
        "standard_error_by_values": _standard_error(by_values, n),
        "commonest": int(counts.max()) / n,
    }


def _standard_error(share: float, n: int) -> float:
    return float(np.sqrt(share * (1 - share) / n))
