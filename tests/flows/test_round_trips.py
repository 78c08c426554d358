"""Random tables, written in every format as a user would, are read back cell by cell."""

from __future__ import annotations

import csv
import gzip
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import openpyxl
import pandas as pd
import polars as pl
import pyreadstat
import pytest
import zarr

from flows.data.columns import parse_roles
from flows.data.ingest import ingest_sources
from latentbits import from_dataframe
from storage.errors import DataError
from storage.sources.value_codes import parse_number
from tests.storage.conftest import new_path

Kind = Literal["bits", "levels", "codes", "numbers", "kept"]
# Words that mean something elsewhere: missing values, numbers, separators of options, patterns.
NAMES = (
    *("a", "q 1", "x,y", "k:1", "p=1", "None", "<18", "é", "名", "1", 'say "hi"', "z*", "a[1]"),
    *("nan", "true", "0", "true:1", "lo<hi"),
)
LEVELS = (
    *("None", "NA", "n/a", "null", "NaN", "?", "Mild", "Severe", "<18", "18-64", "65+", "yes"),
    *("no", "0", "1", "2", "3", "-9", "1.5", "true", "false", "a,b", "a=b", "x:y", 'say "hi"'),
    *("é", "名", "inf", "1_000"),
)
MISSING = ("", "", "NA", "-9", "99", "0", "refused")


