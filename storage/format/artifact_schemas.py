"""What the manifests of artifacts hold, those of fits above all."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict  # pydantic does not take that of Python 3.11

from storage.format.manifest_types import (
    MAX_INT64,
    Checksum,
    Count,
    JsonValue,
    Number,
    PackedArrayRecord,
    UniqueNames,
    UniqueTexts,
)


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
    find_largest: list[PairDriftRecord]


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
