"""Tables of codes: row number, segment, stored columns and codes of each row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from flows.data.datasets import adapt_to_fit, may_open
from flows.exporting.columns import Array
from flows.exporting.files import BatchedTable, collect_columns
from pipeline.data.features import Feature, list_features
from pipeline.data.level_probabilities import name_levels
from pipeline.errors import FitError
from pipeline.evaluation.ranking import check_can_be_ranked, rank_rows, select_scores
from pipeline.executors.progress import Progress, ignore_progress
from pipeline.models.loading_pattern import read_trait_names
from pipeline.params import DimensionLabels, label_positions
from pipeline.passes.row_ranges import ROW
from storage.codes.codes import Codes
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.levels import Levels
from storage.display import list_trait_names
from storage.errors import DataError
from storage.quoting import parse_float, parse_integer
from storage.read_ahead import read_ahead

SEGMENT = "segment"
_LEVEL_ARRAYS = ("levels", "imputed_levels")
_MAX_CACHED_PAGES = 4  # pages of texts per column in memory; consecutive rows share pages
RowPositions = NDArray[np.int64]


class CodeScale(NamedTuple):
    """Mean and standard deviation of each component over the rows, (n_components,) each."""

    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    names: tuple[str, ...]

    def to_lists(self) -> dict[str, list[Any]]:
        """Return the numbers for a summary in JSON."""
        names = self.names or range(1, len(self.mean) + 1)
        return {"component": [*names], "mean": self.mean.tolist(), "sd": self.sd.tolist()}


def find_coded_dataset(codes: Codes, dataset: BinaryDataset | None) -> BinaryDataset:
    """Return the dataset that codes belong to: `dataset`, or the recorded one if it is None.

    Raises `DataError` if it does not exist, its leading rows differ, or the recorded one is not in
    the bucket of the codes.
    """
    recorded = codes.manifest.get("queries") or codes.manifest["dataset"]
    if dataset is None and not may_open(recorded["path"], codes.path):
        raise DataError(
            f"{codes.path}: the recorded dataset, {recorded['path']}, is not in the bucket of the "
            "codes, so it is not opened. Set {dataset} to the dataset that they belong to."
        )
    try:
        dataset = open_dataset(recorded["path"]) if dataset is None else dataset
    except DataError as error:
        remedy = f"Set {{dataset}} to the dataset that {codes.path} belongs to."
        raise DataError(f"{error.text} {remedy}") from None
    dataset = adapt_to_fit(dataset, codes.manifest, str(codes.path))
    n_chunks = int(recorded["n_chunks"])
    is_shorter = dataset.n_chunks < n_chunks
    if is_shorter or dataset.digest_leading_chunks(n_chunks) != recorded["chunks_digest"]:
        raise DataError(
            f"{dataset.path}: {codes.path} contains codes of another dataset, or this one has "
            "changed. Use the dataset of the codes, or transform this one again."
        )
    return dataset


def measure_scale(codes: Codes) -> CodeScale:
    """Return the scale of codes; raise `DataError` if they cannot be standardized."""
    if "mean" not in codes:
        raise DataError(f"{codes.path} has no codes to standardize. Leave out {{standardize}}.")

    def average(function: Callable[[Array], Array]) -> NDArray[np.float64]:
        chunks = (codes.read_chunk(key, ["mean"])["mean"] for key in range(codes.n_chunks))
        sums = (function(values).sum(axis=0, dtype=np.float64) for values in chunks)
        return np.asarray(sum(sums) / codes.n_rows)

    mean = average(lambda values: values)
    sd = np.sqrt(average(lambda values: (values - mean) ** 2))
    if not sd.all():
        raise DataError(
            f"Component {np.argmin(sd) + 1} has the same code in all rows, so it cannot be "
            "standardized. Leave out {standardize}."
        )
    return CodeScale(mean, sd, read_trait_names(codes.manifest))


def make_code_table(
    codes: Codes,
    dataset: BinaryDataset,
    progress: Progress = ignore_progress,
    scale: CodeScale | None = None,
) -> BatchedTable:
    """Make a table with one line per row: its number, segment, stored columns and codes.

    `scale` standardizes the codes and their standard errors; None leaves them as they are.
    """
    batches = _iter_batches(codes, dataset, progress, scale)
    first = next(batches)
    return BatchedTable(first.schema, codes.n_rows, chain([first], batches))


def make_ranking_table(codes: Codes, dataset: BinaryDataset) -> BatchedTable:
    """Make a table with one line per row, the highest score first; see `rank_rows`.

    Raises
    ------
    FitError
        If the codes are not those of one trait with standard errors, or there are too many rows.
    """
    check_can_be_ranked(codes.n_rows)
    found = select_scores(codes, 0)
    if found is None or select_scores(codes, 1) is not None:
        raise FitError(
            f"{codes.path}: a ranking needs the codes of one trait, with standard errors. "
            "Fit latent-trait with {components=1}."
        )
    scores, variances = found
    ranking = rank_rows(scores, variances)
    order = ranking.order
    columns = {
        "position": ranking.position,
        "score": scores[order],
        "error": np.sqrt(variances[order]),
        "rank": ranking.rank,
        "rank_low": ranking.rank_low,
        "rank_high": ranking.rank_high,
        "group": ranking.group,
    }
    rows = codes[ROW] if ROW in codes else np.arange(codes.n_rows)
    labels = RowLabelReader(dataset)(rows, columns)
    places = pa.array(order)
    return collect_columns({**{n: v.take(places) for n, v in labels.items()}, **columns})


def _iter_batches(
    codes: Codes, dataset: BinaryDataset, progress: Progress, scale: CodeScale | None
) -> Iterator[pa.RecordBatch]:
    labels, n_rows = RowLabelReader(dataset), 0
    progress("export", 0, codes.n_chunks, n_rows)
    chunks = map(codes.read_chunk, range(codes.n_chunks))
    for done, arrays in enumerate(read_ahead(chunks), start=1):
        n_before, n_rows = n_rows, n_rows + len(next(iter(arrays.values())))
        rows = arrays.pop(ROW, np.arange(n_before, n_rows))
        if scale is not None:
            arrays |= _standardize(arrays, scale)
        coded = _make_code_columns(codes, arrays, dataset)
        yield pa.record_batch({**labels(rows, coded), **coded})
        progress("export", done, codes.n_chunks, n_rows)


def _standardize(arrays: Mapping[str, Array], scale: CodeScale) -> dict[str, Array]:
    """Return the codes with mean 0 and standard deviation 1, and their errors on that scale."""
    units = {"mean": scale.sd, "variance": scale.sd**2, "covariance": np.outer(scale.sd, scale.sd)}
    shifts = {"mean": scale.mean}
    return {
        name: ((arrays[name] - shifts.get(name, 0.0)) / unit).astype(arrays[name].dtype)
        for name, unit in units.items()
        if name in arrays
    }


class ArrayGroup(NamedTuple):
    """Arrays of the same dimensions, (n_rows, …) each, whose columns stand next to each other.

    `dims` are all dimensions except the rows.
    """

    dims: tuple[str, ...]
    arrays: Mapping[str, Array]


def _iter_columns(
    group: ArrayGroup, names: DimensionLabels, features: Sequence[Feature]
) -> Iterator[tuple[str, Array]]:
    """Iterate over the named columns of a group, position by position."""
    shape = next(iter(group.arrays.values())).shape[1:]
    for index, suffix in label_positions(group.dims, shape, names):
        place: tuple[Any, ...] = (slice(None), *index)
        for name, values in group.arrays.items():
            column = np.ascontiguousarray(values[place])
            if name in _LEVEL_ARRAYS:
                column = _parse_levels(features[index[0]].levels)[column]
            yield name + suffix, column


def _parse_levels(levels: Sequence[str]) -> Array:
    """Return the values that levels stand for, (n_levels,): numbers, or else their names."""
    integers, numbers = [*map(parse_integer, levels)], [*map(parse_float, levels)]
    if None not in integers:
        return np.array(integers, np.int64)
    if None not in numbers and any(number % 1 for number in numbers if number is not None):
        return np.array(numbers, np.float64)
    return np.array(levels, object)


def _make_code_columns(
    codes: Codes, arrays: Mapping[str, Array], dataset: BinaryDataset
) -> dict[str, Array]:
    features = list_features(dataset)
    names = {
        "feature": dataset.feature_names,
        "level": name_levels(features),
        **list_trait_names(codes.manifest),
    }
    groups = _iter_array_groups({name: codes.dims(name)[1:] for name in arrays}, arrays)
    return dict(chain.from_iterable(_iter_columns(group, names, features) for group in groups))


def _iter_array_groups(
    dims: Mapping[str, tuple[str, ...]], arrays: Mapping[str, Array]
) -> Iterator[ArrayGroup]:
    """Group the arrays; standard errors next to the means replace the variances."""
    has_errors = "mean" in arrays and dims["mean"] == dims.get("variance")
    for name, values in arrays.items():
        if has_errors and name == "mean":
            yield ArrayGroup(dims[name], {name: values, "sd": np.sqrt(arrays["variance"])})
        elif name == "score":
            yield ArrayGroup(dims[name], {n: arrays[n] for n in ("score", "standard_error")})
        elif name != "standard_error" and not (has_errors and name == "variance"):
            yield ArrayGroup(dims[name], {name: values})


@dataclass(frozen=True)
class RowLabelReader:
    """Reads row numbers, segments and stored columns; keeps the chunk read last in memory."""

    dataset: BinaryDataset

    def __call__(self, rows: RowPositions, used_names: Collection[str]) -> dict[str, pa.Array]:
        """Read the labels of rows in ascending order; segments only if there are several.

        A column whose name is already used becomes `column_NAME`.
        """
        labels, dataset = {ROW: pa.array(rows)}, self.dataset
        if dataset.n_segments == 1 and not dataset.column_names:
            return labels
        segments, columns = self._read_rows(rows)
        if dataset.n_segments > 1:
            labels[SEGMENT] = pa.array(dataset.segment_names).take(pa.array(segments))
        for name, values in columns.items():
            label = name
            while label in labels or label in used_names:
                label = f"column_{label}"
            labels[label] = self._make_column(name, values)
        return labels

    def _make_column(self, name: str, values: Array) -> pa.Array:
        """Make a column; NaN and empty texts are missing values."""
        if name in self._text_readers:
            return self._text_readers[name](values)
        kind = self.dataset.manifest["columns"][name]["kind"]
        return pa.array(values, pa.int64() if kind == "nullable-int" else None, from_pandas=True)

    def _read_rows(self, rows: RowPositions) -> tuple[RowPositions, dict[str, Array]]:
        first_rows, parts = self.dataset.chunks[:, 0], []
        keys = np.searchsorted(first_rows, rows, side="right") - 1
        for key in np.unique(keys).tolist():
            segments, columns = self._read_chunk(key)
            indices = rows[keys == key] - first_rows[key]
            chosen = {name: values[indices] for name, values in columns.items()}
            parts.append((segments[indices], chosen))
        joined = {
            name: np.concatenate([columns[name] for _, columns in parts]) for name in parts[0][1]
        }
        return np.concatenate([segments for segments, _ in parts]), joined

    @cached_property
    def _read_chunk(self) -> Callable[[int], tuple[RowPositions, dict[str, Array]]]:
        read = partial(self.dataset.read_row_labels, names=self.dataset.column_names)
        return lru_cache(maxsize=1)(read)

    @cached_property
    def _text_readers(self) -> Mapping[str, Callable[[Array], pa.Array]]:
        return {
            name: partial(_look_up_texts, levels, _make_page_reader(levels))
            for name, levels in self.dataset.levels.items()
        }


def _make_page_reader(levels: Levels) -> Callable[[int], pa.Array]:
    return lru_cache(_MAX_CACHED_PAGES)(
        lambda page: _replace_empty(levels.read_encoded_page(page).cast(pa.string()))
    )


def _replace_empty(texts: pa.Array) -> pa.Array:
    return pa.compute.if_else(pa.compute.equal(texts, ""), None, texts)


def _look_up_texts(levels: Levels, page: Callable[[int], pa.Array], codes: Array) -> pa.Array:
    """Look up the text of each code, as `Levels.decode` does."""
    on_page, places = levels.locate(codes)
    first = int(on_page.min())
    pages = [page(k) for k in range(first, int(on_page.max()) + 1)]
    starts = np.cumsum([0, *(len(texts) for texts in pages)])
    indices = pa.array(starts[on_page - first] + places)
    return pa.chunked_array(pages).take(indices).combine_chunks()
