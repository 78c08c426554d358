"""Read the small tables that options name: known items, those of a fit, patterns, scales."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flows.cli.options import parse_local_path
from flows.cli.summary import join_names
from flows.data.datasets import load_fitted_model
from pipeline.errors import find_similar
from pipeline.fitting.prepare import PatternTable
from pipeline.models.known_items import KnownItems, get_fitted_items, parse_known_items
from pipeline.words import is_missing_word
from storage.errors import DataError
from storage.sources.text import read_text
from storage.sources.value_codes import parse_bit
from storage.stores.local_path import check_is_no_pipe, check_local_path
from storage.stores.locations import parse_path
from storage.stores.object_path import is_url

_TABLES = (".csv", ".parquet")
_MAX_SHOWN = 5  # items that are no features
_ENTRIES = {"0", "1", "0.0", "1.0", "False", "True"}  # of the column of a trait


class Scale(NamedTuple):
    """A scale: its name, its items, and those of them that are reversed."""

    name: str
    items: tuple[str, ...]
    reversed_items: tuple[str, ...]


def read_parameter_table(path: Path, parameter: str) -> dict[str, list[Any]]:
    """Read the columns of a .csv or .parquet file; values in a .csv file are texts.

    Errors name the parameter.

    Raises
    ------
    DataError
        If the file cannot be read, columns have the same name, or a line has another number of
        values than the first one.
    """
    if path.suffix not in _TABLES:
        raise DataError(f"{{{parameter}}}: {path} is neither .csv nor .parquet.")
    check_is_no_pipe(path)
    read = _read_csv if path.suffix == ".csv" else _read_parquet
    try:
        header, columns = read(path)
    except DataError as error:
        raise DataError(f"{{{parameter}}}: {error.text}") from error
    except (OSError, ValueError, csv.Error) as error:  # Arrow's errors are one of these
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{{{parameter}}}: {path} cannot be read ({reason}).") from error
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise DataError(
            f"{{{parameter}}}: {path} has columns with the same name: {twice!r}. Rename them."
        )
    return dict(zip(header, columns, strict=True))


def _read_csv(path: Path) -> tuple[list[str], list[list[Any]]]:
    file = io.StringIO(read_text(str(path)), newline="")
    header, *lines = [line for line in csv.reader(file) if line] or [[]]
    for line in lines:
        if len(line) != len(header):
            raise DataError(
                f"{path} has {len(line)} values in the line of {line[0]!r}, but {len(header)} "
                "columns."
            )
    return header, [[line[k].strip() for line in lines] for k in range(len(header))]


def _read_parquet(path: Path) -> tuple[list[str], list[list[Any]]]:
    import pyarrow.parquet as pa_parquet

    with pa_parquet.ParquetFile(path) as file:
        table = file.read()
    return table.column_names, [column.to_pylist() for column in table.columns]


def read_known_items(name: str) -> KnownItems:
    """Read the file or folder of known items.

    Parameters
    ----------
    name
        Path of a .csv or .parquet file with one line per item; or of a fitted model, or of a folder
        of runs, whose latest fit is read.

    Raises
    ------
    DataError
        If the file or the artifact cannot be read.
    FitError
        If the table lacks columns, has items twice or values that are not numbers, or the artifact
        is of another model.
    """
    if not name.endswith(_TABLES) and (is_url(name) or check_local_path(Path(name)).is_dir()):
        fitted = load_fitted_model(parse_path(name))
        source = str(fitted.artifact.path.resolve())
        own = (fitted.model, fitted.params, fitted.features)
        return get_fitted_items(*own, source, fitted.digest)
    path = parse_local_path(name)
    if path.suffix not in _TABLES:
        raise DataError(
            f"{{items}}: {path} is neither a .csv or .parquet table nor the folder of a fit."
        )
    columns = read_parameter_table(path, "items")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    for column in columns.keys() - {"feature"}:
        columns[column] = [
            None if isinstance(value, str) and is_missing_word(value) else value
            for value in columns[column]
        ]
    return parse_known_items(columns, str(path.resolve()), digest)


def parse_scales(
    table: Mapping[str, Sequence[Any]], place: str, names: Sequence[str], owner: str
) -> list[Scale]:
    """Parse a table with the columns `item` and `scale`, and perhaps `reversed`.

    `place` and `owner` are the table and the owner of the features `names`, for errors.

    Raises
    ------
    DataError
        If the table lacks a column or a name, it has other columns but not `reversed`, an item is
        no feature or twice in a scale, or a value of `reversed` is neither yes nor no.
    """
    for column in ("item", "scale"):
        if column not in table:
            have = ", ".join(map(repr, table)) or "none"
            raise DataError(f"{place} has no column {column!r}. It has: {have}.")
    others = [name for name in table if name not in ("item", "scale")]
    if others and "reversed" not in table:
        raise DataError(
            f"{place} has no column 'reversed', but has: {', '.join(map(repr, others))}. Rename "
            "the column that marks reversed items, or add an empty column 'reversed'."
        )
    _check_items(table, place, names, owner)
    items: dict[str, dict[str, bool]] = {}
    marks = table.get("reversed", [None] * len(table["item"]))
    for item, scale, mark in zip(table["item"], table["scale"], marks, strict=True):
        if scale in (None, ""):
            raise DataError(f"{place}: item {item!r} has no scale. Name one, or delete the line.")
        item, scale = str(item), str(scale)
        own = items.setdefault(scale, {})
        if item in own:
            raise DataError(f"{place}: item {item!r} is twice in scale {scale!r}. Delete a line.")
        own[item] = _parse_mark(place, item, mark)
    if not items:
        raise DataError(f"{place} has no items. Write a line for each item.")
    return [
        Scale(name, tuple(own), tuple(item for item in own if own[item]))
        for name, own in items.items()
    ]


def _check_items(
    table: Mapping[str, Sequence[Any]], place: str, names: Sequence[str], owner: str
) -> None:
    """Raise `DataError` if some items are no features."""
    known, unknown = {*names}, dict[str, str]()
    for item, scale in zip(map(str, table["item"]), table["scale"], strict=True):
        if item not in known:
            unknown.setdefault(item, f"{item!r} of scale {scale!r}")
    if not unknown:
        return
    similar = {item: find_similar(item, names) for item in [*unknown][:_MAX_SHOWN]}
    hints = {item: f" (perhaps {name!r})" for item, name in similar.items() if name is not None}
    listed = [text + hints.get(item, "") for item, text in unknown.items()]
    features = "" if len(hints) == len(similar) else f" Features: {join_names(names)}."
    line, name = ("lines", "names") if len(unknown) > 1 else ("line", "name")
    raise DataError(
        f"{place}: {owner} has no feature {join_names(listed, _MAX_SHOWN)}. Correct the {name}, or "
        f"delete the {line}.{features}"
    )


def parse_pattern(
    columns: Mapping[str, Sequence[Any]], source: str, names: Sequence[str], owner: str
) -> PatternTable:
    """Return the table of a loading pattern: as it is, or made of a table of scales.

    A table of scales has a column `scale`, but no 0 or 1 in it: it has a line per item and trait
    instead of a column per trait. `source` is the table and `owner` the owner of the features
    `names`, for errors.

    Raises
    ------
    DataError
        If a table of scales cannot be parsed, or an item is reversed in one scale but not in
        another.
    """
    if "scale" not in columns or _ENTRIES & {*map(str, columns["scale"])}:
        return PatternTable(columns, source)
    place = f"{{pattern}}: {source}"
    scales = parse_scales(columns, place, names, owner)
    items = [name for name in names if any(name in scale.items for scale in scales)]
    turned = {name for scale in scales for name in scale.reversed_items}
    for scale in scales:
        if both := (turned & {*scale.items}) - {*scale.reversed_items}:
            raise DataError(
                f"{place}: item {min(both)!r} is reversed, but not in scale {scale.name!r}. In one "
                "fit of all scales, it is reversed in all or in none: its slopes have their own "
                "signs."
            )
    entries = {scale.name: [int(name in scale.items) for name in items] for scale in scales}
    return PatternTable({"item": items, **entries}, source, tuple(n for n in items if n in turned))


def _parse_mark(place: str, item: str, mark: Any) -> bool:
    if mark is None or is_missing_word(str(mark)):
        return False
    if (bit := parse_bit(str(mark))) is None:
        raise DataError(
            f"{place}: {mark!r} is in the column 'reversed' of item {item!r}. Write yes or no."
        )
    return bool(bit)
