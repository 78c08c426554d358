"""Ingest of a long table against pyarrow's read of the same file.

python -m tests.benchmarks long_ingest [csv|parquet|integers] [MILLIONS_OF_LINES [LINES_PER_ROW]]

Prints the shortest wall and CPU seconds, ratios to pyarrow and the peak memory of ingest. pyarrow
reads a Parquet file twice: with its default text columns, and as dictionary codes without decoding
texts, which is the lower bound. `integers` is Parquet whose rows are named by integers. Default: 10
million lines of CSV, 100 per row.
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


def write(path: Path, n_lines: int, row_lines: int, name_type: pa.DataType) -> None:
    """Write votes on 100 items, `row_lines` by each voter, shuffled within tenths of the file."""
    rng, n_rows = np.random.default_rng(0), n_lines // row_lines
    step = max(1, n_rows // 10)
    schema = pa.schema([("voter", name_type), ("item", pa.string()), ("vote", pa.int8())])
    with WRITERS[path.suffix[1:]](path, schema) as writer:
        for first in range(0, n_rows, step):
            lines = rng.permutation(min(step, n_rows - first) * row_lines)
            numbers = first + lines // row_lines
            voters = pa.array(numbers).cast(name_type)
            own_items = (numbers + lines % row_lines) % N_FEATURES
            items = pa.array([f"q{k}" for k in range(N_FEATURES)]).take(own_items)
            votes = pa.array(rng.integers(0, 2, len(lines), dtype=np.int8))
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


def main(kind: str = "csv", millions: int = 10, row_lines: int = N_FEATURES) -> None:
    """Print times, ratios and the peak memory of ingest."""
    name_type = pa.int64() if kind == "integers" else pa.string()
    kind = "parquet" if kind == "integers" else kind
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"votes.{kind}"
        write(path, millions * 1_000_000, row_lines, name_type)
        folders = (Path(folder) / f"{k}.zarr" for k in range(REPEATS))
        ingest_times = measure(lambda: ingest_sources([str(path)], next(folders), ROLES))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        readers = {"pyarrow": measure(lambda: READERS[kind](path))}
        if kind == "parquet":
            read = partial(pa.parquet.read_table, path, read_dictionary=NAMES)
            readers["pyarrow, dictionary codes"] = measure(read)
    print(
        f"{millions} million lines of {kind}, {row_lines} per row; ingest: peak memory "
        f"{peak:.2f} GB, {millions / ingest_times.wall:.1f} million lines/s"
    )
    table = Table("method:<26", "wall s:8.2f", "CPU s:8.2f", "wall ratio:.1f", "CPU ratio:.1f")
    for name, times in {"ingest": ingest_times, **readers}.items():
        table.add(name, *times, ingest_times.wall / times.wall, ingest_times.cpu / times.cpu)


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
