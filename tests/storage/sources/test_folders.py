"""Folders called NAME=VALUE give columns to the rows of the files in them."""

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pytest

from storage.errors import DataError
from storage.sources import ReadOptions, collect_tags, expand_sources, open_source

from .test_sources import read

YEARS = np.repeat(["2024", "2025"], [6, 5])
COUNTRIES = np.array(["Côte d'Ivoire", "A/B"] * 5 + ["A/B"])
VALUES = np.random.default_rng(1).integers(0, 2, (11, 3))


@pytest.fixture(params=["parquet", "csv"])
def folder(tmp_path, request):
    """As Arrow writes them."""
    columns = {f"q{k}": VALUES[:, k] for k in range(3)}
    table = pa.table({**columns, "year": YEARS, "country": COUNTRIES})
    pa.dataset.write_dataset(
        table,
        tmp_path / "calls",
        format=request.param,
        partitioning=pa.dataset.partitioning(
            table.select(["year", "country"]).schema, flavor="hive"
        ),
    )
    (tmp_path / "calls" / "_SUCCESS").touch()
    return tmp_path / "calls"


def rows_of(folder, options):
    sources = [open_source(path, options) for path in expand_sources([str(folder)])]
    return sources, [read(source) for source in sources]


def test_columns_come_from_the_folders(folder):
    sources, found = rows_of(folder, ReadOptions(row_columns=("country", "year")))
    assert [source.feature_names for source in sources] == [("q0", "q1", "q2")] * 4
    years = [year for _, columns in found for year in columns["year"]]
    countries = [country for _, columns in found for country in columns["country"]]
    values = np.concatenate([values for values, _ in found])
    order = np.lexsort((COUNTRIES, YEARS))
    assert years == YEARS[order].tolist()
    given, told = ({*zip(y, c, map(bytes, v.astype("i1")), strict=True)} for y, c, v in [
        (YEARS, COUNTRIES, VALUES), (years, countries, values)
    ])  # fmt: skip
    assert given == told
    assert len(collect_tags(sources)) == 4


def test_columns_that_are_not_wanted_stay_out(folder):
    sources, found = rows_of(folder, ReadOptions())
    assert {source.column_names for source in sources} == {()}
    assert sum(len(values) for values, _ in found) == 11


def test_no_value(tmp_path):
    path = tmp_path / "year=__HIVE_DEFAULT_PARTITION__"
    path.mkdir()
    (path / "a.csv").write_text("q0,q1\n1,0\n")
    assert read(open_source(str(path / "a.csv"), ReadOptions(row_columns=("year",))))[1] == {
        "year": [""]
    }


def test_column_in_both(tmp_path):
    path = tmp_path / "year=2024"
    path.mkdir()
    (path / "a.csv").write_text("q0,q1,year\n1,0,1\n")
    with pytest.raises(DataError, match=r"column 'year' is both in the file and in the folder"):
        open_source(str(path / "a.csv"), ReadOptions(row_columns=("year",)))


def test_partitioned_folder_without_data(tmp_path):
    (tmp_path / "year=2024").mkdir()
    with pytest.raises(DataError, match="this is a folder, not a file or a Zarr array"):
        expand_sources([str(tmp_path)])
