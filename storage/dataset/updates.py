"""Add values to rows that a dataset already contains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from storage.dataset.batches import pack_features, pack_levels
from storage.dataset.chunks import Bytes, Words, transpose_packed
from storage.dataset.dataset import BinaryDataset
from storage.dataset.feature_levels import Planes
from storage.errors import DataError
from storage.quoting import parse_integer

if TYPE_CHECKING:
    import pyarrow

Ints = NDArray[np.int64]


def find_rows(dataset: BinaryDataset, names: pyarrow.Table) -> Ints:
    """Find the rows with the given names in per-row columns.

    Memory holds some numbers per searched row and one chunk of the columns.

    Parameters
    ----------
    dataset
        The dataset. Rows are not found by columns of fractions, nor by columns that it does not
        have.
    names
        Searched names: integers or texts in each column. All rows differ.

    Returns
    -------
    Ints
        Row of the dataset for each searched row, -1 if there is none, (n,).

    Raises
    ------
    DataError
        If two rows of the dataset have the same searched names.
    """
    found, columns = np.full(len(names), -1, np.int64), names.column_names
    kinds = {name: dataset.manifest["columns"].get(name, {}).get("kind") for name in columns}
    if not {*kinds.values()} <= {"category", "int", "nullable-int"}:
        return found
    distinct, (numbers, *others) = _number_names(names)
    lookups = [_look_up_stored(dataset, *pair) for pair in zip(columns, distinct, strict=True)]
    pair_lookups = []
    for following in others:
        pairs, numbers = np.unique(numbers << 32 | following, return_inverse=True)
        pair_lookups.append(_Lookup.of_values(pairs, np.arange(len(pairs))))
    places = np.empty(len(found), np.int64)
    places[numbers] = np.arange(len(found))
    for key in range(dataset.n_chunks):
        _, stored = dataset.read_row_labels(key, columns)
        rows = np.arange(len(stored[columns[0]]))
        parts: list[Ints] = []
        for name, lookup in zip(columns, lookups, strict=True):
            is_found, part = lookup.find(stored[name][rows])
            rows, parts = rows[is_found], [*(before[is_found] for before in parts), part]
        numbers, *others = parts
        for k, lookup in enumerate(pair_lookups):
            is_found, numbers = lookup.find(numbers << 32 | others[k])
            rows, others = rows[is_found], [following[is_found] for following in others]
        own, rows = places[numbers], rows + dataset.chunks[key, 0]
        before = found[own]
        found[own] = rows
        before[before < 0] = found[own][before < 0]
        if (is_twice := before != rows).any():
            first, second = sorted((int(before[is_twice][0]), int(rows[is_twice][0])))
            name = "/".join(str(names.column(n)[int(own[is_twice][0])]) for n in columns)
            raise DataError(
                f"{dataset.path}: rows {first + 1} and {second + 1} are both named {name!r}, so "
                "new lines cannot refer to one of them. Remove these lines, or ingest all rows "
                "again with {overwrite}."
            )
    return found


def _number_names(names: pyarrow.Table) -> tuple[list[pyarrow.Array], list[Ints]]:
    """Return the distinct names in each column, and the number of each row's name among them."""
    columns = [column.combine_chunks() for column in names.columns]
    if len(columns) == 1:  # all are distinct
        return columns, [np.arange(len(names))]
    coded = [column.dictionary_encode() for column in columns]
    numbers = [column.indices.to_numpy().astype(np.int64) for column in coded]
    return [column.dictionary for column in coded], numbers


class _Lookup(NamedTuple):
    """Numbers of some values, which are in increasing order; equal values have equal numbers.

    `mask` tells by the hash of a value that it is none of them: most values are told so.
    """

    values: Ints
    numbers: Ints
    mask: NDArray[np.bool_]

    @classmethod
    def of_values(cls, values: Ints, numbers: Ints) -> _Lookup:
        """Make a lookup of values in any order."""
        mask = np.zeros(1 << (8 * len(values) + 1).bit_length(), np.bool_)
        mask[_hash_values(values, mask)] = True
        order = np.argsort(values)
        return cls(values[order], numbers[order], mask)

    def find(self, values: NDArray[Any]) -> tuple[Ints, Ints]:
        """Return the places of those values, (n,), that are known, and their numbers."""
        places = np.flatnonzero(self.mask[_hash_values(values.astype(np.int64), self.mask)])
        own = values[places]
        near = np.searchsorted(self.values, own)
        is_known = self.values[np.minimum(near, len(self.values) - 1)] == own
        return places[is_known], self.numbers[near[is_known]]


