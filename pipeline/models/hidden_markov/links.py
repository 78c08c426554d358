"""Links between blocks of rows: what each says about the states before and after it.

Blocks are known by their first original row. A sequence goes on from one block to the next if the
next row follows the last, and both are of the same sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError
from pipeline.models.hidden_markov.chains import connect_paths, connect_products
from pipeline.models.state import Arrays
from pipeline.statistics.sums import CountStatistics


class SequenceColumns(NamedTuple):
    """Names of the per-row columns that say which sequence a row is of, and when; empty if none."""

    row_id: str
    time: str

    def find_first_rows(self, block: BinaryBlock) -> NDArray[np.bool_]:
        """Return whether each row begins a sequence, (n_samples,); the first if nobody knows more.

        Raises
        ------
        FitError
            If a row has no sequence, if a sequence goes on after another one, or if times do not
            ascend.
        """
        begins = np.zeros(block.n_samples, np.bool_)
        begins[:1] = True
        if not isinstance(block.row_numbers, range) or block.row_numbers.step != 1:
            begins[1:] = np.diff(block.rows) != 1
        if self.row_id:
            own = self.read(block, self.row_id)
            is_change = np.append(True, own[1:] != own[:-1])[: len(own)]
            _, places = np.unique(own[is_change], return_index=True)
            if len(places) < is_change.sum():
                repeated = np.setdiff1d(np.arange(is_change.sum()), places)
                self._refuse_order(int(block.rows[is_change][repeated[0]]))
            begins |= is_change
        if self.time:
            times = self.read(block, self.time)
            is_wrong = ~begins[1:] & (times[1:] <= times[:-1])
            if is_wrong.any():
                self.refuse_time(int(block.rows[1:][np.argmax(is_wrong)]))
        return begins

    def read(self, block: BinaryBlock, name: str) -> NDArray[np.int64]:
        """Return integers that are equal and in order if the values are; zeros without a name.

        Of texts, these are their codes. Large integers, such as hashes, would be equal as floats.
        """
        if not name:
            return np.zeros(block.n_samples, np.int64)
        if name not in block.columns:
            raise FitError(
                f"The states of rows need the column {name!r}, which is not read here. Use "
                "`transform` or `evaluate`."
            )
        values = block.column(name)
        is_missing = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
        if values.dtype == np.int32:  # codes of texts
            is_missing = values < 0
        if is_missing.any():
            row = int(block.rows[np.argmax(is_missing)]) + 1
            raise FitError(
                f"row {row}: {name} is empty. Leave out the row, or choose another column."
            )
        if values.dtype.kind != "f":
            return values.astype(np.int64)
        bits = (values.astype(np.float64) + 0.0).view(np.int64)  # 0.0 also for -0.0
        return np.where(bits < 0, bits ^ np.iinfo(np.int64).max, bits)

    def refuse_time(self, row: int) -> None:
        """Refuse the time of a row, counted from 0, that is not after the time before."""
        raise FitError(
            f"row {row + 1}: {self.time} is not after the time of the row before. Sort the rows of "
            "each sequence by time, or leave out {time}.",
            parameter="time",
        )

    def _refuse_order(self, row: int) -> None:
        raise FitError(
            f"row {row + 1}: its {self.row_id} has begun before another one. Sort "
            "the rows by sequence, and within a sequence by time.",
            parameter="row_id",
        )


@dataclass(frozen=True)
class Links(CountStatistics):
    """What blocks say about the states before and after them, in the order of their rows.

    Attributes
    ----------
    n_rows, weight
        Number of rows.
    edges
        First and last row of each block, their sequences and times as integers, see
        `SequenceColumns.read`, (n_blocks, 2, 3).
    products
        Results of `multiply_rows`, (n_blocks, n_states + 1, n_states).
    best
        Results of `maximize_rows`, of the same shape, if paths are needed; else (n_blocks, 0, 0).
    """

    label: ClassVar[str] = "links"
    n_rows: int
    weight: float
    edges: NDArray[np.int64]
    products: Array
    best: Array

    @classmethod
    def from_block(
        cls, block: BinaryBlock, columns: SequenceColumns, product: Array, best: Array
    ) -> Self:
        """Describe a block with at least one row."""
        ends = (block.rows, *(columns.read(block, name) for name in columns))
        edges = np.array([[own[place] for own in ends] for place in (0, -1)], np.int64)
        return cls(block.n_samples, block.weight, edges[None], product[None], best[None])

    def merge(self, other: Self) -> Self:
        """Add further blocks."""
        edges = np.concatenate([self.edges, other.edges])
        order = np.argsort(edges[:, 0, 0], kind="stable")
        return type(self)(
            self.n_rows + other.n_rows,
            self.weight + other.weight,
            edges[order],
            np.concatenate([self.products, other.products])[order],
            np.concatenate([self.best, other.best])[order],
        )

    def connect(self, columns: SequenceColumns) -> Arrays:
        """Return what `Neighbours.find` reads: the states before and after each block."""
        n_blocks, _, n_states = self.products.shape
        (rows, sequences, times), (last_rows, last_sequences, last_times) = self.edges.transpose(
            1, 2, 0
        )
        begins = np.ones(n_blocks, np.bool_)
        begins[1:] = (rows[1:] != last_rows[:-1] + 1) | (sequences[1:] != last_sequences[:-1])
        is_wrong = ~begins[1:] & (times[1:] <= last_times[:-1])
        if columns.time and is_wrong.any():
            columns.refuse_time(int(rows[1:][np.argmax(is_wrong)]))
        before, after = np.empty((n_blocks, n_states)), np.empty((n_blocks, n_states))
        connect_products(self.products, begins, before, after)
        arrays: dict[str, NDArray[Any]] = {
            "first_rows": rows,
            "begins": begins,
            "before": before,
            "after": after,
        }
        if self.best.size:
            states = np.empty((2, n_blocks), np.int64)
            connect_paths(self.best, begins, *states)
            arrays |= {"state_before": states[0], "last_state": states[1]}
        return arrays


class Neighbours(NamedTuple):
    """What the rows before and after a block say; see `chains`.

    Attributes
    ----------
    begins
        Whether the block begins a sequence.
    before, after
        Distribution of the state before, and likelihood of the last state.
    state_before, last_state
        States of the likeliest path; None if they were not asked for.
    """

    begins: bool
    before: Array
    after: Array
    state_before: int | None = None
    last_state: int | None = None

    @classmethod
    def find(cls, working: Arrays, block: BinaryBlock, n_states: int) -> Self:
        """Return what `Links.connect` found of a block; without, it is a sequence by itself."""
        even = np.full(n_states, 1.0 / n_states)
        if "first_rows" not in working or not block.n_samples:
            return cls(True, even, even)
        place = int(np.searchsorted(working["first_rows"], int(block.row_numbers[0])))
        states = (
            int(working[name][place]) if name in working else None
            for name in ("state_before", "last_state")
        )
        own = (working[name][place] for name in ("before", "after"))
        return cls(bool(working["begins"][place]), *own, *states)
