"""Schemas of manifests. Manifests are external data, so they are checked when they are read.

JSON values are checked against types: numbers, text, lists, mappings and `TypedDict`. Checks are
strict: True is not a whole number, and 1.0 is none either. Entries that a `TypedDict` does not name
are allowed. `Annotated[T, rule]` adds a rule: a function that raises `ValueError` with a text such
as "should be at least 1".
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from storage.errors import DataError
from storage.format.schema import ARTIFACT_FORMAT, CODES_FORMAT, REMEDIES, list_stored_arrays
from storage.stores.locations import DATASET_FORMAT

Check = Callable[[Any], None]
_TYPE_RULES = {
    bool: "should be true or false",
    int: "should be a whole number",
    float: "should be a number",
    str: "should be text",
    list: "should be a list",
    dict: "should be a mapping",
    NoneType: "should be null",
}


class JsonTypeError(ValueError):
    """A value does not have its type.

    Attributes
    ----------
    place
        Keys and indices that lead to the value.
    value
        The value.
    rule
        What it should be.
    is_missing
        Whether there is no value.
    """

    def __init__(
        self, value: Any, rule: str, place: tuple[str | int, ...] = (), is_missing: bool = False
    ) -> None:
        self.value, self.rule, self.place, self.is_missing = value, rule, place, is_missing
        super().__init__(rule)


class Limits(NamedTuple):
    """A rule for numbers: from `low` to `high`, both included."""

    low: float
    high: float

    def __call__(self, value: float) -> None:
        """Raise `ValueError` if the number is outside, or not a number."""
        if not self.low <= value <= self.high:
            raise ValueError(f"should be from {self.low} to {self.high}")


def check_json_type(value: Any, kind: Any) -> None:
    """Raise `JsonTypeError` if a JSON value does not have the type."""
    _make_check(kind)(value)


@cache
def _make_check(kind: Any) -> Check:
    """Return the check of a type. It is made once, because manifests have long lists."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: None
    if is_typeddict(kind):
        return _make_record_check(kind)
    if origin is Annotated:
        return _make_rule_check(_make_check(arguments[0]), kind.__metadata__)
    if origin is Literal:
        rule = f"should be {' or '.join(map(repr, arguments))}"
        return lambda value: _require(value in arguments, value, rule)
    if origin in (Union, UnionType):
        return _make_union_check([_make_check(argument) for argument in arguments])
    if origin in (list, tuple):
        return _make_list_check(origin, _make_check(arguments[0]))
    if origin is dict:
        return _make_mapping_check(_make_check(arguments[0]), _make_check(arguments[1]))
    return _make_simple_check(kind)


def _require(is_valid: bool, value: Any, rule: str) -> None:
    if not is_valid:
        raise JsonTypeError(value, rule)


def _make_simple_check(kind: type) -> Check:
    """Check for a plain type. Text may have lone surrogates, as the data may contain them."""
    rule = _TYPE_RULES[kind]
    kinds = (float, int) if kind is float else (kind,)
    return lambda value: _require(type(value) in kinds, value, rule)


def _make_rule_check(check_type: Check, rules: Iterable[Check]) -> Check:
    def check(value: Any) -> None:
        check_type(value)
        try:
            for rule in rules:
                rule(value)
        except ValueError as error:
            raise JsonTypeError(value, str(error)) from None

    return check


def _make_union_check(checks: list[Check]) -> Check:
    """Accept a value of any of the types; the error is that of the type it resembles most."""

    def check(value: Any) -> None:
        errors = []
        for check_type in checks:
            try:
                return check_type(value)
            except JsonTypeError as error:
                errors.append(error)
        raise max(errors, key=lambda error: len(error.place))

    return check


def _make_list_check(kind: type, check_item: Check) -> Check:
    def check(value: Any) -> None:
        _require(isinstance(value, kind), value, _TYPE_RULES[list])
        for index, item in enumerate(value):
            _check_inside(check_item, item, index)

    return check


