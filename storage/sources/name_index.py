"""Number distinct rows in order of appearance: in memory, or on disk if they are many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from storage.sources.spool import ArrayFile, translate_full_disk

Ints = NDArray[np.int64]
Numbers = NDArray[np.int32]
_MIN_WAITING_ROWS = 1 << 19
"""So many rows wait at least until they are searched among the known ones."""
_MAX_MEMORY = 1 << 22
"""Known rows of more bytes are partitioned to disk."""
_N_PARTITIONS = 256
_TEXTS_AT_ONCE = 1 << 16
_FACTOR = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2**64
_PLACES = "\0places"  # no other column has this name


class DifferentValueError(Exception):
    """Raised if a row has another value in a kept column than in an earlier batch.

    Attributes
    ----------
    batch, row
        The place of the first such row, counted from 0.
    column, value, before
        The column, and the two values.
    """

    def __init__(self, batch: int, row: int, column: str, value: str, before: str) -> None:
        super().__init__(batch, row, column, value, before)
        self.batch, self.row = batch, row
        self.column, self.value, self.before = column, value, before


class NameIndex:
    """Numbers the rows of batches, each identified by its names: the values of some columns.

    Names are integers of 64 bits or texts. If a column has texts in any batch, its integers become
    texts. Further columns are kept; they have one value per row.

    Attributes
    ----------
    table
        The distinct rows in order of appearance, complete after `finish`. If they are many, they
        are read from a file on access.
    """

    def __init__(
        self,
        folder: Path,
        columns: Sequence[str],
        n_names: int = 1,
        known: Sequence[str] = (),
    ) -> None:
        """Number rows in these columns, of which the first `n_names` are names, after known ones.

        Temporary files are written to `folder`, which is created.
        """
        self.table = pa.table([pa.array(known, pa.string())] * len(columns), [*columns])
        self._folder, self._n_names, self._n_numbered = folder, n_names, 0
        with translate_full_disk(folder):
            folder.mkdir()
        self._waiting: list[pa.RecordBatch] = []
        self._partitions: _PartitionedBatches | None = None

    def add(self, rows: pa.RecordBatch) -> Sequence[Numbers]:
        """Add a batch of different rows; return the numbers of the next batches, if known.

        Raises `DifferentValueError`.
        """
        rows = self._match_types(rows)
        if self._partitions is not None:
            self._partitions.add(rows)
            return []
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) <= max(_MIN_WAITING_ROWS, len(self.table)):
            return []
        numbers = self._number_waiting()
        if self.table.nbytes > _MAX_MEMORY:
            self._partitions = self._make_partitions()
            self._partitions.add(_to_batch(self.table))
        return numbers

    def finish(self) -> Iterator[Numbers]:
        """Yield the numbers of the remaining batches, in order.

        Raises `DifferentValueError`.
        """
        if self._partitions is None:
            yield from self._number_waiting()
            return
        path = self._folder / "distinct rows"
        # The first partitioned batch are the rows that were known.
        for k, numbers in enumerate(self._partitions.number(self._n_numbered - 1, path)):
            if k:
                yield numbers
        self.table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()

    def _make_partitions(self) -> _PartitionedBatches:
        return _PartitionedBatches(self._folder, self.table.schema, self._n_names)

    def _match_types(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Turn integers into texts where the batch or the known rows have texts."""
        if not (len(self.table) or self._waiting):
            self.table = pa.Table.from_batches([], rows.schema)
        schema = self.table.schema
        for k, (known, new) in enumerate(zip(schema.types, rows.schema.types, strict=True)):
            if known != new:
                schema = schema.set(k, pa.field(schema.names[k], pa.string()))
        if schema != self.table.schema:
            self.table = self.table.cast(schema)
            self._waiting = [waiting.cast(schema) for waiting in self._waiting]
            if (batches := self._partitions) is not None:
                self._partitions = self._make_partitions()
                for batch in batches:
                    self._partitions.add(batch.cast(schema))
                batches.delete()
        return rows.cast(schema)

    def _number_waiting(self) -> list[Numbers]:
        """Number the waiting batches; the known rows are searched once for all of them."""
        parts, self._waiting = [_to_batch(self.table), *self._waiting], []
        rows = _number_rows(parts, self._n_names)
        if (error := rows.find_difference()) is not None:
            error.batch += self._n_numbered - 1
            raise error
        self._n_numbered += len(parts) - 1
        self.table = rows.table.take(pa.array(rows.first))
        return np.split(rows.numbers, np.cumsum([len(part) for part in parts])[:-1])[1:]


