"""Ingest of binary files into a dataset against the read of the same file by its own library.

python -m tests.benchmarks ingest

Prints CPU seconds, the best of several runs that alternate. Libraries read in batches of rows, as
the ingest does, because memory for whole tables costs time of its own.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import zarr

from flows.data.ingest import ingest_sources
from tests.benchmarks._measure import Table, alternate

N_ROWS, N_FEATURES, REPEATS, ROWS_AT_ONCE = 2_000_000, 128, 3, 131_072


def write_parquet(path: Path, X: np.ndarray) -> None:
    table = pa.table({f"f{j}": np.ascontiguousarray(column) for j, column in enumerate(X.T)})
    if X.dtype.kind == "U":
        table = pa.table({name: table[name].dictionary_encode() for name in table.column_names})
    pyarrow.parquet.write_table(table, path, row_group_size=1_000_000)


def read_parquet(path: Path) -> None:
    for _ in pyarrow.parquet.ParquetFile(path).iter_batches(ROWS_AT_ONCE):
        pass


def write_zarr(path: Path, X: np.ndarray) -> None:
    zarr.create_array(path, data=X, chunks=(65_536, X.shape[1]))


def read_array(X: np.ndarray | zarr.Array) -> None:
    for first in range(0, X.shape[0], ROWS_AT_ONCE):
        np.max(X[first : first + ROWS_AT_ONCE])


FORMATS: dict[str, tuple[str, type, Callable[[Path, np.ndarray], None], Callable[[Path], None]]] = {
    "Parquet, booleans": ("b.parquet", np.bool_, write_parquet, read_parquet),
    "Parquet, uint8": ("u.parquet", np.uint8, write_parquet, read_parquet),
    "Parquet, dictionary": ("d.parquet", np.str_, write_parquet, read_parquet),
    ".npy, uint8": ("u.npy", np.uint8, np.save, lambda p: read_array(np.load(p, "r"))),
    "Zarr, uint8": ("u.zarr", np.uint8, write_zarr, lambda p: read_array(zarr.open_array(p))),
}


def main() -> None:
    """Compare the ingest of each format with the read by its library."""
    n_rows = int(sys.argv[1]) if len(sys.argv) > 1 else N_ROWS
    rng = np.random.default_rng(0)
    X = np.empty((n_rows, N_FEATURES), np.uint8)
    for rows in np.array_split(X, -(-n_rows // 100_000)):
        rows[:] = rng.random(rows.shape, np.float32) < np.linspace(0.05, 0.6, N_FEATURES)
    table = Table("format:<20", "ingest:7.2f", "read:7.2f", "ratio:6.2f")
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder) / "d.zarr"
        for name, (file, kind, write, read) in FORMATS.items():
            path = Path(folder) / file
            write(path, X.astype(kind))

            def ingest(path: Path = path) -> None:
                ingest_sources([str(path)], dataset, overwrite=dataset.exists())

            calls = {"ingest": ingest, "read": lambda path=path, read=read: read(path)}
            seconds = alternate(calls, REPEATS, time.process_time)
            own, library = (min(seconds[call]) for call in calls)
            table.add(name, own, library, own / library)
            shutil.rmtree(path) if path.is_dir() else path.unlink()


if __name__ == "__main__":
    main()
