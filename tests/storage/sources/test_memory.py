"""Reading five times as much takes no more memory."""

from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.sparse

from storage.sources import arrays, base, number_texts, open_source
from storage.sources import csv as tables
from tests.support.traced_memory import measure_peak_memory, start_tracing_process

# Small batches and blocks, so that the few rows are many of them already: as text, more than the 32
# blocks that Arrow reads ahead.
N_FEATURES, N_ROWS, N_TIMES = 100, 12_000, 5
CELLS = BLOCK = 1 << 16
# Arrow may free a buffer late, so no pool may die before the process does.
POOLS = []


@pytest.fixture(scope="module")
def process():
    with start_tracing_process() as process:
        process.submit(_small_batches).result()
        yield process


def _small_batches():
    base.BATCH_CELLS = arrays._ENTRIES_AT_ONCE = CELLS
    tables.TABLE_BLOCK_BYTES = number_texts.NUMBER_BLOCK_BYTES = BLOCK


@contextmanager
def fresh_arrow_pool():
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    POOLS.append(pool)
    pa.set_memory_pool(pool)
    yield pool
    pa.set_memory_pool(before)


def count_rows(path):
    """Read a file; return its rows and the peak of Arrow's memory."""
    with fresh_arrow_pool() as pool:
        return sum(
            len(batch.X) for batch in open_source(str(path)).iter_batches()
        ), pool.max_memory()


def bits(n_rows):
    return (np.random.default_rng(0).random((n_rows, N_FEATURES)) < 0.3).astype(np.uint8)


def write_npy(path, X):
    np.save(path / "a.npy", X)
    return path / "a.npy"


def write_npz(path, X):
    np.savez_compressed(path / "a.npz", X=X, y=X[:, 0])
    return path / "a.npz"


def write_npz_fortran(path, X):
    np.savez(path / "a.npz", X=np.asfortranarray(X))
    return path / "a.npz"


def write_packed(path, X):
    np.savez(path / "a.npz", X=np.packbits(X, axis=1), shape=X.shape)
    return path / "a.npz"


def write_sparse(path, X, kind):
    matrix = scipy.sparse.csr_array(X).asformat(kind)
    scipy.sparse.save_npz(path / "a.npz", matrix, compressed=False)
    return path / "a.npz"


def write_csr(path, X):
    return write_sparse(path, X, "csr")


def write_csc(path, X):
    return write_sparse(path, X, "csc")


def write_csv(path, X):
    text = np.full((len(X), 2 * N_FEATURES), ord(","), np.uint8)
    text[:, 0::2] = ord("0") + X
    text[:, -1] = ord("\n")
    (path / "a.csv").write_bytes(text.tobytes())
    return path / "a.csv"


def write_mtx(path, X):
    entries = np.argwhere(X) + 1
    head = f"%%MatrixMarket matrix coordinate pattern general\n{len(X)} {N_FEATURES} {len(entries)}"
    np.savetxt(path / "a.mtx", entries, "%d", header=head, comments="")
    return path / "a.mtx"


def write_parquet(path, X):
    table = pa.table({f"f{j}": column for j, column in enumerate(X.T)})
    pa.parquet.write_table(table, path / "a.parquet", row_group_size=1000)
    return path / "a.parquet"


WRITERS = [
    write_npy,
    write_npz,
    write_npz_fortran,
    write_packed,
    write_csr,
    write_csc,
    write_csv,
    write_mtx,
    write_parquet,
]


@pytest.mark.matrix
@pytest.mark.parametrize("write", WRITERS)
def test_memory_does_not_grow_with_the_file(tmp_path, process, write):
    X = bits(N_TIMES * N_ROWS)

    def rows_and_peak(n_rows):
        path = write(tmp_path, X[:n_rows])
        (rows, arrow), others = process.submit(measure_peak_memory, count_rows, path).result()
        return rows, arrow + others

    rows_and_peak(1000)  # What is imported and cached once is no growth.
    few, few_peak = rows_and_peak(N_ROWS)
    many, many_peak = rows_and_peak(N_TIMES * N_ROWS)
    assert (few, many) == (N_ROWS, N_TIMES * N_ROWS)
    assert many_peak < 1.25 * few_peak + 50_000
