"""A sample of a dataset: rows with their latent codes, and pairs of features.

The cost does not grow with the dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.data.columns import list_name_columns
from flows.data.datasets import LoadedModel, check_dataset_features, may_open
from pipeline.data.blocks import (
    BinaryBlock,
    PackedChunk,
    annotate_chunk,
    iter_blocks,
    pack_block,
)
from pipeline.data.datasets import IN_MEMORY, get_row_columns
from pipeline.data.features import Feature, are_binary, find_first_planes, select_with_levels
from pipeline.data.level_probabilities import name_levels, order_bits
from pipeline.data.matching import find_segment_indices
from pipeline.data.plane_views import view_as_fitted
from pipeline.data.weights import RowWeights, weigh_chunk
from pipeline.evaluation.calibration import ShareComparison, compare_pairs
from pipeline.inference.orientation import read_values
from pipeline.inference.sequences import iter_conditioned_parts
from pipeline.models.capabilities import CanSample, check_can_sample
from pipeline.models.registry import read_vocabulary
from pipeline.models.vocabulary import PLAIN, Vocabulary
from pipeline.passes.map_reduce import tree_merge
from pipeline.random import RowRandom
from pipeline.statistics.counts import PairCounts
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.errors import DataError

Array = NDArray[np.float64]

_MAX_CHUNKS = 4
_MAX_CODED_ROWS, _MAX_CODED_WORK = 2000, 4 << 20  # work: rows x features x components
_MAX_PAIRED_FEATURES = 400
_NO_NODES = np.zeros((0, 0))
_MAX_DRAWN_ROWS, _MAX_DRAWN_CELLS = 20_000, 1 << 23


@dataclass(frozen=True)
class CodedRows:
    """Rows spread over the dataset, with their latent codes.

    Attributes
    ----------
    codes
        (n_rows, n_components).
    values
        Values of the features, levels as 0, 1, 2, …, NaN where missing, (n_rows, n_features).
    rows
        Row numbers in the dataset, from 0, (n_rows,).
    segments
        Name of the segment of each row, (n_rows,).
    columns
        Per-row columns, each (n_rows,).
    variances
        Posterior variances of the codes, (n_rows, n_components); NaN if the model has none.
    words
        Words of the model's field.
    responsibilities, positions
        How far each row belongs to each node of a tree of models, (n_rows, n_nodes), and where it
        is in its plane, (n_rows, n_nodes, 2); empty if the model is no such tree.
    """

    codes: Array
    values: NDArray[np.float32]
    rows: NDArray[np.int64]
    segments: NDArray[Any]
    columns: dict[str, NDArray[Any]]
    variances: Array
    words: Vocabulary = PLAIN
    responsibilities: Array = field(default_factory=lambda: _NO_NODES)
    positions: Array = field(default_factory=lambda: _NO_NODES)


@dataclass(frozen=True)
class DatasetSample:
    """A sample of a dataset.

    Attributes
    ----------
    coded_rows
        Rows with their codes.
    pairs
        Joint frequencies of pairs of features, or of their levels, in the data and in rows drawn
        from the model; None if the model cannot draw rows.
    paired_names
        Names of the features or levels that were paired.
    n_rows, n_drawn
        Numbers of rows behind the frequencies of the data and of the model.
    has_levels
        Whether levels were paired.
    """

    coded_rows: CodedRows
    pairs: ShareComparison | None
    paired_names: Sequence[str]
    n_rows: int
    n_drawn: int
    has_levels: bool


def open_fitted_dataset(fitted: LoadedModel, path: str | None) -> tuple[BinaryDataset | None, str]:
    """Open the dataset whose rows the report shows: `path`, or the dataset of the fit if unchanged.

    Returns the dataset or None, and a note for the reader if it is not the dataset of the fit.
    """
    recorded = fitted.artifact.manifest["dataset"]
    if path is not None:
        dataset = view_as_fitted(open_dataset(path), fitted.dataset_features)
        check_dataset_features(fitted, dataset)
        note = f"The rows shown are from {path}, which is not the dataset of the fit."
        return dataset, "" if dataset.digest == recorded["digest"] else note
    remedy = "Figures of rows are omitted; use --dataset PATH to get them."
    if recorded["path"] == IN_MEMORY:
        remedy = f"{remedy.removesuffix('.')}, or in Python report(data)."
        return None, f"The model was fitted to rows in memory. {remedy}"
    if not may_open(recorded["path"], fitted.artifact.path):
        return None, f"{recorded['path']} is not in the bucket of the artifact. {remedy}"
    try:
        dataset = open_dataset(recorded["path"])
    except DataError:
        return None, f"The dataset of the fit is no longer at {recorded['path']}. {remedy}"
    if dataset.digest != recorded["digest"]:
        return None, f"{recorded['path']} has changed since the fit. {remedy}"
    return dataset, ""


def read_dataset_sample(fitted: LoadedModel, dataset: BinaryDataset) -> DatasetSample:
    """Encode some rows, and count pairs of features in more of them, all of the fitted split."""
    indices = find_segment_indices(fitted.segments, dataset.segment_names)
    planes, features = _choose_paired_planes(select_with_levels(fitted.dataset_features))
    names = name_levels(features) if features else [fitted.plane_names[i] for i in planes]
    n_coded = _choose_row_count(fitted, dataset.n_features)
    keys = _choose_evenly(dataset.n_chunks, _MAX_CHUNKS)
    step = max(1.0, dataset.chunks[keys, 1].sum() / n_coded)
    coded, counts, segment_rows = [], [], np.zeros(dataset.n_segments, np.int64)
    for block in _iter_blocks(fitted, dataset, keys):
        counts.append(PairCounts.from_block(_select_planes(block, planes), pooled=True))
        chosen = block.take_rows(_choose_block_rows(block, step))
        coded.append(_encode_rows(fitted, dataset, chosen, int(indices[block.segment])))
        segment_rows[block.segment] += block.n_samples
    if not coded:
        raise DataError(f"{dataset.path} has no rows of the fitted split.")
    observed, rows = tree_merge(counts), _join_coded_rows(coded, dataset)
    if not len(planes) or not isinstance(fitted.model, CanSample):
        return DatasetSample(rows, None, names, observed.n_rows, 0, bool(features))
    implied = _count_drawn_pairs(fitted, segment_rows, indices, planes)
    pairs = compare_pairs(observed, implied, features)
    n_rows = (observed.n_rows, implied.n_rows)
    return DatasetSample(rows, pairs, names, *n_rows, bool(features))


def _choose_paired_planes(
    features: Sequence[Feature],
) -> tuple[NDArray[np.intp], tuple[Feature, ...]]:
    """Choose features to pair: their planes, and the features unless all are binary."""
    firsts = find_first_planes(features)
    max_chosen = max(2, _MAX_PAIRED_FEATURES * len(features) // max(int(firsts[-1]), 1))
    chosen = _choose_evenly(len(features), max_chosen).tolist()
    if are_binary(features):
        return np.array(chosen, np.intp), ()
    planes = np.concatenate([np.arange(firsts[i], firsts[i + 1]) for i in chosen])
    return planes, tuple(features[i] for i in chosen)


def _choose_row_count(fitted: LoadedModel, n_features: int) -> int:
    n_components = max(1, int(fitted.artifact.manifest["n_components"]))
    return max(100, min(_MAX_CODED_ROWS, _MAX_CODED_WORK // (n_features * n_components)))


def _choose_evenly(n: int, max_chosen: int) -> NDArray[np.intp]:
    """Choose at most `max_chosen` of n indices, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, max_chosen)).round().astype(np.intp))


