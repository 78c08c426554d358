"""Files of SPSS, Stata, Excel, PLINK and AnnData, written by the packages that read them."""

import zipfile
from pathlib import Path

import anndata
import bed_reader
import h5py
import numpy as np
import openpyxl
import pandas as pd
import pyreadstat
import pytest
import scipy.sparse

from storage.errors import DataError
from storage.sources import ReadOptions, base, open_source, parse_continuous, parse_map

from .test_sources import read

RNG = np.random.default_rng(4)
N_ROWS, N_FEATURES = 137, 5
# 0, 1 and NaN for a missing value.
VALUES = np.where(RNG.random((N_ROWS, N_FEATURES)) < 0.1, np.nan, RNG.integers(0, 2, (137, 5)))
YEARS = np.repeat([2024, 2025], [100, 37])
PERSONS = [f"p{k}" for k in range(N_ROWS)]
OPTIONS = ReadOptions(row_columns=("year", "person"))
COLUMNS = {"year": [str(year) for year in YEARS], "person": PERSONS}


@pytest.fixture(autouse=True, scope="module")
def _small_batches():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "BATCH_CELLS", 5 * 64)
        yield


def frame(values=VALUES):
    table = pd.DataFrame(values, columns=[f"q{k}" for k in range(values.shape[1])])
    return table.assign(year=YEARS, person=PERSONS)


def same(source, values=VALUES, columns=COLUMNS):
    found, kept = read(source)
    np.testing.assert_array_equal(found, values)
    assert kept == columns


@pytest.mark.parametrize("name", ["a.sav", "a.zsav", "a.dta"])
def test_statistics_packages(tmp_path, name):
    path = str(tmp_path / name)
    if name == "a.dta":
        pyreadstat.write_dta(frame(), path)
    else:
        pyreadstat.write_sav(frame(), path, compress=name == "a.zsav")
    source = open_source(path, OPTIONS)
    assert source.feature_names == ("q0", "q1", "q2", "q3", "q4")
    same(source)


def test_codes_with_labels_are_mapped_by_their_codes_and_what_spss_calls_missing_is(tmp_path):
    codes = np.where(np.isnan(VALUES), 9, 2 - VALUES)  # 1 yes, 2 no, 9 refused
    path = str(tmp_path / "a.sav")
    labels = {f"q{k}": {1: "yes", 2: "no", 9: "refused"} for k in range(5)}
    missing = {name: [9] for name in labels}
    pyreadstat.write_sav(frame(codes), path, variable_value_labels=labels, missing_ranges=missing)
    maps = (parse_map("1=1,2=0"),)
    same(open_source(path, ReadOptions(row_columns=("year", "person"), maps=maps)))
    with pytest.raises(DataError, match=r"column 'q0': the value .* is not 0, 1, true"):
        read(open_source(path, OPTIONS))


def write_excel(path, sheets):
    book = openpyxl.Workbook()
    book.remove(book.active)
    for title, rows in sheets.items():
        sheet = book.create_sheet(title)
        for row in rows:
            sheet.append(row)
    book.save(path)


def excel_rows():
    rows = frame().astype(object).where(frame().notna(), None)
    return [list(rows.columns), *rows.to_numpy().tolist()]


def test_excel(tmp_path):
    path = str(tmp_path / "a.xlsx")
    write_excel(path, {"answers": [*excel_rows(), [None] * 7], "empty": []})
    same(open_source(path, OPTIONS))


def test_excel_with_booleans_texts_and_short_rows(tmp_path):
    path = str(tmp_path / "a.xlsx")
    write_excel(path, {"s": [["a", "b"], [True, "no"], [False, "yes"], [1]]})
    found, _ = read(open_source(path, ReadOptions(maps=(parse_map("b:yes=1,no=0"),))))
    np.testing.assert_array_equal(found, [[1, 0], [0, 1], [1, np.nan]])