@dataclass(frozen=True)
class Column:
    """A column as a person sees it.

    Attributes
    ----------
    levels
        Names of the levels in increasing order; without meaning for numbers and kept columns.
    values
        Level, number, or for a kept column any value, by row; None where missing.
    """

    name: str
    kind: Kind
    levels: tuple[str, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Style:
    """How a table is written: the words of bits, the text of missing values, and the file."""

    bits: tuple[str, str]
    missing: str
    file: str
    encoding: str
    delimiter: str


Written = tuple[Path, Mapping[str, Any]]


def quote(word: str) -> str:
    """Quote a word of an option if it contains a separator."""
    return '"' + word.replace('"', '""') + '"' if re.search(r'[,:=<"]', word) else word


def draw_table(rng: Random) -> list[Column]:
    """Draw a table, whose first column has a value in every row."""
    n_rows = rng.randint(3, 9)
    columns = []
    for name in ("item 1", "item 2", *rng.sample(NAMES, rng.randint(1, 5))):
        kind: Kind = "bits"
        if name in NAMES:
            kind = rng.choice(("bits", "bits", "levels", "levels", "codes", "numbers", "kept"))
        levels: tuple[str, ...] = ("0", "1")
        if kind == "levels":
            levels = draw_levels(rng)
        if kind == "codes":
            low = rng.randint(-1, 2)
            levels = tuple(map(str, range(low, low + rng.randint(2, 5))))
        draw = draw_value(rng, kind, len(levels))
        is_full = name == "item 1"
        rows = [None if rng.random() < 0.25 and not is_full else draw() for _ in range(n_rows)]
        if kind == "bits":  # a map needs both values
            rows[:2] = [0, 1]
        columns.append(Column(name, kind, levels, tuple(rows)))
    return columns


def draw_levels(rng: Random) -> tuple[str, ...]:
    """Draw names of levels that are different words and different numbers, and not just 0 and 1."""
    while True:
        names = rng.sample(LEVELS, rng.randint(2, 5))
        numbers = [parse_number(name) for name in names]
        keys = [n.casefold() if k is None else k for n, k in zip(names, numbers, strict=True)]
        if len({*keys}) == len(keys) and {*keys} != {0, 1}:
            return tuple(names)


def draw_value(rng: Random, kind: Kind, n_levels: int) -> Callable[[], Any]:
    """Return what draws a value of a column."""
    if kind == "numbers":
        return lambda: rng.choice((rng.randint(10, 40), float(np.float32(rng.gauss(0, 1e3)))))
    if kind == "kept":
        return rng.choice((lambda: rng.randint(0, 2**53), lambda: rng.random() < 0.5))
    return lambda: rng.randrange(n_levels)


def draw_style(rng: Random, table: Sequence[Column], file: str) -> Style:
    """Draw how a table is written; a text for missing values is no value of any column."""
    bits = rng.choice((("0", "1"), ("false", "true"), ("no", "yes"), ("2", "1")))
    encoding = rng.choice(("utf-8", "utf-8", "utf-8-sig", "utf-16", "cp1252"))
    style = Style(bits, "", file, encoding, rng.choice(",;\t|"))
    texts = list_texts(table, style)
    taken = {parse_number(text) for text in texts} - {None}
    words = [
        word for word in MISSING if word.casefold() not in texts and parse_number(word) not in taken
    ]
    return replace(style, missing=rng.choice(words))


def list_texts(table: Sequence[Column], style: Style) -> set[str]:
    """List what cells mean, in lower case."""
    texts = {text for column in table for text in make_raw(column, style) if text is not None}
    texts |= {level for column in table for level in column.levels} | {*style.bits}
    return {text.casefold() for text in texts}


def make_raw(column: Column, style: Style) -> list[str | None]:
    """Return the cells of a column as text, None where missing."""
    if column.kind in ("numbers", "kept"):
        return [None if value is None else str(value) for value in column.values]
    words = style.bits if column.kind == "bits" else column.levels
    return [None if value is None else words[value] for value in column.values]


def make_roles(table: Sequence[Column], style: Style) -> dict[str, Any]:
    """Return the options that a user gives for the words of text files."""
    roles: dict[str, Any] = {"keep": [], "levels": [], "ordinal": [], "continuous": [], "map": []}
    for column in table:
        name = quote(column.name)
        if column.kind == "kept":
            roles["keep"].append(column.name)
        if column.kind == "levels":
            roles["levels"].append(f"{name}:{'<'.join(map(quote, column.levels))}")
        if column.kind == "codes":
            roles["ordinal"].append(f"{name}:{column.levels[0]}-{column.levels[-1]}")
        if column.kind == "numbers":
            roles["continuous"].append(name)
        if column.kind == "bits" and style.bits not in (("0", "1"), ("false", "true")):
            zero, one = style.bits
            roles["map"].append(f"{name}:{one}=1,{zero}=0")
    if style.missing:
        roles["missing"] = [style.missing]
    return {name: value for name, value in roles.items() if value}


def write_csv(table: Sequence[Column], style: Style, folder: Path, stem: str) -> Written:
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=style.delimiter)
    writer.writerow([column.name for column in table])
    cells = [make_raw(column, style) for column in table]
    filled = [[style.missing if cell is None else cell for cell in own] for own in cells]
    writer.writerows(zip(*filled, strict=True))
    suffix = ".tsv" if style.delimiter == "\t" else ".csv"
    roles = make_roles(table, style)
    return write_text(stream.getvalue(), style, folder / f"{stem}{suffix}", roles)


def write_text(text: str, style: Style, path: Path, roles: dict[str, Any]) -> Written:
    try:
        data = text.encode(style.encoding)
        if style.encoding == "cp1252" and not text.isascii():
            roles["encoding"] = "cp1252"
    except UnicodeEncodeError:
        data = text.encode("utf-16")
    if len(text) % 3 == 0:
        path = path.with_name(f"{path.name}.gz")
        data = gzip.compress(data)
    path.write_bytes(data)
    return path, roles


def write_long(table: Sequence[Column], style: Style, folder: Path, stem: str) -> Written:
    """Write a line per value; missing values are lines with a missing text."""
    table = [column for column in table if column.kind != "kept"]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, delimiter=style.delimiter)
    writer.writerow(["who", "what", "answer"])
    for column in table:
        for row, cell in enumerate(make_raw(column, style)):
            writer.writerow([f"{stem}{row}", column.name, cell or style.missing])
    roles = {**make_roles(table, style), "long": "row=who,feature=what,value=answer"}
    suffix = ".tsv" if style.delimiter == "\t" else ".csv"
    return write_text(stream.getvalue(), style, folder / f"{stem}{suffix}", roles)


