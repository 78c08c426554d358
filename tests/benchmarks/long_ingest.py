"""Ingest of a long table against pyarrow's read of the same file.

python -m tests.benchmarks long_ingest [csv|parquet] [MILLIONS_OF_LINES]

Prints the shortest wall and CPU seconds, ratios to pyarrow and the peak memory of ingest. pyarrow
reads a Parquet file twice: with its default text columns, and as dictionary codes without decoding
texts, which is the lower bound. Default: 10 million lines of CSV.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from flows.data.columns import ColumnRoles
from flows.data.ingest import ingest_sources
from tests.benchmarks._measure import Table, measure_best
from tests.benchmarks.csv_source import REPEATS

N_FEATURES = 100
ROLES = ColumnRoles(long="row=voter,feature=item,value=vote")
WRITERS = {"csv": pa.csv.CSVWriter, "parquet": pa.parquet.ParquetWriter}
READERS = {"csv": pa.csv.read_csv, "parquet": pa.parquet.read_table}
NAMES = ["voter", "item"]


def write(path: Path, n_lines: int) -> None:
    """Write votes of n_lines / 100 voters on 100 items, shuffled within tenths of the file."""
    rng, n_rows = np.random.default_rng(0), n_lines // N_FEATURES
    step = max(1, n_rows // 10)
    schema = pa.schema([("voter", pa.string()), ("item", pa.string()), ("vote", pa.int8())])
    with WRITERS[path.suffix[1:]](path, schema) as writer:
        for first in range(0, n_rows, step):
            cells = rng.permutation(min(step, n_rows - first) * N_FEATURES)
            voters = pa.array(first + cells // N_FEATURES).cast(pa.string())
            items = pa.array([f"q{k}" for k in range(N_FEATURES)]).take(cells % N_FEATURES)
            votes = pa.array(rng.integers(0, 2, len(cells), dtype=np.int8))
            writer.write_table(pa.table([voters, items, votes], schema))


class Times(NamedTuple):
    """Wall and CPU time in seconds."""

    wall: float
    cpu: float


def measure(action: Callable[[], object]) -> Times:
    """Return the shortest times of several runs."""
    runs = []
    for _ in range(REPEATS):
        start = time.process_time()
        wall = measure_best(action, 1)
        runs.append((wall, time.process_time() - start))
    return Times(*map(min, zip(*runs, strict=True)))


def main(kind: str = "csv", millions: int = 10) -> None:
    """Print times, ratios and the peak memory of ingest."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"votes.{kind}"
        write(path, millions * 1_000_000)
        folders = (Path(folder) / f"{k}.zarr" for k in range(REPEATS))
        ingest_times = measure(lambda: ingest_sources([str(path)], next(folders), ROLES))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        readers = {"pyarrow": measure(lambda: READERS[kind](path))}
        if kind == "parquet":
            read = partial(pa.parquet.read_table, path, read_dictionary=NAMES)
            readers["pyarrow, dictionary codes"] = measure(read)
    print(
        f"{millions} million lines of {kind}; ingest: peak memory {peak:.2f} GB, "
        f"{millions / ingest_times.wall:.1f} million lines/s"
    )
    table = Table("method:<26", "wall s:8.2f", "CPU s:8.2f", "wall ratio:.1f", "CPU ratio:.1f")
    for name, times in {"ingest": ingest_times, **readers}.items():
        table.add(name, *times, ingest_times.wall / times.wall, ingest_times.cpu / times.cpu)


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
