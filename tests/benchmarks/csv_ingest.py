"""CSV ingest into a dataset against pyarrow's read of the same file.

python -m tests.benchmarks csv_ingest

Prints wall seconds, the best of several runs.
"""

import tempfile
from pathlib import Path

import pyarrow.csv

from flows.data.ingest import ingest_sources
from tests.benchmarks.csv_source import N_FEATURES, N_ROWS, REPEATS, measure_seconds, write_csv


def main() -> None:
    """Print both times and their ratio."""
    with tempfile.TemporaryDirectory() as folder:
        path, dataset = Path(folder) / "data.csv", Path(folder) / "d.zarr"
        write_csv(path)

        def ingest() -> None:
            ingest_sources([str(path)], dataset, overwrite=dataset.exists())

        ingest()
        ingest_seconds = min(measure_seconds(ingest) for _ in range(REPEATS))
        pyarrow_seconds = min(
            measure_seconds(lambda: pyarrow.csv.read_csv(path)) for _ in range(REPEATS)
        )
    print(f"{N_ROWS:,} rows x {N_FEATURES} features, best of {REPEATS} runs")
    print(f"ingest: {ingest_seconds:.2f} s")
    print(f"pyarrow.csv.read_csv: {pyarrow_seconds:.2f} s")
    print(f"ratio: {ingest_seconds / pyarrow_seconds:.2f}")


if __name__ == "__main__":
    main()