def make_frame(table: Sequence[Column], style: Style) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Make a frame of typed columns, and the options that it still needs."""
    kept_style = replace(style, bits=("0", "1"))
    roles = make_roles(table, kept_style)
    roles.pop("levels", None)
    frame = pd.DataFrame(index=range(len(table[0].values)))
    for k, column in enumerate(table):
        values: Any = list(column.values)
        if column.kind == "levels":
            names = [None if value is None else column.levels[value] for value in values]
            values = pd.Categorical(names, column.levels, ordered=True)
        elif column.kind == "codes":
            codes = [None if v is None else int(column.levels[v]) for v in values]
            values = fill_codes(codes, style)
        elif column.kind == "numbers":
            values = np.array([np.nan if v is None else v for v in values], np.float64)
        elif column.kind == "kept":
            is_bool = any(isinstance(v, bool) for v in values)
            values = pd.array(values, "boolean" if is_bool else "Int64")
        elif style.bits == ("false", "true"):
            values = pd.array([None if v is None else bool(v) for v in values], "boolean")
        elif k % 2:
            values = fill_codes(values, style)
        else:
            values = np.array([np.nan if v is None else v for v in values])
        frame[column.name] = values
    return frame, roles


def fill_codes(codes: Sequence[int | None], style: Style) -> Any:
    if style.missing in ("-9", "99"):
        return np.array([int(style.missing) if code is None else code for code in codes])
    return pd.array(codes, "Int64")


def write_pandas(table: Sequence[Column], style: Style, folder: Path, stem: str) -> Written:
    frame, roles = make_frame(table, style)
    path = folder / f"{stem}.parquet"
    frame.to_parquet(path, index=False, row_group_size=4)
    return path, roles


def write_polars(table: Sequence[Column], style: Style, folder: Path, stem: str) -> Written:
    frame, roles = make_frame(table, style)
    path = folder / f"{stem}.parquet"
    make_polars(frame, table).write_parquet(path, row_group_size=4)
    return path, roles


def make_polars(frame: pd.DataFrame, table: Sequence[Column]) -> pl.DataFrame:
    columns = {}
    for column in table:
        values = frame[column.name].astype(object).where(frame[column.name].notna(), None)
        kind = pl.Enum(column.levels) if column.kind == "levels" else None
        columns[column.name] = pl.Series(column.name, values.tolist(), kind)
    return pl.DataFrame(columns)


def write_excel(table: Sequence[Column], style: Style, folder: Path, stem: str) -> Written:
    book = openpyxl.Workbook()
    sheet = book.active
    sheet.append([column.name for column in table])
    cells = []
    for column in table:
        raw = make_raw(column, style)
        is_typed = column.kind in ("codes", "numbers", "kept")
        cells.append([read_cell(cell, column) if is_typed else cell for cell in raw])
        if style.missing:
            cells[-1] = [style.missing if cell is None else cell for cell in cells[-1]]
    for row in zip(*cells, strict=True):
        sheet.append(row)
    path = folder / f"{stem}.xlsx"
    book.save(path)
    return path, make_roles(table, style)


def read_cell(cell: str | None, column: Column) -> Any:
    if cell is None or column.kind != "kept":
        return None if cell is None else float(cell)
    return cell == "True" if cell in ("True", "False") else int(cell)


def write_statistics(table: Sequence[Column], style: Style, folder: Path, stem: str) -> Written:
    """Write codes from 1 with labels, for levels; codes themselves and bits have odd labels."""
    names = name_features(table, style)
    labels: dict[str, dict[int, str]] = {}
    values: dict[str, Any] = {}
    for column in table:
        own, name = list(column.values), names[column.name]
        if column.kind == "levels":
            labels[name] = {code + 1: level for code, level in enumerate(column.levels)}
            own = [None if v is None else v + 1 for v in own]
        elif column.kind == "codes":
            codes = [int(level) for level in column.levels]
            # Labels that are the codes of other levels, or words, do not count.
            others = [f"grade {code}" for code in codes] if len(own) % 2 else codes[1:] + codes[:1]
            labels[name] = {c: str(other) for c, other in zip(codes, others, strict=True)}
            own = [None if v is None else codes[v] for v in own]
        values[name] = [np.nan if v is None else float(v) for v in own]
    renamed = [replace(column, name=names[column.name]) for column in table]
    path = folder / f"{stem}{'.sav' if len(table) % 2 else '.dta'}"
    write = pyreadstat.write_sav if path.suffix == ".sav" else pyreadstat.write_dta
    write(pd.DataFrame(values), str(path), variable_value_labels=labels)
    return path, make_roles(renamed, replace(style, bits=("0", "1"), missing=""))


def write_zarr(table: Sequence[Column], style: Style, folder: Path, stem: str) -> Written:
    """Write numbers without names."""
    table = [column for column in table if column.kind in ("bits", "codes", "numbers")]
    renamed = [replace(column, name=f"f{k}") for k, column in enumerate(table)]
    columns = [
        [np.nan if v is None else float(c.levels[v]) if c.kind == "codes" else v for v in c.values]
        for c in table
    ]
    path = folder / f"{stem}.zarr"
    data = np.array(columns, np.float64).T
    zarr.create_array(str(path), data=data, chunks=(2, 2))
    return path, make_roles(renamed, replace(style, bits=("0", "1"), missing=""))


Writer = Callable[[Sequence[Column], Style, Path, str], Written]
WRITERS: dict[str, Writer] = {
    "csv": write_csv,
    "long": write_long,
    "pandas": write_pandas,
    "polars": write_polars,
    "excel": write_excel,
    "statistics": write_statistics,
    "zarr": write_zarr,
}


def check(dataset: Any, table: Sequence[Column], names: Mapping[str, str], missing: str) -> None:
    """Compare a dataset with the table, cell by cell."""
    parts = [dataset.dense(key) for key in range(dataset.n_chunks)]
    X, observed = (np.concatenate(part) for part in zip(*parts, strict=True))
    features = [c for c in table if c.kind != "kept"]
    assert {*dataset.feature_names} == {names.get(c.name, c.name) for c in features}
    for column in features:
        name = names.get(column.name, column.name)
        k = dataset.feature_names.index(name)
        if column.kind in ("levels", "codes"):
            assert dataset.feature_levels.get(name, ("0", "1")) == column.levels, name
        seen = [float(x) if o else None for x, o in zip(X[:, k], observed[:, k], strict=True)]
        expected = [None if v is None else float(np.float32(v)) for v in column.values]
        assert seen == expected, name
    for column in table:
        if column.kind == "kept" and column.name in dataset.column_names:
            own = dataset.column(column.name).tolist()
            seen = [tidy(value, missing) for value in own]
            assert seen == [tidy(value, missing) for value in column.values], column.name


def tidy(value: Any, missing: str) -> float | None:
    """Return a kept value as a number, None if missing: text files keep the text."""
    if value is None or value in ("", missing) or value != value:
        return None
    return float({"True": 1, "False": 0}.get(value, value))


def name_features(table: Sequence[Column], style: Style) -> dict[str, str]:
    """Return the names that a format gives to columns."""
    if style.file == "statistics":
        return {c.name: "v_" + "".join(f"{ord(x):x}" for x in c.name) for c in table}
    return {}


def select_columns(table: list[Column], file: str) -> list[Column]:
    """Leave out what a format has no place for."""
    if file == "long":
        return [c for c in table if c.kind != "kept"]
    if file == "zarr":
        table = [c for c in table if c.kind in ("bits", "codes", "numbers")]
        return [replace(c, name=f"f{k}") for k, c in enumerate(table)]
    return table


def run(file: str, seed: int) -> None:
    """Write a table in two parts, ingest one, append the other, and compare."""
    rng = Random(f"{file} {seed}")
    table = select_columns(draw_table(rng), file)
    style = draw_style(rng, table, file)
    n_rows, first = len(table[0].values), rng.randint(2, len(table[0].values))
    parts = [
        [replace(c, values=c.values[rows]) for c in table]
        for rows in (slice(first), slice(first, None))
    ]
    if file != "zarr":  # columns with names are matched by name
        rng.shuffle(parts[1])
    names = name_features(table, style)
    with new_path() as folder:
        folder.mkdir()
        path, roles = WRITERS[file](parts[0], style, folder, "a")
        dataset = ingest_sources([str(path)], folder / "d.zarr", parse_roles(roles))
        check(dataset, parts[0], names, style.missing)
        if first < n_rows:
            path, roles = WRITERS[file](parts[1], style, folder, "b")
            own = parse_roles({"encoding": roles["encoding"]} if "encoding" in roles else {})
            dataset = ingest_sources([str(path)], folder / "d.zarr", own, append=True)
            check(dataset, table, names, style.missing)


SEEDS = (
    range(4),
    pytest.param(range(4, 20), marks=pytest.mark.matrix),
    pytest.param(range(20, 80), marks=pytest.mark.slow),
)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("file", sorted(WRITERS))
def test_every_format_is_read_cell_by_cell(file: str, seeds: range) -> None:
    for seed in seeds:
        run(file, seed)


MEANINGLESS = (
    *("0_1", "1_000", "\uff11", "\u0661", "0x1", "1e400", "-inf", "infinity", "1,5", "1+0j", "0b1"),
    *("1 2", "--1", "1-", "=1", "'1", "0 days", "2020-01-01", "vrai", "\u2212 1"),
)


def run_meaningless(file: str, seed: int) -> None:
    """Write one value that means nothing, which the error must name with its row and column."""
    rng = Random(f"{file} {seed}")
    table = [c for c in select_columns(draw_table(rng), file) if c.kind != "kept"]
    style = replace(draw_style(rng, table, file), encoding="utf-8")
    table = [replace(c, values=tuple(v or 0 for v in c.values)) for c in table]
    word, column = rng.choice(MEANINGLESS), rng.choice(table)
    row = rng.randrange(len(column.values))
    with pytest.MonkeyPatch.context() as patch, new_path() as folder:
        write = make_raw

        def spoil(own: Column, style: Style) -> list[str | None]:
            cells = write(own, style)
            if own is column:
                cells[row] = word
            return cells

        patch.setitem(globals(), "make_raw", spoil)
        folder.mkdir()
        path, roles = WRITERS[file](table, style, folder, "a")
        with pytest.raises(DataError) as refusal:
            ingest_sources([str(path)], folder / "d.zarr", parse_roles(roles))
    error = str(refusal.value)
    assert "\n" not in error
    assert word in error or "inf" in error, (error, word)
    assert path.name in error
    assert "row " in error or "line " in error, error
    assert repr(column.name) in error, (error, column.name)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("file", ["csv", "long"])
def test_a_value_without_meaning_is_refused_with_its_place(file: str, seeds: range) -> None:
    for seed in seeds:
        run_meaningless(file, seed)


def run_frame(library: str, seed: int) -> None:
    """Convert a frame and compare."""
    rng = Random(f"{library} {seed}")
    table = draw_table(rng)
    style = replace(draw_style(rng, table, library), missing="")
    frame: Any = make_frame(table, style)[0]
    if library != "pandas":
        frame = make_polars(frame, table)
    if library == "lazy":
        frame = frame.lazy()
    with new_path() as path:
        dataset = from_dataframe(
            frame.to_arrow() if library == "arrow" else frame,
            keep=[c.name for c in table if c.kind == "kept"],
            levels={c.name: [*map(int, c.levels)] for c in table if c.kind == "codes"},
            continuous=[c.name for c in table if c.kind == "numbers"],
            path=path,
        )
        check(dataset, table, {}, "")


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("library", ["pandas", "polars", "lazy", "arrow"])
def test_every_frame_is_read_cell_by_cell(library: str, seeds: range) -> None:
    for seed in seeds:
        run_frame(library, seed)
