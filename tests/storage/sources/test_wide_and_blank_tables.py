"""Tables of very many columns or blank cells are read, or refused, in bounded time."""

import zipfile

import numpy as np
import openpyxl
import pyarrow as pa
import pyarrow.parquet
import pytest

from storage.errors import DataError
from storage.sources import (
    ReadOptions,
    csv,
    open_source,
    parse_continuous,
    parse_levels,
    parse_map,
    record_tables,
)


def read(path, options):
    """All values, 2 where missing, numbers and per-row columns; or the refusal."""
    try:
        batches = list(open_source(str(path), options).iter_batches())
    except DataError as error:
        return str(error)
    X = [b.X + 0 if b.observed is None else np.where(b.observed, b.X, 255) for b in batches]
    numbers = [[] if b.numbers is None else b.numbers.tolist() for b in batches]
    columns = [{name: values.tolist() for name, values in b.columns.items()} for b in batches]
    return np.concatenate(X).tolist(), str(numbers), str(columns)


OPTIONS = {
    "bits": ReadOptions(),
    "kept": ReadOptions(row_columns=("id", "b"), drop=("id2",)),
    "missing": ReadOptions(row_columns=("id",), drop=("id2",), missing=("0",)),
    "threshold": ReadOptions(row_columns=("id",), drop=("id2",), threshold=0.5),
    "map": ReadOptions(row_columns=("id",), drop=("id2",), maps=(parse_map("1=0,0=1"),)),
    "levels": ReadOptions(
        row_columns=("id",), drop=("id2",), maps=(parse_levels("c:0<1<2"), parse_map("0=0,1=1,2=1"))
    ),
    "continuous": ReadOptions(
        row_columns=("id",), drop=("id2",), maps=tuple(parse_continuous("a,c")), missing=("2",)
    ),
}
LINES = {
    "plain": ["x,1,0,1,y", "é,0,1,0,"],
    "odd": ["x, 1,0.0,NA,y", "z,,true,1.0,y", "x,FALSE,?,0,y"],
    "quoted": ["x,1,0,1,y", '"a,b",0,1,0,y'],
    "two": ["x,1,0,2,y", "x,2,1,0,y", "x,0,0,1,y"],
    "numbers": ["x,1.5,0,-3e2,y", "x,0.1,1,7,y"],
    "wrong": ["x,1,0,1,y", "x,0,maybe,1,y", "x,0,1,0_1,y"],
    "ragged": ["x,1,0,1,y", "x,0,1", "x,1,0,1,y,z,0"],
    "blank line": ["x,1,0,1,y", "", "x,0,1,0,y"],
    "no text": ["x,1,0,1,y", "x,0,1,0,\udcff"],
}


@pytest.mark.parametrize("name", [*OPTIONS])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_cells_are_read_as_columns_are(tmp_path, monkeypatch, name, end):
    path = tmp_path / "a.csv"
    for lines in LINES.values():
        text = end.join(["id,a,b,c,id2", *lines])
        path.write_bytes(text.encode(errors="surrogateescape"))
        monkeypatch.setattr(csv, "_MANY_COLUMNS", 1 << 30)
        expected = read(path, OPTIONS[name])
        monkeypatch.setattr(csv, "_MANY_COLUMNS", 1)
        assert read(path, OPTIONS[name]) == expected


def test_a_table_of_many_columns_is_read(tmp_path):
    n = 40_000
    X = np.random.default_rng(0).integers(0, 2, (3, n))
    lines = [[f"feature{k}" for k in range(n)], *X.astype(str).tolist()]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(map(",".join, lines)) + "\n")
    assert read(path, ReadOptions())[0] == X.tolist()


def test_too_many_columns_of_parquet_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(record_tables, "_MAX_COLUMNS", 3)
    pa.parquet.write_table(pa.table({name: [0, 1] for name in "abcd"}), tmp_path / "a.parquet")
    assert "4 columns are to be read, but at most 3" in read(tmp_path / "a.parquet", ReadOptions())
    assert read(tmp_path / "a.parquet", ReadOptions(drop=("a",)))[0] == [[0, 0, 0], [1, 1, 1]]


def test_blank_cells_are_skipped_and_too_much_xml_is_refused(tmp_path, monkeypatch):
    book = openpyxl.Workbook()
    X = np.random.default_rng(0).integers(0, 2, (300, 3))
    book.active.append(["a", "b", "c"])
    for row in X.tolist():
        book.active.append([None if value == row[2] == 1 else value for value in row])
    book.save(tmp_path / "a.xlsx")
    expected = read(tmp_path / "a.xlsx", ReadOptions())
    with (
        zipfile.ZipFile(tmp_path / "a.xlsx") as source,
        zipfile.ZipFile(tmp_path / "blank.xlsx", "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for member in source.namelist():
            data = source.read(member)
            if member.endswith("sheet1.xml"):
                blanks = "".join(f'<c r="{c}{{0}}" s="1"/>' for c in "DEFGHIJ") + " "
                rows = [f'<row r="{r}">{blanks.format(r)}</row>' for r in range(302, 9000)]
                data = data.replace(
                    b"</sheetData>", (" " * 100_000 + "".join(rows)).encode() + b"</sheetData>"
                )
            target.writestr(member, data)
    assert read(tmp_path / "blank.xlsx", ReadOptions()) == expected
    monkeypatch.setattr(record_tables, "_MAX_XML_BYTES", 1 << 19)
    message = read(tmp_path / "blank.xlsx", ReadOptions())
    assert "of XML, more than" in message
    assert "Delete the blank rows and columns" in message
