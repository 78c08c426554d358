"""Latent codes of all rows: a task owns a fixed run of rows, whichever chunks these lie in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.blocks import BinaryBlock, Chunk, block_of, blocks_of
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.params import params_from_arrays
from pipeline.random import RowRandom
from pipeline.wanted import check_wanted

ROW = "row"
"""Name of the array of original rows."""
_CELLS_AT_ONCE = 1 << 18  # seconds of work even where a row takes a millisecond


class Run(NamedTuple):
    """The work of one task.

    Attributes
    ----------
    key
        Index of the run.
    start, stop
        Places of its rows among all that are transformed, in original order.
    chunks
        The chunks that they lie in: key, and place of the first row.
    done
        Checksums of the run where one before this wrote it.
    """

    key: int
    start: int
    stop: int
    chunks: tuple[tuple[int, int], ...]
    done: Sequence[int] | None = None


class Store(Protocol):
    """Where runs are written: `storage.codes.CodesWriter` is one."""

    def __call__(self, key: int, codes: Mapping[str, NDArray[Any]]) -> list[int]:
        """Write a run and give a checksum of each array."""

    def holds(self, key: int, checksums: Sequence[int]) -> bool:
        """Tell whether a run lies there as it was written."""


@dataclass(frozen=True)
class Transform:
    """What all tasks share; small enough to send with every one.

    Attributes
    ----------
    model
        Hyperparameters.
    arrays
        Gives the parameters' arrays, where the task is.
    rng
        Draws, keyed by original rows.
    read
        Reads a chunk by its key.
    segments
        The model's index of every segment of the data, (n_segments,).
    dtype
        Type that fractions are stored in.
    """

    model: Model
    arrays: Callable[[], Mapping[str, NDArray[Any]]]
    rng: RowRandom
    read: Callable[[int], Chunk]
    segments: NDArray[np.int64]
    dtype: str

    def codes(self, run: Run) -> dict[str, NDArray[Any]]:
        """Give the codes of a run in original row order, and `row`, the original rows.

        Raises
        ------
        FitError
            If a code is not finite.
        Unwanted
            If the run was interrupted.
        """
        params = params_from_arrays(type(self.model), self.arrays())
        codes: dict[str, NDArray[Any]] = {}
        for block, places in self._parts(run):
            check_wanted()
            found = {ROW: block.rows, **self.model.transform(params, block, self.rng)}
            for name, values in found.items():
                stored = _stored(name, values, block.rows, self.dtype)
                if name not in codes:
                    shape = (run.stop - run.start, *stored.shape[1:])
                    codes[name] = np.empty(shape, stored.dtype)
                codes[name][places - run.start] = stored
        return codes

    def _parts(self, run: Run) -> Iterator[tuple[BinaryBlock, NDArray[np.int64]]]:
        """Cut out the run's rows, few at a time, and say where each belongs."""
        for key, first in run.chunks:
            blocks = [block for block in blocks_of(self.read(key)) if block.n_samples]
            for block, places in zip(blocks, _places(blocks, first), strict=True):
                wanted = np.flatnonzero((places >= run.start) & (places < run.stop))
                for at in _portions(wanted, block.n_features):
                    segment = int(self.segments[block.segment])
                    yield replace(block.taken(at), segment=segment), places[at]


def write_run(transform: Transform, store: Store, run: Run) -> list[int]:
    """Transform and store a run, unless it lies there; give the checksum of each array."""
    if run.done is not None and store.holds(run.key, run.done):
        return list(run.done)
    return store(run.key, transform.codes(run))


def runs_of(n_rows: Sequence[int], size: int) -> list[Run]:
    """Cut the rows of all chunks, so many in each, into runs of one size, the last shorter."""
    edges = np.concatenate([[0], np.cumsum(n_rows)])
    runs = []
    for key, start in enumerate(range(0, int(edges[-1]), size)):
        stop = min(start + size, int(edges[-1]))
        first = np.searchsorted(edges, start, side="right") - 1
        last = np.searchsorted(edges, stop, side="left")
        chunks = tuple((int(k), int(edges[k])) for k in range(first, last) if n_rows[k])
        runs.append(Run(key, start, stop, chunks))
    return runs


def count_kept(read: Callable[[int], Chunk], key: int) -> int:
    """Count the rows of a chunk that are of the chosen split."""
    chunk = read(key)
    return len(chunk.rows) if chunk.keep is None else int(np.count_nonzero(chunk.keep))


def described_codes(
    model: Model, params: Any, n_features: int, dtype: str
) -> dict[str, tuple[tuple[str, ...], tuple[int, ...], str]]:
    """Describe the arrays that `transform` gives, without data.

    Returns
    -------
    dict
        Dimensions, shape and type of what one row has, by name.
    """
    nothing = block_of(np.empty((0, n_features), np.uint8))
    found = model.transform(params, nothing, RowRandom(0))
    return {
        name: (
            model.codes[name],
            values.shape[1:],
            str(_stored(name, values, nothing.rows, dtype).dtype),
        )
        for name, values in found.items()
    }


def _places(blocks: Sequence[BinaryBlock], first: int) -> list[NDArray[np.int64]]:
    """Give the place of every row of a chunk's blocks, counted on from its first row's."""
    rows = np.concatenate([block.rows for block in blocks])
    offsets = rows - rows.min()
    present = np.zeros(int(offsets.max()) + 1, np.bool_)
    present[offsets] = True
    places = first - 1 + np.cumsum(present)[offsets]
    return np.split(places, np.cumsum([block.n_samples for block in blocks])[:-1])


def _portions(wanted: NDArray[np.int64], n_features: int) -> Iterator[NDArray[np.int64]]:
    size = max(64, _CELLS_AT_ONCE // n_features)
    for start in range(0, len(wanted), size):
        yield wanted[start : start + size]


def _stored(name: str, values: NDArray[Any], rows: NDArray[np.int64], dtype: str) -> NDArray[Any]:
    """Give values in the type that they are stored in, finite."""
    if values.dtype.kind != "f":
        return values
    with np.errstate(over="ignore"):
        stored = values.astype(dtype)
    if not (finite := np.isfinite(stored)).all():
        at = int(np.argmin(finite.reshape(len(rows), -1).all(axis=1)))
        raise FitError(
            f"row {rows[at] + 1}: Expected finite codes, got others in {name}. "
            "Fit again with other settings."
        )
    return stored