def _make_mapping_check(check_key: Check, check_item: Check) -> Check:
    def check(value: Any) -> None:
        _require(isinstance(value, dict), value, _TYPE_RULES[dict])
        for key, item in value.items():
            check_key(key)
            _check_inside(check_item, item, key)

    return check


def _make_record_check(kind: Any) -> Check:
    hints = get_type_hints(kind, include_extras=True)
    # `__required_keys__` counts NotRequired entries of annotations that are strings.
    is_optional = {
        name: get_origin(hint) is NotRequired or name not in kind.__required_keys__
        for name, hint in hints.items()
    }
    kinds = {
        name: get_args(hint)[0] if get_origin(hint) is NotRequired else hint
        for name, hint in hints.items()
    }

    def check(value: Any) -> None:
        _require(isinstance(value, dict), value, _TYPE_RULES[dict])
        for name, entry_kind in kinds.items():
            if name in value:
                _check_inside(_make_check(entry_kind), value[name], name)
            elif not is_optional[name]:
                raise JsonTypeError(None, "should exist", (name,), is_missing=True)

    return check


def _check_inside(check: Check, value: Any, key: str | int) -> None:
    try:
        check(value)
    except JsonTypeError as error:
        error.place = (key, *error.place)
        raise


MAX_INT64 = 2**63 - 1
_MAX_VALUE_LENGTH = 60
_NUMBER_DTYPES = frozenset(
    {"bool", *(f"{kind}{8 * size}" for kind in ("int", "uint") for size in (1, 2, 4, 8))}
    | {f"float{8 * size}" for size in (2, 4, 8, 12, 16)}
)
Count = Annotated[int, Limits(0, MAX_INT64)]
Number = Annotated[float, Limits(-sys.float_info.max, sys.float_info.max)]
Position = Annotated[int, Limits(0, 2**31 - 1)]
Checksum = Annotated[int, Limits(0, 2**32 - 1)]


def _check_unique(names: list[str]) -> None:
    if len(names) != len({*names}):
        raise ValueError("should have names that all differ")


UniqueNames = Annotated[list[str], _check_unique]


def _check_pages(pages: list[list[int]]) -> None:
    """Check that pages have three numbers and follow each other, in texts and in bytes."""
    if not pages or any(len(page) != 3 for page in pages):
        raise ValueError("should have pages of three numbers")
    ends = [[0, 0], *(page[:2] for page in pages)]
    if not all(a < c and b < d for (a, b), (c, d) in pairwise(ends)):
        raise ValueError("should have pages that follow each other")


TextPages = Annotated[list[list[Count]], _check_pages]
"""Per page of a column's texts: number of texts up to its end, number of bytes, and checksum."""


def _check_json_value(value: Any, depth: int = 0) -> None:
    """Check for valid text, 64-bit numbers, and lists and mappings of these."""
    if depth > 20 or (isinstance(value, int) and abs(value) > MAX_INT64):
        raise ValueError("should have 64-bit numbers in lists of limited depth")
    inner = (*value, *value.values()) if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for item in inner:
            _check_json_value(item, depth + 1)
    if isinstance(value, str) and not _is_unicode(value):
        raise ValueError("should be valid Unicode text")


