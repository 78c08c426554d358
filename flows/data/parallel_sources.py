"""Read several sources in parallel, and yield their batches in order."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from pipeline.executors.base import iter_results_in_order
from storage.dataset.chunks import pack_rows, unpack_rows
from storage.sources import SourceBatch

_SPOOL_BYTES = 64 << 20


def iter_batches_in_order(sources: Sequence[Any]) -> Iterator[SourceBatch]:
    """Yield the batches of all sources in order.

    Sources are read in parallel; those ahead of their turn wait, bit-packed, in temporary files.
    """
    if len(sources) == 1:
        yield from sources[0].iter_batches()
        return
    from dask.system import CPU_COUNT

    with ThreadPoolExecutor(CPU_COUNT) as pool:
        waiting = iter_results_in_order(
            lambda source: pool.submit(_spool_source, source),
            lambda done: done.result(),
            sources,
            CPU_COUNT + 1,
        )
        for source, spool in zip(sources, waiting, strict=True):
            with spool:
                yield from _iter_spool(source, spool)


def _spool_source(source: Any) -> IO[bytes]:
    """Read a whole source into a temporary file, as a sequence of NumPy arrays.

    Each bit of the levels is packed: one if all are 0 and 1.
    """
    spool = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115 (the reader closes it)
    for batch in source.iter_batches():
        mask = np.empty((0, 0), np.uint8) if batch.observed is None else pack_rows(batch.observed)
        columns = (_convert_objects_to_text(batch.columns[name]) for name in source.column_names)
        n_bits = max(1, int(batch.X.max(initial=0)).bit_length())
        levels = (pack_rows(batch.X if n_bits == 1 else batch.X >> k & 1) for k in range(n_bits))
        numbers = np.empty((0, 0), np.float32) if batch.numbers is None else batch.numbers
        for values in (np.array([n_bits, batch.X.shape[1]]), *levels, mask, numbers, *columns):
            np.save(spool, values, allow_pickle=False)
    return spool


def _iter_spool(source: Any, spool: IO[bytes]) -> Iterator[SourceBatch]:
    end = spool.tell()
    spool.seek(0)
    while spool.tell() < end:
        n_bits, n_features = np.load(spool).tolist()
        X = unpack_rows(np.load(spool), n_features)
        for k in range(1, n_bits):
            X |= unpack_rows(np.load(spool), n_features) << k
        mask, numbers = np.load(spool), np.load(spool)
        columns = {name: np.load(spool) for name in source.column_names}
        observed = unpack_rows(mask, n_features) if mask.size else None
        yield SourceBatch(X, observed, columns, numbers=numbers if numbers.size else None)


def _convert_objects_to_text(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(str) if values.dtype.kind == "O" else values
