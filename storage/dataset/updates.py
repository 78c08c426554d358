"""Add values to rows that a dataset already contains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from storage.dataset.chunks import Words, pack_rows
from storage.dataset.dataset import BinaryDataset
from storage.dataset.feature_levels import Planes
from storage.dataset.levels import Levels
from storage.errors import DataError

Ints = NDArray[np.int64]


def find_rows(dataset: BinaryDataset, names: Mapping[str, NDArray[Any]]) -> Ints:
    """Find the rows with the given texts in per-row columns.

    Memory holds the searched texts and one chunk of the columns.

    Parameters
    ----------
    dataset
        The dataset. Rows are not found by columns of numbers, nor by columns that it does not have.
    names
        Searched texts by column, (n,) each.

    Returns
    -------
    Ints
        Row of the dataset for each searched row, -1 if there is none, (n,).

    Raises
    ------
    DataError
        If two rows of the dataset have the same searched texts.
    """
    searched = [*zip(*(texts.tolist() for texts in names.values()), strict=True)]
    found = np.full(len(searched), -1, np.int64)
    if not {*names} <= {*dataset.levels}:
        return found
    codes = {name: _find_codes(dataset.levels[name], texts) for name, texts in names.items()}
    if not all(len(column.codes) for column in codes.values()):
        return found
    numbers = {texts: k for k, texts in enumerate(searched)}
    for key in range(dataset.n_chunks):
        _, columns = dataset.read_row_labels(key, [*names])
        is_candidate = np.all([np.isin(columns[n], codes[n].codes) for n in names], axis=0)
        rows = np.flatnonzero(is_candidate)
        texts = zip(*(codes[name].decode(columns[name][rows]) for name in names), strict=True)
        for row, row_texts in zip((rows + dataset.chunks[key, 0]).tolist(), texts, strict=True):
            k = numbers.get(row_texts, -1)
            if k >= 0 and found[k] >= 0:
                raise DataError(
                    f"{dataset.path}: rows {found[k] + 1} and {row + 1} are both named "
                    f"{'/'.join(row_texts)!r}, so new lines cannot refer to one of them. Remove "
                    "these lines, or ingest all rows again with {overwrite}."
                )
            if k >= 0:
                found[k] = row
    return found


class _TextCodes(NamedTuple):
    """The codes of some texts, in increasing order; a text may have several codes."""

    codes: Ints
    texts: NDArray[np.object_]

    def decode(self, codes: NDArray[Any]) -> list[str]:
        texts: list[str] = self.texts[np.searchsorted(self.codes, codes)].tolist()
        return texts


def _find_codes(levels: Levels, texts: NDArray[Any]) -> _TextCodes:
    """Find the codes of texts among all texts of a column, page by page."""
    searched_texts = set(texts.tolist())
    pairs = [(code, text) for code, text in enumerate(levels) if text in searched_texts]
    codes = np.array([code for code, _ in pairs], np.int64)
    return _TextCodes(codes, np.array([text for _, text in pairs], object))


Bytes = NDArray[np.uint8]
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
            planes.split_levels(batch.X),
            planes.repeat_mask(observed),
            planes.repeat_mask(batch.missing),
        )
        packed = [pack_rows(cells) for cells in cells_by_kind]
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
