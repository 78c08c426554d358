"""Ways to read files of formats that have no reader here."""

from __future__ import annotations

_FRAME = "Read it in Python and pass it on: latentbits.from_dataframe(pandas.READ, path={1!r})."
_WAYS = {
    (".h5", ".hdf5", ".hdf", ".he5"): "Open it with h5py in Python and pass one of its arrays on: "
    "latentbits.from_numpy(h5py.File({0!r})[NAME], path={1!r}).",
    (".feather", ".arrow", ".ipc"): _FRAME.replace("READ", "read_feather({0!r})"),
    (".json",): _FRAME.replace("READ", "read_json({0!r})"),
    (".jsonl", ".ndjson"): _FRAME.replace("READ", "read_json({0!r}, lines=True)"),
    (".orc",): _FRAME.replace("READ", "read_orc({0!r})"),
    (".sas7bdat", ".xpt"): _FRAME.replace("READ", "read_sas({0!r})"),
    (".pkl", ".pickle"): _FRAME.replace("READ", "read_pickle({0!r})"),
    (".por",): _FRAME.replace("READ", "read_spss({0!r})"),
    (".mat",): "Read it in Python and pass a matrix on: "
    "latentbits.from_numpy(scipy.io.loadmat({0!r})[NAME], path={1!r}).",
    (".nc", ".nc4"): "Read it in Python and pass it on: "
    "latentbits.from_dataframe(xarray.open_dataarray({0!r}), path={1!r}).",
    (".rds", ".rda", ".rdata"): "Write the data frame in R with write.csv(DATA, 'data.csv', "
    "row.names = FALSE), and read that file.",
    (".xls", ".xlsb", ".xlsm", ".ods", ".numbers"): "Open it in a spreadsheet program, save it as "
    ".xlsx or .csv, and read that file.",
    (".vcf", ".vcf.gz", ".bcf", ".bgen", ".pgen", ".ped"): "Convert it to .bed with PLINK, and "
    "read the .bed file.",
    (".loom",): "Convert it with anndata.read_loom({0!r}).write_h5ad('data.h5ad'), and read that.",
    (".db", ".sqlite", ".duckdb"): "Export the table to a .parquet or .csv file, and read that.",
    (".zip", ".tar", ".tar.gz", ".tgz", ".7z", ".bz2", ".xz", ".zst"): "Unpack it, or compress a "
    "text file with gzip.",
    (".txt", ".tab", ".data", ".asc"): "If it is a table separated by commas or tabs, rename it to "
    ".csv or .tsv.",
    (".parq", ".pq"): "Rename it to .parquet.",
}


def explain_other_format(path: str) -> str | None:
    """Return how to read a file of a known format without a reader; None if it is not known."""
    name = path.lower()
    for suffixes, way in _WAYS.items():
        if name.endswith(suffixes):
            return way.format(path, "data.zarr")
    return None