def _iter_blocks(
    fitted: LoadedModel, dataset: BinaryDataset, keys: NDArray[np.intp]
) -> Iterator[BinaryBlock]:
    split = fitted.artifact.manifest["split"]
    split = split if "split" in dataset.column_names else None
    record = fitted.artifact.manifest.get("row_weights")
    weights = RowWeights(**record) if record else None
    for key in keys:
        chunk: PackedChunk = dataset.read_chunk(int(key), split, dataset.column_names)
        if weights is not None and weights.column in chunk.columns:
            numbers = dataset.parse_numbers(weights.column, chunk.columns[weights.column])
            chunk = weigh_chunk(chunk, weights, numbers)
        chunk = _add_row_columns(chunk, dataset)
        for block in iter_blocks(chunk):
            if block.n_samples:
                yield from _iter_conditioned_parts(fitted, dataset, block)


def _iter_conditioned_parts(
    fitted: LoadedModel, dataset: BinaryDataset, block: BinaryBlock
) -> Iterator[BinaryBlock]:
    """Condition rows given numbers of texts, but keep the codes of the texts."""
    codes = {name: block.column(name) for name in fitted.model.list_number_columns()}
    numbers = {name: dataset.parse_numbers(name, own) for name, own in codes.items()}
    block, last = replace(block, columns={**block.columns, **numbers}), 0
    for part in iter_conditioned_parts(fitted.model, fitted.params, block):
        first, last = last, last + part.n_samples
        own = {name: values[first:last] for name, values in codes.items()}
        yield replace(part, columns={**part.columns, **own})