class _PartitionedBatches:
    """Batches in a file, each sorted by partition. The partition of a row depends on its names."""

    def __init__(self, folder: Path, schema: pa.Schema, n_names: int) -> None:
        self._folder, self._schema, self._n_names = folder, schema, n_names
        self._path = folder / f"rows {'-'.join(map(str, schema.types))}"
        self._sizes: list[Ints] = []
        with translate_full_disk(folder):
            places = pa.field(_PLACES, pa.int32())
            self._writer = pa.ipc.new_file(str(self._path), schema.append(places))

    def add(self, rows: pa.RecordBatch) -> None:
        """Write a sorted batch, with the place that each of its rows has there."""
        partitions = _choose_partitions(rows.columns[: self._n_names])
        order = np.argsort(partitions, kind="stable")
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        ordered = rows.take(pa.array(order)).append_column(_PLACES, pa.array(places))
        with translate_full_disk(self._folder):
            self._writer.write_batch(ordered)
        self._sizes.append(np.bincount(partitions, minlength=_N_PARTITIONS))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Read the batches in order, each in its own order; none can be added then."""
        self._close()
        for k in range(len(self._sizes)):
            batch = self._open().get_batch(k)
            yield batch.select(self._schema.names).take(batch.column(_PLACES))

    def delete(self) -> None:
        """Delete the files, because the disk is needed for the matrix."""
        for path in (self._path, self._folder / "numbers"):
            with suppress(OSError):  # Windows does not delete files that are mapped
                path.unlink()

    def _close(self) -> None:
        with translate_full_disk(self._folder):
            self._writer.close()

    def _open(self) -> pa.ipc.RecordBatchFileReader:
        """Open the file; what is read from it stays mapped in memory as long as it is used."""
        return pa.ipc.open_file(pa.memory_map(str(self._path)))

    def number(self, first_batch: int, path: Path) -> Iterator[Numbers]:
        """Yield the numbers of the rows of each batch, and write the distinct rows to a file.

        Raises `DifferentValueError`, for which batches count from `first_batch`.
        """
        self._close()
        sizes = np.array(self._sizes)
        partition_numbers, n_distinct = self._number_partitions(sizes, first_batch)
        starts = np.cumsum(sizes.T).reshape(sizes.T.shape).T - sizes
        firsts = np.cumsum(n_distinct) - n_distinct
        known, n_known = np.full(sum(n_distinct), -1, np.int32), 0
        with translate_full_disk(self._folder):
            writer = pa.ipc.new_file(str(path), self._schema)
        for k, ranges in enumerate(zip(starts, sizes, strict=True)):
            batch = self._open().get_batch(k)
            places = batch.column(_PLACES).to_numpy()
            distinct = partition_numbers.read_ranges(*ranges) + np.repeat(firsts, sizes[k])
            distinct = distinct[places]
            numbers = known[distinct]
            new = np.flatnonzero(numbers < 0)
            numbers[new] = np.arange(n_known, n_known + len(new), dtype=np.int32)
            known[distinct[new]] = numbers[new]
            n_known += len(new)
            rows = batch.select(self._schema.names).take(pa.array(places[new]))
            with translate_full_disk(self._folder):
                writer.write_batch(rows)
            yield numbers
        with translate_full_disk(self._folder):
            writer.close()
        self.delete()

    def _number_partitions(self, sizes: Ints, first_batch: int) -> tuple[ArrayFile, list[int]]:
        """Number the rows within each partition, by partition and batch; count the distinct ones.

        `sizes` are the rows of each batch and partition.
        """
        numbers, n_distinct, errors = ArrayFile(self._folder / "numbers"), [], []
        starts = np.cumsum(sizes, axis=1) - sizes
        for partition in range(_N_PARTITIONS):
            own = sizes[:, partition]
            if not own.any():
                n_distinct.append(0)
                continue
            reader = self._open()
            parts = [
                reader.get_batch(k).slice(start, size)
                for k, (start, size) in enumerate(zip(starts[:, partition], own, strict=True))
            ]
            rows = _number_rows([part.select(self._schema.names) for part in parts], self._n_names)
            numbers.add([rows.numbers])
            n_distinct.append(len(rows.first))
            if (error := rows.find_difference()) is not None:
                places = reader.get_batch(error.batch).column(_PLACES).to_numpy()
                place = starts[error.batch, partition] + error.row
                error.row = int((places == place).argmax())
                error.batch += first_batch
                errors.append(error)
        if errors:
            raise min(errors, key=lambda error: (error.batch, error.row))
        return numbers, n_distinct


def _to_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a table as one batch."""
    arrays = (column.combine_chunks() for column in table.columns)
    return pa.record_batch([*arrays], schema=table.schema)


