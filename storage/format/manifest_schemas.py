"""What manifests look like: they are data from outside, checked once, where they are read.

It is imported where a manifest is read, as pydantic takes its time to be imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from storage.errors import DataError
from storage.format.schema import ARTIFACT_FORMAT, CODES_FORMAT, DATASET_FORMAT, list_stored_arrays

MAX_INT64 = 2**63 - 1
_NUMBER_DTYPES = frozenset(
    {"bool", *(f"{kind}{8 * size}" for kind in ("int", "uint") for size in (1, 2, 4, 8))}
    | {f"float{8 * size}" for size in (2, 4, 8, 12, 16)}
)
Count = Annotated[int, Field(ge=0, le=MAX_INT64)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Checksum = Annotated[int, Field(ge=0, lt=2**32)]


def _check_unique(names: list[str]) -> list[str]:
    if len(names) != len({*names}):
        raise ValueError("names that differ")
    return names


def _check_text(value: Any) -> Any:
    """Take any text: what a person wrote may hold half of a pair of surrogates."""
    if not isinstance(value, str):
        raise ValueError("text")
    return value


UniqueNames = Annotated[list[str], AfterValidator(_check_unique)]
UniqueTexts = Annotated[
    list[Annotated[Any, AfterValidator(_check_text)]], AfterValidator(_check_unique)
]


def _check_pages(pages: list[list[int]]) -> list[list[int]]:
    """Take pages that end behind each other: so many texts, so many bytes."""
    ends = [[0, 0], *(page[:2] for page in pages)]
    if not all(a < c and b < d for (a, b), (c, d) in pairwise(ends)):
        raise ValueError("pages of texts that end behind each other")
    return pages


TextPages = Annotated[
    list[Annotated[list[Count], Field(min_length=3, max_length=3)]],
    Field(min_length=1),
    AfterValidator(_check_pages),
]
"""Of the texts of a column: numbers of texts and of bytes up to the end, and a checksum."""


def _check_json_value(value: Any, depth: int = 0) -> Any:
    """Take what can be shown: text, finite numbers of 64 bits, and these in lists and mappings."""
    if depth > 20 or (isinstance(value, int) and abs(value) > MAX_INT64):
        raise ValueError("numbers of 64 bits in lists that are not deep")
    inner = (*value, *value.values()) if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for one in inner:
            _check_json_value(one, depth + 1)
    if isinstance(value, str):
        value.encode()  # half of a pair of surrogates is text to JSON, and to nothing else
    return value


JsonValue = Annotated[Any, AfterValidator(_check_json_value)]


def _check_packed_array(described: list[Any]) -> list[Any]:
    """Take name, type and shape of an array among those packed in one."""
    match described:
        case [str(), str(dtype), [*shape]] if dtype in _NUMBER_DTYPES:
            if all(type(size) is int and 0 <= size <= MAX_INT64 for size in shape):
                return described
    raise ValueError("name, type and shape of an array of numbers")


PackedArrayRecord = Annotated[list[Any], AfterValidator(_check_packed_array)]


class ArtifactArrayRecord(TypedDict):
    """An array of an artifact."""

    dims: list[str]
    shape: list[Count]
    checksum: Checksum


class ArtifactManifest(TypedDict):
    """What every artifact has."""

    arrays: dict[str, ArtifactArrayRecord]
    packed: NotRequired[list[PackedArrayRecord]]


class DatasetRecord(TypedDict):
    """The dataset of a fit."""

    path: str
    digest: str
    chunks_digest: NotRequired[str]
    n_rows: Count
    n_chunks: Count


class WarmStartRecord(TypedDict):
    """The fit that another began at."""

    path: str
    digest: str


class SkippedChunkRecord(TypedDict):
    """A chunk that was left out."""

    chunk: Count
    first_row: Count
    n_rows: Count


class StageUsageRecord(TypedDict):
    """What a stage took."""

    seconds: Number
    cpu_seconds: Number
    bytes_read: Count | None
    peak_memory: Count | None
    peak_memory_of_largest_worker: Count | None


class ParameterMoveRecord(TypedDict):
    """The parameter that moved most."""

    array: str
    feature: str
    before: Number
    now: Number


class ParameterDriftRecord(TypedDict, total=False):
    """How parameters moved."""

    array: str
    similarity: Number
    largest_move: ParameterMoveRecord


class PairDriftRecord(TypedDict):
    """A pair of features whose correlation moved."""

    features: list[str]
    before: Number
    new: Number
    z: Number


class CorrelationDriftRecord(TypedDict):
    """How correlations moved."""

    pairs: Count
    rms: Number
    rms_by_chance: Number
    chance: str
    largest: list[PairDriftRecord]


class LikelihoodDriftRecord(TypedDict):
    """How likely new rows are."""

    measure: str
    unit: str
    rows: Count
    before: Number
    now: Number


class OmissionRecord(TypedDict):
    """Why something was left out."""

    note: str


class DriftRecord(TypedDict):
    """What changed since the fit before."""

    path: str
    digest: str
    created: str
    rows_then: Count
    rows_new: Annotated[int, Field(ge=-MAX_INT64, le=MAX_INT64)]
    new_segments: list[str]
    settings_changed: list[str]
    parameters: ParameterDriftRecord
    correlations: NotRequired[OmissionRecord | CorrelationDriftRecord]
    likelihood: NotRequired[OmissionRecord | LikelihoodDriftRecord]


def _check_objective_name(diagnostics: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(diagnostics.get("objective_is", ""), str):
        raise ValueError("text in objective_is")
    return diagnostics


Diagnostics = Annotated[dict[str, JsonValue], AfterValidator(_check_objective_name)]


class FitManifest(ArtifactManifest, total=False):
    """What the artifact of a fit has; `from_artifact` says which parts every one needs."""

    model: str
    hyperparameters: dict[str, JsonValue]
    seed: Count
    split: str | None
    versions: dict[str, str]
    code: str
    dataset: DatasetRecord
    feature_names: UniqueNames
    segment_names: UniqueNames
    warm_start: WarmStartRecord | None
    iterations: Count
    converged: bool
    history: list[Number]
    objective: Number | None
    diagnostics: Diagnostics
    warnings: list[str]
    n_components: Count
    labels: UniqueTexts
    n_samples: Count
    created: str
    skipped_chunks: list[SkippedChunkRecord]
    drift: DriftRecord | None
    usage_by_stage: dict[str, StageUsageRecord]
    pairs: str | None


_MAX_VALUE_LENGTH = 60


class ColumnRecord(TypedDict):
    """A per-row column of a dataset: where its texts are, in version 1 of the format the texts."""

    kind: Literal["int", "float", "category"]
    categories: NotRequired[UniqueTexts]
    levels: NotRequired[TextPages]


class TableChecksums(TypedDict):
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
    feature_names: UniqueNames
    segment_names: UniqueNames
    columns: dict[str, ColumnRecord]
    stored: list[str]
    tables: TableChecksums
    ingest: dict[str, Any]
    attributes: NotRequired[dict[str, Any]]


class CodeArrayRecord(TypedDict):
    """An array of codes."""

    dims: list[str]
    shape: list[Count]
    dtype: str
    checksums: list[Checksum]


class CodesManifest(TypedDict):
    """What codes have; those of pairs have no more."""

    n_rows: Count
    rows_per_chunk: Annotated[int, Field(ge=1, le=MAX_INT64)]
    arrays: Annotated[dict[str, CodeArrayRecord], Field(min_length=1)]
    model: NotRequired[str]
    artifact_path: NotRequired[str]
    dataset: NotRequired[DatasetRecord]
    queries: NotRequired[DatasetRecord | None]
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
    check_schema(path, schema, manifest, _REMEDIES[kind])
    try:
        _CONSISTENCY_CHECKS[kind](manifest)
    except _InconsistentManifest as error:
        at, reason, got = error.args
        raise DataError(_format_error(path, at, reason, got, _REMEDIES[kind])) from None


def check_schema(path: str, schema: Any, values: Any, remedy: str) -> None:
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
        _build_type_adapter(schema).validate_python(values, strict=True)
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        got = "nothing" if found["type"] == "missing" else _format_value(found["input"])
        at = ".".join(map(str, found["loc"]))
        raise DataError(_format_error(path, at, _format_expected(found), got, remedy)) from None


def _format_error(path: str, at: str, reason: str, got: str, remedy: str) -> str:
    where = f"{path}: {_make_printable(at)}" if at else path
    return f"{where}: Expected {_make_printable(reason)}, got {got}. {remedy}"


class _InconsistentManifest(Exception):
    """Parts do not go together: where, what was expected, what came."""


def _format_expected(found: Any) -> str:
    if found["type"] == "missing":
        return "a value"
    said: str = found["msg"]
    return said.removeprefix("Input should be ").removeprefix("Value error, ")


def _format_value(value: Any) -> str:
    try:
        text = _make_printable(repr(value))
    except (ValueError, RecursionError):  # a number too long to be written, lists too deep
        return f"a {type(value).__name__}"
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 1]}…"


def _make_printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


@cache
def _build_type_adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def _check_dataset(manifest: Mapping[str, Any]) -> None:
    if len(manifest["feature_names"]) < 2:
        raise _InconsistentManifest(
            "feature_names", "at least two", str(len(manifest["feature_names"]))
        )
    for name in ("n_rows", "n_chunks", "n_blocks"):
        if not manifest[name]:
            raise _InconsistentManifest(name, "at least 1", "0")
    expected = list_stored_arrays(manifest["columns"])
    if manifest["stored"] != expected:
        raise _InconsistentManifest(
            "stored", ", ".join(expected)[:200], _format_value(manifest["stored"])
        )
    for name, column in manifest["columns"].items():
        if {*column} & {"categories", "levels"} != _find_text_keys(column["kind"], manifest):
            raise _InconsistentManifest(
                f"columns.{name}", "texts of a category", _format_value(column)
            )


def _find_text_keys(kind: str, manifest: Mapping[str, Any]) -> set[str]:
    """Name what tells the texts of a per-row column."""
    if kind != "category":
        return set()
    return {"levels"} if manifest["format_version"] > 1 else {"categories"}


def _check_artifact(manifest: Mapping[str, Any]) -> None:
    for name, array in manifest["arrays"].items():
        _check_dims(name, array)


def _check_codes(manifest: Mapping[str, Any]) -> None:
    n_rows, a_run = manifest["n_rows"], manifest["rows_per_chunk"]
    for name, array in manifest["arrays"].items():
        _check_dims(name, array)
        if array["dims"][:1] != ["row"] or array["shape"][0] != n_rows:
            raise _InconsistentManifest(
                f"arrays.{name}", f"{n_rows} rows", _format_value(array["shape"])
            )
        if len(array["checksums"]) != -(-n_rows // a_run):
            many = str(len(array["checksums"]))
            raise _InconsistentManifest(f"arrays.{name}.checksums", f"{-(-n_rows // a_run)}", many)


def _check_dims(name: str, array: Mapping[str, Any]) -> None:
    if len(array["dims"]) != len(array["shape"]):
        raise _InconsistentManifest(
            f"arrays.{name}.dims", f"{len(array['shape'])} names", _format_value(array["dims"])
        )


_SCHEMAS = {
    DATASET_FORMAT: DatasetManifest,
    ARTIFACT_FORMAT: ArtifactManifest,
    CODES_FORMAT: CodesManifest,
}
_CONSISTENCY_CHECKS: dict[str, Callable[[Mapping[str, Any]], None]] = {
    DATASET_FORMAT: _check_dataset,
    ARTIFACT_FORMAT: _check_artifact,
    CODES_FORMAT: _check_codes,
}
_REMEDIES = {
    DATASET_FORMAT: "Ingest the dataset again.",
    ARTIFACT_FORMAT: "Fit again.",
    CODES_FORMAT: "Run again what wrote them.",
}
