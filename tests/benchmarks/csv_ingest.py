"""CSV ingest into a dataset against pyarrow's read of the same file.

python -m tests.benchmarks csv_ingest

Prints wall seconds, the best of several runs.
"""

import tempfile
from pathlib import Path

from flows.data.ingest import ingest_sources
from tests.benchmarks.csv_source import compare_with_pyarrow, write_csv


def main() -> None:
    """Compare the ingest with pyarrow."""
    with tempfile.TemporaryDirectory() as folder:
        path, dataset = Path(folder) / "data.csv", Path(folder) / "d.zarr"
        write_csv(path)

        def ingest() -> None:
            ingest_sources([str(path)], dataset, overwrite=dataset.exists())

        ingest()  # compile the kernels
        compare_with_pyarrow("ingest", ingest, path)


if __name__ == "__main__":
    main()
