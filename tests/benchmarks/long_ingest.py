"""Ingest of a long table, file to whole dataset, against pyarrow's own read of the same file.

Texts of Parquet files are read as pyarrow returns them by default and, as the physical limit, as
the codes that the file stores.

`python -m tests.benchmarks.long_ingest [csv|parquet] [MILLIONS OF LINES]`
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
from tests.benchmarks.csv_ingest import REPEATS, measure_seconds

N_FEATURES = 100
ROLES = ColumnRoles(long="row=voter,feature=item,value=vote")
WRITERS = {"csv": pa.csv.CSVWriter, "parquet": pa.parquet.ParquetWriter}
READERS = {"csv": pa.csv.read_csv, "parquet": pa.parquet.read_table}
NAMES = ["voter", "item"]


def write(path: Path, n_lines: int) -> None:
    """Write votes of n_lines / 100 voters on 100 items, a tenth of a file at a time shuffled."""
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
    """Wall and CPU seconds."""

    wall: float
    cpu: float


def measure(action: Callable[[], object]) -> Times:
    """Return the lowest times of the repeats."""
    runs = []
    for _ in range(REPEATS):
        begun = time.process_time()
        wall = measure_seconds(action)
        runs.append((wall, time.process_time() - begun))
    return Times(*map(min, zip(*runs, strict=True)))


def main(kind: str = "csv", millions: int = 10) -> None:
    """Print the best times, their ratios, and the peak of memory before that of pyarrow."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"votes.{kind}"
        write(path, millions * 1_000_000)
        folders = (Path(folder) / f"{k}.zarr" for k in range(REPEATS))
        own = measure(lambda: ingest_sources([str(path)], next(folders), ROLES))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        sides = {"pyarrow": measure(lambda: READERS[kind](path))}
        if kind == "parquet":
            read = partial(pa.parquet.read_table, path, read_dictionary=NAMES)
            sides["pyarrow, codes of texts"] = measure(read)
    print(f"{millions} million lines of {kind}: {own.wall:.2f} s, CPU {own.cpu:.2f} s, peak "
          f"{peak:.2f} GB, {millions / own.wall:.1f} million lines/s")  # fmt: skip
    for name, other in sides.items():
        print(f"  {name}: {other.wall:.2f} s, CPU {other.cpu:.2f} s; ingest takes "
              f"{own.wall / other.wall:.1f} times as long, {own.cpu / other.cpu:.1f} times the "
              "CPU time")  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
