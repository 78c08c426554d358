"""Export of codes to CSV and Parquet against pyarrow writing the same table.

python -m tests.benchmarks export [ROWS]

Prints wall seconds, the best of several runs, and speeds relative to pyarrow. `export` includes
reading the codes; `write-only` writes a table that is already in memory, as pyarrow does. Default:
1,000,000 rows.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from flows.exporting.codes import make_code_table
from flows.exporting.files import BatchedTable, write_table
from pipeline.passes.row_ranges import choose_rows_per_range
from storage.codes.codes import CodeArraySpec, Codes, create_codes, open_codes, seal_codes
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import create_dataset
from tests.benchmarks._measure import Table, measure_best
from tests.support.data import ArrayBatch

N_ROWS, N_COMPONENTS = 1_000_000, 5


def write_dataset(folder: Path, n_rows: int, rng: np.random.Generator) -> BinaryDataset:
    """Write rows with an id, a group and a segment each."""
    X = rng.integers(0, 2, (n_rows, 16), np.uint8)
    ids = np.char.add("id", np.arange(n_rows).astype(str))
    columns = {"id": ids, "group": rng.choice(["a", "b", "c"], n_rows)}
    names = [f"f{i}" for i in range(16)]
    path = folder / "d.zarr"
    with create_dataset(path, names, columns=list(columns), expected_rows=n_rows) as writer:
        writer.add(ArrayBatch(X, None, columns), rng.choice(["u", "v"], n_rows))
    return open_dataset(path)


def write_codes(folder: Path, dataset: BinaryDataset, rng: np.random.Generator) -> Codes:
    """Write codes as the transform command does."""
    n_rows = dataset.n_rows
    values = {
        "mean": rng.standard_normal((n_rows, N_COMPONENTS)).astype(np.float32),
        "variance": rng.random((n_rows, N_COMPONENTS)).astype(np.float32),
    }
    shapes = {
        name: CodeArraySpec(("component",), a.shape[1:], "float32") for name, a in values.items()
    }
    size = choose_rows_per_range({name: tuple(shape) for name, shape in shapes.items()}, n_rows)
    writer = create_codes(folder / "codes.zarr", shapes, n_rows, size)
    checksums = [
        writer(key, {name: a[first : first + size] for name, a in values.items()})
        for key, first in enumerate(range(0, n_rows, size))
    ]
    seal_codes(writer, checksums, {"dataset": dataset.describe()})
    return open_codes(folder / "codes.zarr")


def main() -> None:
    """Print one line per file format."""
    n_rows = int(sys.argv[1]) if len(sys.argv) > 1 else N_ROWS
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(0)
        dataset = write_dataset(folder, n_rows, rng)
        codes = write_codes(folder, dataset, rng)
        code_table = make_code_table(codes, dataset)
        whole = pa.Table.from_batches(list(code_table.batches), code_table.schema)
        print(f"{n_rows:,} rows, {N_COMPONENTS} components, {whole.nbytes / 1e6:,.0f} MB in memory")
        table = Table(
            *("format:<8", "pyarrow s:.2f", "export s:.2f", "export speed:.0%"),
            "write-only speed:.0%",
        )
        pyarrow_writers = {".csv": pa.csv.write_csv, ".parquet": pa.parquet.write_table}
        for suffix, write in pyarrow_writers.items():
            export_path, pyarrow_path = folder / f"export{suffix}", folder / f"pyarrow{suffix}"
            pyarrow_seconds = measure_best(
                lambda write=write, path=pyarrow_path: write(whole, path)
            )
            export_seconds = measure_best(
                lambda path=export_path: write_table(make_code_table(codes, dataset), path, True)
            )
            in_memory = BatchedTable(whole.schema, n_rows, whole.to_batches())
            write_seconds = measure_best(
                lambda path=export_path, t=in_memory: write_table(t, path, True)
            )
            speeds = (pyarrow_seconds / seconds for seconds in (export_seconds, write_seconds))
            table.add(suffix[1:], pyarrow_seconds, export_seconds, *speeds)


if __name__ == "__main__":
    main()