def test_excel_of_two_sheets_names_both(tmp_path):
    path = str(tmp_path / "a.xlsx")
    write_excel(path, {"spring": [["a"], [1]], "autumn": [["a"], [0]]})
    with pytest.raises(DataError, match=r"several sheets have values: 'spring', 'autumn'"):
        open_source(path)


def test_empty_excel(tmp_path):
    path = str(tmp_path / "a.xlsx")
    write_excel(path, {"s": []})
    with pytest.raises(DataError, match="the first row contains no names"):
        open_source(path)


def edit_excel(path, sheet_edits, member="xl/worksheets/sheet1.xml"):
    """Replace texts in a member of an Excel file."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for old, new in sheet_edits.items():
        assert old.encode() in members[member]
        members[member] = members[member].replace(old.encode(), new.encode())
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def test_all_rows_of_an_excel_file_that_states_a_smaller_size(tmp_path):
    path = str(tmp_path / "a.xlsx")
    write_excel(path, {"answers": excel_rows()})
    edit_excel(path, {'<dimension ref="A1:G138"': '<dimension ref="A1:B3"'})
    same(open_source(path, OPTIONS))


NO_RESULT = "cell B7 has a formula, but the file does not contain its result. Open the file in a"


def test_a_formula_of_an_excel_file_needs_its_result(tmp_path):
    path = str(tmp_path / "a.xlsx")
    rows = [["a", "b"], *([k % 2, 1] for k in range(9))]
    rows[6][1] = "=A7"
    write_excel(path, {"s": rows})
    with pytest.raises(DataError, match=rf"a\.xlsx: {NO_RESULT}"):
        read(open_source(path))
    found, _ = read(open_source(path, ReadOptions(drop=("b",))))
    assert found[:, 0].tolist() == [k % 2 for k in range(9)]
    cell = '<c r="B7"{}><f>A7</f>{}</c>'
    edit_excel(path, {cell.format("", "<v />"): cell.format("", "<v>0</v>")})
    found, _ = read(open_source(path))
    assert found[:, 1].tolist() == [1, 1, 1, 1, 1, 0, 1, 1, 1]
    # What Excel writes for an empty text.
    edit_excel(path, {cell.format("", "<v>0</v>"): cell.format(' t="str"', "<v></v>")})
    found, _ = read(open_source(path))
    assert np.isnan(found[5, 1])


def test_an_excel_row_longer_than_the_header(tmp_path):
    path = str(tmp_path / "a.xlsx")
    write_excel(path, {"s": [["a", "b"], [1, 0], [0, 1, None, None, 1], [1, 1]]})
    with pytest.raises(DataError, match=r"cell E3 has a value, but its column has no name"):
        read(open_source(path))


@pytest.mark.parametrize(
    ("old", "new"),
    [('<row r="4">', '<row r="3">'), ('r="B4"', 'r="A4"'), ('r="B4"', 'r="B5"')],
)
def test_excel_cells_out_of_order(tmp_path, old, new):
    path = str(tmp_path / "a.xlsx")
    write_excel(path, {"s": [["a", "b"], [1, 0], [0, 1], [1, 1]]})
    edit_excel(path, {old: new})
    with pytest.raises(DataError, match=r"the cells of row [34] are not in order, or one is there"):
        read(open_source(path))


@pytest.mark.parametrize("member", ["xl/worksheets/sheet1.xml", "xl/workbook.xml"])
def test_an_excel_file_that_declares_entities(tmp_path, member):
    path = str(tmp_path / "a.xlsx")
    write_excel(path, {"s": [["a", "b"], [1, 0], [0, 1]]})
    root = "<worksheet " if "sheet1" in member else "<workbook "
    edit_excel(path, {root: f'<!DOCTYPE a [<!ENTITY one "1">]>{root}'}, member)
    with pytest.raises(DataError, match=rf"a\.xlsx: {member} declares an XML document type"):
        read(open_source(path))


COUNTS = RNG.choice([0, 1, 2, np.nan], (N_ROWS, N_FEATURES), p=[0.4, 0.3, 0.2, 0.1])


@pytest.fixture
def bed(tmp_path):
    path = tmp_path / "a.bed"
    names = {"sid": [f"rs{k}" for k in range(N_FEATURES)], "iid": PERSONS}
    people = {"fid": ["f"] * N_ROWS, "sex": RNG.integers(0, 3, N_ROWS), "pheno": ["1"] * N_ROWS}
    bed_reader.to_bed(path, COUNTS, properties=names | people)
    return str(path)


@pytest.mark.parametrize("threshold", [0.5, 1.5])
def test_genotypes(bed, monkeypatch, threshold):
    from storage.sources import genomics

    monkeypatch.setattr(genomics, "_READ_CELLS", 5 * 64)  # several runs, each in several batches
    options = ReadOptions(threshold=threshold, row_columns=("iid", "sex"))
    source = open_source(bed, options)
    assert source.feature_names == ("rs0", "rs1", "rs2", "rs3", "rs4")
    expected = np.where(np.isnan(COUNTS), np.nan, threshold < COUNTS)
    with bed_reader.open_bed(bed) as file:
        sex = np.array(["", "1", "2"])[file.sex].tolist()
    same(source, expected, {"iid": PERSONS, "sex": sex})
    assert len(source.tags) == 3


def test_a_sex_that_plink_does_not_define_is_missing(bed):
    fam = Path(bed).with_suffix(".fam")
    people = [line.split() for line in fam.read_text(encoding="utf-8").splitlines()]
    codes = ["-1", "0", "1", "2", "3"]
    for k, person in enumerate(people):
        person[4] = codes[k % 5]
    fam.write_text("\n".join("\t".join(person) for person in people) + "\n", encoding="utf-8")
    source = open_source(bed, ReadOptions(threshold=0.5, row_columns=("sex",)))
    found = np.concatenate([batch.columns["sex"] for batch in source.iter_batches()])
    assert found.tolist() == [["", "", "1", "2", ""][k % 5] for k in range(N_ROWS)]


def test_genotypes_need_a_coding(bed):
    with pytest.raises(DataError, match='genotypes="dominant"'):
        open_source(bed)


def test_genotypes_without_their_names(bed, tmp_path):
    (tmp_path / "a.bim").unlink()
    with pytest.raises(DataError, match=r"a\.bed: the file cannot be read"):
        open_source(bed, ReadOptions(threshold=0.5))


DONORS = [*"ab" * 68, "a"]


def write_cells(path, X):
    with pd.option_context("future.infer_string", False):  # whose texts anndata cannot write yet
        obs = pd.DataFrame({"year": YEARS, "donor": pd.Categorical(DONORS)}, PERSONS)
        var = pd.DataFrame(index=[f"g{k}" for k in range(N_FEATURES)])
        anndata.AnnData(X, obs, var).write_h5ad(path)


@pytest.fixture
def counts():
    return RNG.poisson(0.5, (N_ROWS, N_FEATURES)).astype(np.float32)


@pytest.mark.filterwarnings("ignore:The 'future")
@pytest.mark.parametrize("kind", [np.asarray, scipy.sparse.csr_matrix, scipy.sparse.csc_matrix])
def test_cells(tmp_path, counts, kind):
    path = str(tmp_path / "a.h5ad")
    write_cells(path, kind(counts))
    options = ReadOptions(threshold=0.0, row_columns=("donor", "year", "obs_names"))
    source = open_source(path, options)
    assert source.feature_names == ("g0", "g1", "g2", "g3", "g4")
    columns = {"donor": DONORS, "year": YEARS.tolist(), "obs_names": PERSONS}
    same(source, (counts > 0).astype(float), columns)


@pytest.mark.filterwarnings("ignore:The 'future")
def test_measured_cells(tmp_path, counts):
    path = str(tmp_path / "a.h5ad")
    write_cells(path, np.log1p(counts))
    options = ReadOptions(maps=tuple(parse_continuous("*")))
    batches = [*open_source(path, options).iter_batches()]
    np.testing.assert_array_equal(np.vstack([b.numbers for b in batches]), np.log1p(counts))
    write_cells(path, scipy.sparse.csr_matrix(counts))
    with pytest.raises(DataError, match="continuous needs a dense format"):
        open_source(path, options)


def replace_array(group, name, values):
    attributes = dict(group[name].attrs)
    del group[name]
    group[name] = values
    group[name].attrs.update(attributes)


def shift_pointers(group):
    group["indptr"][:3] = 3


def reverse_pointers(group):
    group["indptr"][4:6] = group["indptr"][4:6][::-1] + [5, -5]


def point_beyond(group):
    group["indices"][7] = 5000


def repeat_entry(group):
    group["indices"][:] = 0


DAMAGED_MATRICES = {
    "more rows": (
        np.asarray,
        lambda f: replace_array(f, "X", np.ones((274, 5))),
        "X is 274 x 5, but 'obs' has 137 rows and 'var' has 5",
    ),
    "more columns": (
        np.asarray,
        lambda f: replace_array(f, "X", np.ones((137, 6))),
        "X is 137 x 6",
    ),
    "an encoding": (
        np.asarray,
        lambda f: f["X"].attrs.update({"encoding-type": "coo_matrix"}),
        "X is a dataset of type 'coo_matrix'",
    ),
    "a group": (
        scipy.sparse.csr_matrix,
        lambda f: f["X"].attrs.update({"encoding-type": "coo_matrix"}),
        "X is a group of type 'coo_matrix'",
    ),
    "a shape": (
        scipy.sparse.csr_matrix,
        lambda f: f["X"].attrs.update({"shape": [137, 6]}),
        "X is 137 x 6",
    ),
    "a start": (
        scipy.sparse.csr_matrix,
        lambda f: shift_pointers(f["X"]),
        "the pointers start at 3",
    ),
    "a start of columns": (
        scipy.sparse.csc_matrix,
        lambda f: shift_pointers(f["X"]),
        "the pointers start at 3",
    ),
    "an end": (
        scipy.sparse.csr_matrix,
        lambda f: replace_array(f["X"], "indptr", np.minimum(f["X/indptr"][:], 90)),
        "the pointers end at 90, but there are",
    ),
    "an order": (scipy.sparse.csr_matrix, lambda f: reverse_pointers(f["X"]), "pointers decrease"),
    "a length": (
        scipy.sparse.csr_matrix,
        lambda f: replace_array(f["X"], "indices", f["X/indices"][:-1]),
        "one whole number each",
    ),
    "an index": (
        scipy.sparse.csr_matrix,
        lambda f: point_beyond(f["X"]),
        "a column index lies outside 0 to 4",
    ),
    "an index of columns": (
        scipy.sparse.csc_matrix,
        lambda f: point_beyond(f["X"]),
        "there is an entry in row 5001",
    ),
    "a duplicate": (
        scipy.sparse.csr_matrix,
        lambda f: repeat_entry(f["X"]),
        "column 'g0': there are two entries",
    ),
}


@pytest.mark.filterwarnings("ignore:The 'future")
@pytest.mark.parametrize(
    ("kind", "damage", "message"), DAMAGED_MATRICES.values(), ids=DAMAGED_MATRICES
)
def test_a_cell_matrix_that_contradicts_itself(tmp_path, counts, kind, damage, message):
    path = str(tmp_path / "a.h5ad")
    write_cells(path, kind(counts))
    with h5py.File(path, "r+") as file:
        damage(file)
    with pytest.raises(DataError, match=rf"a\.h5ad: .*{message}") as refused:
        read(open_source(path, ReadOptions(threshold=0.0)))
    assert "\n" not in str(refused.value)


def link_elsewhere(file, other):
    file["X"] = h5py.ExternalLink(str(other), "X")


def store_elsewhere(file, other):
    file.create_dataset("X", (137, 5), "f4", external=[(str(other), 0, 137 * 5 * 4)])


def map_elsewhere(file, other):
    layout = h5py.VirtualLayout((137, 5), "f4")
    layout[:] = h5py.VirtualSource(str(other), "X", (137, 5))
    file.create_virtual_dataset("X", layout)


def leave_out_chunks(file, other):
    file.create_dataset("X", (137, 5), "f4", chunks=(64, 5))[:128] = 1


def leave_out_all(file, other):
    file.create_dataset("X", (137, 5), "f4")


@pytest.mark.filterwarnings("ignore:The 'future")
@pytest.mark.parametrize(
    ("write", "message"),
    [
        (link_elsewhere, "'/X' is a link to another file"),
        (store_elsewhere, "the values of '/X' are in another file"),
        (map_elsewhere, "the values of '/X' are in another file"),
        (leave_out_chunks, "'/X' was not written completely"),
        (leave_out_all, "'/X' was not written completely"),
    ],
)
def test_a_cell_matrix_that_is_not_in_the_file(tmp_path, counts, write, message):
    path, other = str(tmp_path / "a.h5ad"), tmp_path / "b.h5ad"
    for file in (path, other):
        write_cells(file, counts)
    with h5py.File(path, "r+") as file:
        del file["X"]
        write(file, other)
    with pytest.raises(DataError, match=rf"a\.h5ad: {message}"):
        open_source(path, ReadOptions(threshold=0.0))


@pytest.mark.filterwarnings("ignore:The 'future")
def test_cell_columns_that_cannot_be_read(tmp_path, counts):
    path = str(tmp_path / "a.h5ad")
    write_cells(path, counts)
    with h5py.File(path, "r+") as file:
        opaque = np.zeros(N_ROWS, "V8").astype(h5py.opaque_dtype("V8"))
        replace_array(file["obs"], "year", opaque)
    options = ReadOptions(threshold=0.0, row_columns=("year",))
    with pytest.raises(DataError, match=r"a\.h5ad: column 'year': the file cannot be read: Unsup"):
        open_source(path, options)
    with h5py.File(path, "r+") as file:
        file["obs/year"].attrs["encoding-type"] = "unknown"
    with pytest.raises(DataError, match=r"a\.h5ad: .*encoding_type='unknown'.* reading key 'year'"):
        open_source(path, options)


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("a.sav", "pyreadstat", "statistics"),
        ("a.dta", "pyreadstat", "statistics"),
        ("a.xlsx", "openpyxl", "excel"),
        ("a.bed", "bed_reader", "genotypes"),
        ("a.h5ad", "anndata", "cells"),
    ],
)
def test_package_that_is_not_there(tmp_path, monkeypatch, name, package, extra):
    (tmp_path / name).write_bytes(b"what it is does not matter")
    monkeypatch.setattr(
        "storage.extras.find_spec", lambda wanted: None if wanted == package else object()
    )
    with pytest.raises(DataError) as refused:
        open_source(str(tmp_path / name), ReadOptions(threshold=0.5))
    assert f"needs the package {package}" in str(refused.value)
    assert f"pip install 'latentbits[{extra}]'" in str(refused.value)


@pytest.mark.parametrize("name", ["a.sav", "a.dta", "a.xlsx", "a.bed", "a.h5ad"])
def test_what_is_no_such_file(tmp_path, name):
    (tmp_path / name).write_bytes(b"no such file" * 40)
    with pytest.raises(DataError, match=r"the file cannot be read"):
        read(open_source(str(tmp_path / name), ReadOptions(threshold=0.5)))