def _hash_values(values: Ints, mask: NDArray[np.bool_]) -> NDArray[np.uint64]:
    shift = np.uint64(65 - len(mask).bit_length())
    hashes: NDArray[np.uint64] = (values.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> shift
    return hashes


def _look_up_stored(dataset: BinaryDataset, name: str, names: pyarrow.Array) -> _Lookup:
    """Make the lookup of the values that a column stores for some names: integers or codes."""
    import pyarrow as pa

    if name in dataset.levels:
        return _Lookup.of_values(*dataset.levels[name].find(names.cast(pa.string())))
    if pa.types.is_int64(names.type):
        return _Lookup.of_values(names.to_numpy(), np.arange(len(names)))
    integers = {k: parse_integer(text) for k, text in enumerate(names.to_pylist())}
    known = {k: number for k, number in integers.items() if number is not None}
    return _Lookup.of_values(np.array([*known.values()], np.int64), np.array([*known], np.int64))


DuplicateRule = Literal["last", "any"]
"""Which of several values of a cell counts: the last one, or 1 if any is 1."""


class RowUpdates(Protocol):
    """Values for rows of a dataset, such as `storage.sources.SourceUpdates`."""

    @property
    def rows(self) -> NDArray[np.int64]:
        """Rows of the dataset, in increasing order, (n_rows,)."""

    @property
    def X(self) -> NDArray[np.uint8]:
        """Levels, counted from 0, (n_rows, n_features); 0 where there is none."""

    @property
    def observed(self) -> NDArray[np.uint8] | None:
        """1 = there is a value, same shape; None if there are values for all cells."""

    @property
    def missing(self) -> NDArray[np.uint8]:
        """1 = explicitly missing, same shape."""


class CellWords(NamedTuple):
    """Packed cells of a chunk, (n_planes, n_words) each: ones, values, explicitly missing."""

    ones: Words
    values: Words
    missing: Words


class ChunkUpdates(NamedTuple):
    """Updates of one chunk: its key, the rows, and their bit-packed cells."""

    key: int
    rows: NDArray[np.int64]
    ones: Bytes
    values: Bytes
    missing: Bytes


def iter_chunk_updates(
    dataset: BinaryDataset, planes: Planes, batches: Iterable[RowUpdates]
) -> Iterator[ChunkUpdates]:
    """Group the updates of successive rows by chunk; `planes` are those of their features."""
    waiting: list[ChunkUpdates] = []
    for part in _iter_parts(dataset, planes, batches):
        if waiting and waiting[0].key != part.key:
            yield _concatenate(waiting)
            waiting = []
        waiting.append(part)
    if waiting:
        yield _concatenate(waiting)


def _iter_parts(
    dataset: BinaryDataset, planes: Planes, batches: Iterable[RowUpdates]
) -> Iterator[ChunkUpdates]:
    """Pack the updates, and split them where a chunk ends."""
    for batch in batches:
        observed = np.ones_like(batch.X) if batch.observed is None else batch.observed
        cells_by_kind = (
            planes.split_levels(pack_levels(batch.X)),
            planes.repeat_mask(pack_features(observed)),
            planes.repeat_mask(pack_features(batch.missing)),
        )
        packed = [transpose_packed(cells, len(batch.X)) for cells in cells_by_kind]
        keys = np.searchsorted(dataset.chunks[:, 0], batch.rows, side="right") - 1
        for key in np.unique(keys).tolist():
            own = slice(*np.searchsorted(keys, [key, key + 1]))
            yield ChunkUpdates(key, batch.rows[own], *(cells[own] for cells in packed))


def _concatenate(parts: Sequence[ChunkUpdates]) -> ChunkUpdates:
    arrays = ([part[k] for part in parts] for k in range(1, len(ChunkUpdates._fields)))
    return ChunkUpdates(parts[0].key, *map(np.concatenate, arrays))


def merge_cells(
    ones: Words, observed: Words, new: CellWords, duplicates: DuplicateRule | None
) -> tuple[Words, Words]:
    """Merge new cells into the values and the mask of a chunk, (n_planes, n_words) each.

    With `"last"`, new cells count, even missing ones. With `"any"`, the highest value does.
    Without a rule the values must not contradict each other.
    """
    if duplicates == "last":
        ones = ones & ~(new.values | new.missing) | new.ones
        return ones, (observed | new.values) & ~new.missing
    return ones | new.ones, observed | new.values


def find_contradiction(ones: Words, observed: Words, new: CellWords) -> tuple[int, int] | None:
    """Return plane and slot of a cell with two different values, if there is one."""
    differ = observed & new.values & (ones ^ new.ones)
    if not differ.any():
        return None
    plane, word = np.argwhere(differ)[0].tolist()
    value = int(differ[plane, word])
    return plane, 64 * word + (value & -value).bit_length() - 1


def check_same_labels(
    dataset: BinaryDataset,
    rows: NDArray[np.int64],
    columns: Mapping[str, NDArray[Any]],
    segments: NDArray[Any] | None,
    format_row: Callable[[int], str],
) -> None:
    """Raise `DataError` if segment or per-row columns of updated rows differ from the dataset's.

    `columns` and `segments` are texts, (n_rows,) each. `format_row` describes the lines of a row.
    """
    keys = np.searchsorted(dataset.chunks[:, 0], rows, side="right") - 1
    for key in np.unique(keys).tolist():
        own = slice(*np.searchsorted(keys, [key, key + 1]))
        places = rows[own] - dataset.chunks[key, 0]
        codes, stored = dataset.read_row_labels(key, [*columns])
        pairs = {
            f"column {name!r}": (values, dataset.decode_texts(name, stored[name][places]))
            for name, values in columns.items()
        }
        if segments is not None:
            pairs["segment"] = segments, np.array(dataset.segment_names, object)[codes[places]]
        for label, (new, old) in pairs.items():
            differ = np.flatnonzero(new[own].astype(str) != old.astype(str))
            if len(differ):
                k = differ[0]
                raise DataError(
                    f"{format_row(int(rows[own][k]))}: {label} is {str(new[own][k])!r}, but "
                    f"{str(old[k])!r} in the dataset. Correct the line, or ingest all rows again "
                    "with {overwrite}."
                )