def _is_unicode(text: str) -> bool:
    """Return whether a text has no lone surrogates, which JSON allows but other files do not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


JsonValue = Annotated[Any, _check_json_value]


def _check_packed_array(entry: list[Any]) -> None:
    """Check the name, dtype and shape of a packed array."""
    match entry:
        case [str(), str(dtype), [*shape]] if dtype in _NUMBER_DTYPES:
            if all(type(size) is int and 0 <= size <= MAX_INT64 for size in shape):
                return
    raise ValueError("should be name, type and shape of an array of numbers")


PackedArrayRecord = Annotated[list[Any], _check_packed_array]


class ArtifactArrayRecord(TypedDict):
    """An array of an artifact."""

    dims: list[str]
    shape: list[Count]
    checksum: Checksum


class ArtifactManifest(TypedDict):
    """Entries of all artifacts."""

    arrays: dict[str, ArtifactArrayRecord]
    packed: NotRequired[list[PackedArrayRecord]]


class DatasetRecord(TypedDict):
    """The dataset of a fit."""

    path: str
    digest: str
    chunks_digest: NotRequired[str]
    rows_digest: NotRequired[str]
    n_rows: Count
    n_chunks: Count


class WarmStartRecord(TypedDict):
    """The fit that a warm start began from."""

    path: str
    digest: str


class KnownItemsRecord(TypedDict):
    """The table or artifact that the known items of a fit come from."""

    path: str
    digest: str
    n_items: Count


class PatternRecord(TypedDict):
    """The traits of a loading pattern, and for each feature an entry per trait."""

    traits: UniqueNames
    entries: list[list[str]]


class SkippedChunkRecord(TypedDict):
    """A chunk that was left out."""

    chunk: Count
    first_row: Count
    n_rows: Count


class StageUsageRecord(TypedDict):
    """Resources that a stage used."""

    seconds: Number
    cpu_seconds: Number
    bytes_read: Count | None
    peak_memory: Count | None
    peak_memory_of_largest_worker: Count | None


class ParameterMoveRecord(TypedDict):
    """The parameter that changed most."""

    array: str
    feature: str
    before: Number
    now: Number


class ParameterDriftRecord(TypedDict, total=False):
    """How parameters changed."""

    array: str
    similarity: Number
    largest_move: ParameterMoveRecord


class PairDriftRecord(TypedDict):
    """A pair of features whose correlation changed."""

    features: list[str]
    before: Number
    new: Number
    z: Number


class CorrelationDriftRecord(TypedDict):
    """How correlations changed."""

    pairs: Count
    rms: Number
    rms_by_chance: Number
    chance: str
    largest: list[PairDriftRecord]


class LikelihoodDriftRecord(TypedDict):
    """How likely the new rows are."""

    measure: str
    unit: str
    rows: Count
    before: Number
    now: Number


class OmissionRecord(TypedDict):
    """Why something is left out."""

    note: str


class DriftRecord(TypedDict):
    """Changes since the previous fit."""

    path: str
    digest: str
    created: str
    rows_then: Count
    rows_new: Annotated[int, Limits(-MAX_INT64, MAX_INT64)]
    new_features: NotRequired[list[str]]
    absent_features: NotRequired[list[str]]
    new_segments: list[str]
    settings_changed: list[str]
    parameters: ParameterDriftRecord
    correlations: NotRequired[OmissionRecord | CorrelationDriftRecord]
    likelihood: NotRequired[OmissionRecord | LikelihoodDriftRecord]


class RowWeightsRecord(TypedDict):
    """The weights of the fitted rows; see `pipeline.data.weights.RowWeights`."""

    column: str
    kind: Literal["frequency", "sampling"]
    unit: Number
    scale: Number
    n_rows: Count
    total: Number
    effective_rows: Number
    digest: str
    psu: str | None


class CovariateColumnRecord(TypedDict):
    """A column of covariates; see `pipeline.data.covariates.CovariateColumn`."""

    name: str
    levels: list[str]


class CovariatesRecord(TypedDict):
    """The covariates of the fitted rows; see `pipeline.data.covariates.Covariates`."""

    columns: list[CovariateColumnRecord]
    names: list[str]
    means: list[Number]
    deviations: list[Number]


def _check_objective_name(diagnostics: dict[str, Any]) -> None:
    if not isinstance(diagnostics.get("objective_is", ""), str):
        raise ValueError("should have text in objective_is")


Diagnostics = Annotated[dict[str, JsonValue], _check_objective_name]


class FitManifest(ArtifactManifest, total=False):
    """Entries of a fit's artifact; `pipeline.inference.from_artifact` states the required ones."""

    model: str
    hyperparameters: dict[str, JsonValue]
    seed: Count
    split: str | None
    versions: dict[str, str]
    code: str
    dataset: DatasetRecord
    feature_names: UniqueNames
    feature_levels: dict[str, list[str]]
    nominal_features: list[str]
    split_levels: dict[str, list[str]]
    segment_names: UniqueNames
    row_weights: RowWeightsRecord
    group: str
    known_items: KnownItemsRecord
    pattern: PatternRecord
    covariates: CovariatesRecord
    orient: list[str]
    warm_start: WarmStartRecord | None
    iterations: Count
    converged: bool
    history: list[Number]
    objective: Number | None
    diagnostics: Diagnostics
    warnings: list[str]
    n_components: Count
    labels: UniqueNames
    n_samples: Count
    created: str
    skipped_chunks: list[SkippedChunkRecord]
    drift: OmissionRecord | DriftRecord | None
    usage_by_stage: dict[str, StageUsageRecord]
    pairs: str | None