def _add_row_columns(chunk: PackedChunk, dataset: BinaryDataset) -> PackedChunk:
    row_columns = get_row_columns(dataset)
    numbers = {
        name: dataset.parse_numbers(name, chunk.columns[name])
        for name in row_columns.list_columns()[1]
    }
    parsed = replace(annotate_chunk(chunk), columns={**chunk.columns, **numbers})
    added = annotate_chunk(row_columns.add_to_chunk(parsed, dataset.levels))
    return replace(added, columns={**added.columns, **chunk.columns})


def _select_planes(block: BinaryBlock, planes: NDArray[np.intp]) -> BinaryBlock:
    mask = block.observed_words
    return replace(
        block,
        words=np.ascontiguousarray(block.words[planes]),
        observed_words=None if mask is None else np.ascontiguousarray(mask[planes]),
    )


def _choose_block_rows(block: BinaryBlock, step: float) -> NDArray[np.int64]:
    """Choose every `step`-th row of a block, counted across blocks."""
    offset = float(block.rows[0]) % step
    rows = np.arange(offset, block.n_samples, step).astype(np.int64)
    return rows[rows < block.n_samples]  # rounding may add a row


def _encode_rows(
    fitted: LoadedModel, dataset: BinaryDataset, block: BinaryBlock, index: int
) -> CodedRows:
    own_block = replace(block, segment=index)
    codes = fitted.model.transform(fitted.params, own_block, RowRandom(0))
    means = codes["mean"]
    variances = codes.get("variance", np.full(means.shape, np.nan))
    names = np.full(block.n_samples, dataset.segment_names[block.segment], object)
    columns = {name: block.column(name) for name in dataset.column_names}
    return CodedRows(
        means,
        read_values(block, fitted.features),
        block.rows,
        names,
        columns,
        variances,
        read_vocabulary(fitted.artifact.manifest),
        *(codes.get(name, _NO_NODES) for name in ("responsibility", "position")),
    )


def _join_coded_rows(parts: list[CodedRows], dataset: BinaryDataset) -> CodedRows:
    coded = {name: np.concatenate([p.columns[name] for p in parts]) for name in parts[0].columns}
    names = "codes", "values", "rows", "segments", "variances", "responsibilities", "positions"
    arrays = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    columns = {name: dataset.decode_texts(name, values) for name, values in coded.items()}
    for name in list_name_columns(dataset):  # figures take texts for names, but not numbers
        columns[name] = columns[name].astype(str).astype(object)
    return CodedRows(columns=columns, words=parts[0].words, **arrays)


def _count_drawn_pairs(
    fitted: LoadedModel,
    segment_rows: NDArray[np.int64],
    indices: NDArray[np.int64],
    planes: NDArray[np.intp],
) -> PairCounts:
    """Count pairs in rows drawn from the model, with segments as frequent as in the data."""
    rng = np.random.default_rng(0)
    n_drawn = max(500, min(_MAX_DRAWN_ROWS, _MAX_DRAWN_CELLS // len(fitted.plane_names)))
    segments = rng.choice(indices, n_drawn, p=segment_rows / segment_rows.sum())
    X = check_can_sample(fitted.model).sample(fitted.params, n_drawn, rng, segments)
    features = select_with_levels(fitted.dataset_features)
    features = () if are_binary(features) else features
    X = order_bits(X, features)[:, planes]
    return PairCounts.from_block(pack_block(np.ascontiguousarray(X)), pooled=True)
