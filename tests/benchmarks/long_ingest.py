"""Ingest of a long table, file to whole dataset, against pyarrow's own read of the same file.

`python -m tests.benchmarks.long_ingest [csv|parquet] [MILLIONS OF LINES]`
"""

from __future__ import annotations

import resource
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from flows.data.columns import ColumnRoles
from flows.data.ingest import ingest_sources
from tests.benchmarks.csv_ingest import REPEATS, seconds

N_FEATURES = 100
ROLES = ColumnRoles(long="row=voter,feature=item,value=vote")
WRITERS = {"csv": pa.csv.CSVWriter, "parquet": pa.parquet.ParquetWriter}
READERS = {"csv": pa.csv.read_csv, "parquet": pa.parquet.read_table}


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


def main(kind: str = "csv", millions: int = 10) -> None:
    """Print the best times and their ratio, and the peak of memory before pyarrow's."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"votes.{kind}"
        write(path, millions * 1_000_000)
        own = min(
            seconds(lambda k=k: ingest_sources([str(path)], Path(folder) / f"{k}.zarr", ROLES))
            for k in range(REPEATS)
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        arrow = min(seconds(lambda: READERS[kind](path)) for _ in range(REPEATS))
    print(f"{millions} million lines of {kind}: {own:.2f} s, peak {peak:.2f} GB, pyarrow "
          f"{arrow:.2f} s: {arrow / own:.2f} of its speed")  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:2], *map(int, sys.argv[2:]))