class ColumnRecord(TypedDict):
    """A per-row column of a dataset, and the pages of its texts."""

    kind: Literal["int", "nullable-int", "float", "category"]
    levels: NotRequired[TextPages]


class TableChecksums(TypedDict):
    """Checksums of a dataset's tables."""

    chunks: Checksum
    blocks: Checksum
    ones: Checksum
    checksums: Checksum
    features: NotRequired[Checksum]


class DatasetManifest(TypedDict):
    """Entries that `storage.dataset.writer` records."""

    digest: str
    n_rows: Count
    n_chunks: Count
    n_blocks: Count
    words_per_chunk: Annotated[int, Limits(1, 1 << 40)]
    feature_names: UniqueNames
    segment_names: UniqueNames
    columns: dict[str, ColumnRecord]
    stored: list[str]
    tables: TableChecksums
    ingest: dict[str, Any]
    attributes: NotRequired[dict[str, Any]]
    positions: NotRequired[list[Position]]
    added_features: NotRequired[dict[str, Literal["missing", "zero"]]]
    chunk_features: NotRequired[list[Count]]
    feature_levels: NotRequired[dict[str, list[str]]]
    nominal_features: NotRequired[list[str]]


class CodeArrayRecord(TypedDict):
    """An array of codes."""

    dims: list[str]
    shape: list[Count]
    dtype: str
    checksums: list[Checksum]


class CodesManifest(TypedDict):
    """Entries of codes. Pairs have only the required entries."""

    n_rows: Count
    rows_per_chunk: Annotated[int, Limits(1, MAX_INT64)]
    arrays: dict[str, CodeArrayRecord]
    model: NotRequired[str]
    artifact_path: NotRequired[str]
    dataset: NotRequired[DatasetRecord]
    queries: NotRequired[DatasetRecord | None]
    split: NotRequired[str | None]
    group: NotRequired[str]
    feature_names: NotRequired[list[str]]
    feature_levels: NotRequired[dict[str, list[str]]]
    nominal_features: NotRequired[list[str]]
    warnings: NotRequired[list[str]]


def check_manifest(path: str, kind: str, manifest: Mapping[str, Any]) -> None:
    """Check a manifest of format `kind` against its schema, after its digest.

    Raises `DataError` if an entry is invalid; the message names the entry, its value and the rule.
    """
    schema: Any = _SCHEMAS[kind]
    if kind == ARTIFACT_FORMAT and "model" in manifest:
        schema = FitManifest
    check_schema(path, schema, manifest, REMEDIES[kind], _CONSISTENCY_CHECKS[kind])


def check_schema(
    path: str, schema: Any, values: Any, remedy: str, check_consistency: Check | None = None
) -> None:
    """Check JSON values in the file `path` against a type, such as a `TypedDict`.

    `remedy` is the advice in the error message. `check_consistency` is a further check, which
    raises `JsonTypeError` if entries contradict each other.
    """
    try:
        check_json_type(values, schema)
        if check_consistency is not None:
            check_consistency(values)
    except JsonTypeError as error:
        entry = _make_printable(".".join(map(str, error.place)))
        if error.is_missing:
            raise DataError(f"{path}: {entry} is missing. {remedy}") from None
        place = f"{path}: {entry}" if entry else path
        raise DataError(
            f"{place} is {_format_value(error.value)}, but {_make_printable(error.rule)}. {remedy}"
        ) from None


def _format_value(value: Any) -> str:
    try:
        text = _make_printable(repr(value))
    except (ValueError, RecursionError):  # a number too long to print, or lists too deep
        return f"a {type(value).__name__}"
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 1]}…"


