"""What manifests look like: they are data from outside, checked once, where they are read.

It is imported where a manifest is read, as pydantic takes its time to be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic does not take that of Python 3.11

from storage.errors import DataError
from storage.format.artifact_schemas import ArtifactManifest, Dataset, FitManifest
from storage.format.manifest_types import LARGEST, Checksum, Count, Names, Pages, Texts
from storage.format.schema import ARTIFACT_FORMAT, CODES_FORMAT, DATASET_FORMAT, stored_names

_LONGEST_SHOWN = 60


class Column(TypedDict):
    """A per-row column of a dataset: where its texts are, in version 1 of the format the texts."""

    kind: Literal["int", "float", "category"]
    categories: NotRequired[Texts]
    levels: NotRequired[Pages]


class Tables(TypedDict):
    """Checksums of a dataset's tables."""

    chunks: Checksum
    blocks: Checksum
    ones: Checksum
    checksums: Checksum


class DatasetManifest(TypedDict):
    """What `storage.dataset.chunk_writer` records."""

    digest: str
    n_rows: Count
    n_chunks: Count
    n_blocks: Count
    words_per_chunk: Annotated[int, Field(ge=1, le=1 << 40)]
    feature_names: Names
    segment_names: Names
    columns: dict[str, Column]
    stored: list[str]
    tables: Tables
    ingest: dict[str, Any]
    attributes: NotRequired[dict[str, Any]]


class CodesArray(TypedDict):
    """An array of codes."""

    dims: list[str]
    shape: list[Count]
    dtype: str
    checksums: list[Checksum]


class CodesManifest(TypedDict):
    """What codes have; those of pairs have no more."""

    n_rows: Count
    rows_per_chunk: Annotated[int, Field(ge=1, le=LARGEST)]
    arrays: Annotated[dict[str, CodesArray], Field(min_length=1)]
    model: NotRequired[str]
    artifact_path: NotRequired[str]
    dataset: NotRequired[Dataset]
    queries: NotRequired[Dataset | None]
    split: NotRequired[str | None]
    feature_names: NotRequired[list[str]]
    warnings: NotRequired[list[str]]


def check_manifest(path: str, kind: str, manifest: Mapping[str, Any]) -> None:
    """Refuse a manifest whose parts are not what the format says.

    Parameters
    ----------
    path
        Its file.
    kind
        Its `format`.
    manifest
        The manifest, sealed as it should be.

    Raises
    ------
    DataError
        Naming the part, what was expected and what came.
    """
    schema: Any = _SCHEMAS[kind]
    if kind == ARTIFACT_FORMAT and "model" in manifest:
        schema = FitManifest
    check_parts(path, schema, manifest, _REMEDIES[kind])
    try:
        _CONSISTENT[kind](manifest)
    except _Inconsistent as error:
        at, reason, got = error.args
        raise DataError(_refusal(path, at, reason, got, _REMEDIES[kind])) from None


def check_parts(path: str, schema: Any, values: Any, remedy: str) -> None:
    """Refuse what JSON gave where it is not what a type says.

    Parameters
    ----------
    path
        The file.
    schema
        A type, such as a `TypedDict`.
    values
        What is to be of that type.
    remedy
        What to do where it is not.

    Raises
    ------
    DataError
        Naming the part, what was expected and what came.
    """
    try:
        _adapter(schema).validate_python(values, strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        got = "nothing" if found["type"] == "missing" else _shown(found["input"])
        at = ".".join(map(str, found["loc"]))
        raise DataError(_refusal(path, at, _reason(found), got, remedy)) from None


def _refusal(path: str, at: str, reason: str, got: str, remedy: str) -> str:
    where = f"{path}: {_line(at)}" if at else path
    return f"{where}: Expected {_line(reason)}, got {got}. {remedy}"


class _Inconsistent(Exception):
    """Parts do not go together: where, what was expected, what came."""


def _reason(found: Any) -> str:
    if found["type"] == "missing":
        return "a value"
    said: str = found["msg"]
    return said.removeprefix("Input should be ").removeprefix("Value error, ")


def _shown(value: Any) -> str:
    try:
        text = _line(repr(value))
    except (ValueError, RecursionError):  # a number too long to be written, lists too deep
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 1]}…"


def _line(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def _dataset(manifest: Mapping[str, Any]) -> None:
    if len(manifest["feature_names"]) < 2:
        raise _Inconsistent("feature_names", "at least two", str(len(manifest["feature_names"])))
    for name in ("n_rows", "n_chunks", "n_blocks"):
        if not manifest[name]:
            raise _Inconsistent(name, "at least 1", "0")
    expected = stored_names(manifest["columns"])
    if manifest["stored"] != expected:
        raise _Inconsistent("stored", ", ".join(expected)[:200], _shown(manifest["stored"]))
    for name, column in manifest["columns"].items():
        if {*column} & {"categories", "levels"} != _texts_of(column["kind"], manifest):
            raise _Inconsistent(f"columns.{name}", "texts of a category", _shown(column))


def _texts_of(kind: str, manifest: Mapping[str, Any]) -> set[str]:
    """Name what tells the texts of a per-row column."""
    if kind != "category":
        return set()
    return {"levels"} if manifest["format_version"] > 1 else {"categories"}


def _artifact(manifest: Mapping[str, Any]) -> None:
    for name, array in manifest["arrays"].items():
        _named_axes(name, array)


def _codes(manifest: Mapping[str, Any]) -> None:
    n_rows, a_run = manifest["n_rows"], manifest["rows_per_chunk"]
    for name, array in manifest["arrays"].items():
        _named_axes(name, array)
        if array["dims"][:1] != ["row"] or array["shape"][0] != n_rows:
            raise _Inconsistent(f"arrays.{name}", f"{n_rows} rows", _shown(array["shape"]))
        if len(array["checksums"]) != -(-n_rows // a_run):
            many = str(len(array["checksums"]))
            raise _Inconsistent(f"arrays.{name}.checksums", f"{-(-n_rows // a_run)}", many)


def _named_axes(name: str, array: Mapping[str, Any]) -> None:
    if len(array["dims"]) != len(array["shape"]):
        raise _Inconsistent(
            f"arrays.{name}.dims", f"{len(array['shape'])} names", _shown(array["dims"])
        )


_SCHEMAS = {
    DATASET_FORMAT: DatasetManifest,
    ARTIFACT_FORMAT: ArtifactManifest,
    CODES_FORMAT: CodesManifest,
}
_CONSISTENT: dict[str, Callable[[Mapping[str, Any]], None]] = {
    DATASET_FORMAT: _dataset,
    ARTIFACT_FORMAT: _artifact,
    CODES_FORMAT: _codes,
}
_REMEDIES = {
    DATASET_FORMAT: "Ingest the dataset again.",
    ARTIFACT_FORMAT: "Fit again.",
    CODES_FORMAT: "Run again what wrote them.",
}
