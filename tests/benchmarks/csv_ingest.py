"""CSV ingest, file to whole dataset, against pyarrow's own read of the same file.

python -m tests.benchmarks.csv_ingest
"""

import tempfile
from pathlib import Path

import pyarrow.csv

from flows.data.ingest import ingest_sources
from tests.benchmarks.csv_source import N_FEATURES, N_ROWS, REPEATS, seconds, write_csv


def main() -> None:
    """Print both times and their ratio, best of the repeats."""
    with tempfile.TemporaryDirectory() as folder:
        path, dataset = Path(folder) / "data.csv", Path(folder) / "d.zarr"
        write_csv(path)

        def ingest() -> None:
            ingest_sources([str(path)], dataset, overwrite=dataset.exists())

        ingest()
        own = min(seconds(ingest) for _ in range(REPEATS))
        arrow = min(seconds(lambda: pyarrow.csv.read_csv(path)) for _ in range(REPEATS))
    print(f"{N_ROWS} rows x {N_FEATURES} features, best of {REPEATS}")
    print(f"ingest {own:.2f} s, pyarrow.csv.read_csv {arrow:.2f} s, ratio {own / arrow:.2f}")


if __name__ == "__main__":
    main()