class _NumberedRows(NamedTuple):
    """The rows of some batches, of which the first `n_names` columns are names.

    `numbers` are those of all rows, `first` the first row with each number.
    """

    batches: Sequence[pa.RecordBatch]
    n_names: int
    numbers: Numbers
    first: Numbers

    @property
    def table(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(self.batches)

    def find_difference(self) -> DifferentValueError | None:
        """Find the first row with another value in a column of no names than the row before it."""
        errors = []
        for name in self.table.column_names[self.n_names :]:
            values = self.table.column(name).combine_chunks()
            before = values.take(pa.array(self.first[self.numbers]))
            row = pc.index(pc.not_equal(values, before), True).as_py()
            if row >= 0:
                errors.append((row, name, values[row].as_py(), before[row].as_py()))
        if not errors:
            return None
        row, *texts = min(errors)
        ends = np.cumsum([len(batch) for batch in self.batches])
        batch = int(np.searchsorted(ends, row, side="right"))
        return DifferentValueError(batch, row - int(ends[batch]) + len(self.batches[batch]), *texts)


def _number_rows(batches: Sequence[pa.RecordBatch], n_names: int) -> _NumberedRows:
    """Number the rows of batches in order of appearance."""
    names = pa.Table.from_batches(batches).columns[:n_names]
    numbers = number_values(names[0])
    for column in names[1:]:
        pairs = numbers.astype(np.int64) << 32 | number_values(column)
        numbers = number_values(pa.chunked_array([pa.array(pairs)]))
    return _NumberedRows(batches, n_names, numbers, find_first_rows(numbers))


def number_values(values: pa.ChunkedArray) -> Numbers:
    """Number values in order of appearance."""
    chunks = values.dictionary_encode().chunks
    return np.concatenate([np.empty(0, np.int32), *(chunk.indices.to_numpy() for chunk in chunks)])


def find_first_rows(numbers: Numbers) -> Numbers:
    """Return the first row with each number, given rows numbered in order of appearance."""
    first = np.empty(1 + numbers.max(initial=-1), np.int32)
    first[numbers[::-1]] = np.arange(len(numbers), dtype=np.int32)[::-1]  # the last one counts
    return first


def _choose_partitions(names: Sequence[pa.Array]) -> NDArray[np.uint8]:
    """Choose the partition of each row by its names, so that equal ones have the same."""
    hashes = np.zeros(len(names[0]), np.uint64)
    for column in names:
        own = _hash_texts(column) if pa.types.is_string(column.type) else column.to_numpy()
        hashes = (hashes + own.view(np.uint64)) * np.uint64(_FACTOR)
    return (hashes >> np.uint64(56)).astype(np.uint8)


def _hash_texts(texts: pa.Array) -> NDArray[np.uint64]:
    """Hash texts: the sum of their bytes, each multiplied by a power that depends on its place."""
    hashes = [np.empty(0, np.uint64)]
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        part = texts.slice(start, _TEXTS_AT_ONCE)
        _, ends, data = part.buffers()
        bounds = np.frombuffer(ends, np.int32, len(part) + 1, 4 * part.offset)
        content = np.frombuffer(data or b"", np.uint8)[bounds[0] : bounds[-1]]
        powers, inverses = _list_powers(len(content).bit_length())
        sums = np.append(np.uint64(0), np.cumsum(content * powers[: len(content)]))
        bounds = bounds - bounds[0]
        hashes.append((sums[bounds[1:]] - sums[bounds[:-1]]) * inverses[bounds[:-1]])
    return np.concatenate(hashes)


@lru_cache(maxsize=1)
def _list_powers(n_bits: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """List 2**n_bits powers of a factor, and of its inverse, modulo 2**64."""
    factors = [_FACTOR, pow(_FACTOR, -1, 1 << 64)]
    powers = (np.full(1 << n_bits, factor, np.uint64) for factor in factors)
    first, second = (np.multiply.accumulate(power) for power in powers)
    return first, second