def _make_printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _check_dataset(manifest: Mapping[str, Any]) -> None:
    if len(manifest["feature_names"]) < 2:
        rule = "should have at least two names"
        raise JsonTypeError(manifest["feature_names"], rule, ("feature_names",))
    for name in ("n_rows", "n_chunks", "n_blocks"):
        if not manifest[name]:
            raise JsonTypeError(0, "should be at least 1", (name,))
    levels = manifest.get("feature_levels", {})
    continuous = [name for name in manifest["feature_names"] if levels.get(name) == []]
    stored = list_stored_arrays(manifest["columns"], continuous)
    if manifest["stored"] != stored:
        rule = f"should be {', '.join(stored)[:200]}"
        raise JsonTypeError(manifest["stored"], rule, ("stored",))
    for name, column in manifest["columns"].items():
        if ("levels" in column) != (column["kind"] == "category"):
            rule = "should have levels if its kind is category, and only then"
            raise JsonTypeError(column, rule, (f"columns.{name}",))
    names, n_chunks = manifest["feature_names"], manifest["n_chunks"]
    positions = manifest.get("positions")
    if positions is not None and not len({*positions}) == len(positions) == n_chunks:
        rule = f"should be {n_chunks} different positions"
        raise JsonTypeError(positions, rule, ("positions",))
    for name, own in levels.items():
        if name not in names or len(own) == 1 or len({*own}) < len(own):
            rule = "should be different levels of a feature"
            raise JsonTypeError(own, rule, (f"feature_levels.{name}",))
    nominal = manifest.get("nominal_features", [])
    if any(len(levels.get(name, ())) < 3 for name in nominal):
        rule = "should be features with more than two levels"
        raise JsonTypeError(nominal, rule, ("nominal_features",))
    added = [*manifest.get("added_features", ())]
    n_original = len(names) - len(added)
    if n_original < 2 or {*names[n_original:]} != {*added}:
        rule = "should be the last of the feature names"
        raise JsonTypeError(added, rule, ("added_features",))
    counts = manifest.get("chunk_features", [len(names)] * n_chunks)
    if len(counts) != n_chunks or not all(n_original <= n <= len(names) for n in counts):
        rule = f"should be {n_chunks} numbers of features from {n_original} to {len(names)}"
        raise JsonTypeError(counts, rule, ("chunk_features",))


def _check_artifact(manifest: Mapping[str, Any]) -> None:
    for name, array in manifest["arrays"].items():
        _check_dims(name, array)


def _check_codes(manifest: Mapping[str, Any]) -> None:
    n_rows, rows_per_chunk = manifest["n_rows"], manifest["rows_per_chunk"]
    if not manifest["arrays"]:
        raise JsonTypeError({}, "should have at least one array", ("arrays",))
    for name, array in manifest["arrays"].items():
        _check_dims(name, array)
        if array["dims"][:1] != ["row"] or array["shape"][0] != n_rows:
            rule = f"should have {n_rows} rows"
            raise JsonTypeError(array["shape"], rule, (f"arrays.{name}.shape",))
        n_ranges = -(-n_rows // rows_per_chunk)
        if len(array["checksums"]) != n_ranges:
            rule = f"should have {n_ranges} entries"
            raise JsonTypeError(array["checksums"], rule, (f"arrays.{name}.checksums",))


def _check_dims(name: str, array: Mapping[str, Any]) -> None:
    if len(array["dims"]) != len(array["shape"]):
        rule = f"should have {len(array['shape'])} names"
        raise JsonTypeError(array["dims"], rule, (f"arrays.{name}.dims",))


_SCHEMAS = {
    DATASET_FORMAT: DatasetManifest,
    ARTIFACT_FORMAT: ArtifactManifest,
    CODES_FORMAT: CodesManifest,
}
_CONSISTENCY_CHECKS: dict[str, Check] = {
    DATASET_FORMAT: _check_dataset,
    ARTIFACT_FORMAT: _check_artifact,
    CODES_FORMAT: _check_codes,
}
