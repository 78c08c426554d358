"""What the manifests of artifacts hold, those of fits above all."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict  # pydantic does not take that of Python 3.11

from storage.format.manifest_types import (
    LARGEST,
    Checksum,
    Count,
    Names,
    Number,
    PackedArray,
    Plain,
    Texts,
)


class ArtifactArray(TypedDict):
    """An array of an artifact."""

    dims: list[str]
    shape: list[Count]
    checksum: Checksum


class ArtifactManifest(TypedDict):
    """What every artifact has."""

    arrays: dict[str, ArtifactArray]
    packed: NotRequired[list[PackedArray]]


class Dataset(TypedDict):
    """The dataset of a fit."""

    path: str
    digest: str
    chunks_digest: NotRequired[str]
    n_rows: Count
    n_chunks: Count


class Start(TypedDict):
    """The fit that another began at."""

    path: str
    digest: str


class Skipped(TypedDict):
    """A chunk that was left out."""

    chunk: Count
    first_row: Count
    n_rows: Count


class Used(TypedDict):
    """What a stage took."""

    seconds: Number
    cpu_seconds: Number
    bytes_read: Count | None
    peak_memory: Count | None
    peak_memory_of_largest_worker: Count | None


class Move(TypedDict):
    """The parameter that moved most."""

    array: str
    feature: str
    before: Number
    now: Number


class Moved(TypedDict, total=False):
    """How parameters moved."""

    array: str
    similarity: Number
    largest_move: Move


class MovedPair(TypedDict):
    """A pair of features whose correlation moved."""

    features: list[str]
    before: Number
    new: Number
    z: Number


class Correlations(TypedDict):
    """How correlations moved."""

    pairs: Count
    rms: Number
    rms_by_chance: Number
    chance: str
    largest: list[MovedPair]


class Likelihood(TypedDict):
    """How likely new rows are."""

    measure: str
    unit: str
    rows: Count
    before: Number
    now: Number


class Note(TypedDict):
    """Why something was left out."""

    note: str


class Drift(TypedDict):
    """What changed since the fit before."""

    path: str
    digest: str
    created: str
    rows_then: Count
    rows_new: Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
    new_segments: list[str]
    settings_changed: list[str]
    parameters: Moved
    correlations: NotRequired[Note | Correlations]
    likelihood: NotRequired[Note | Likelihood]


def _named(diagnostics: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(diagnostics.get("objective_is", ""), str):
        raise ValueError("text in objective_is")
    return diagnostics


Diagnostics = Annotated[dict[str, Plain], AfterValidator(_named)]


class FitManifest(ArtifactManifest, total=False):
    """What the artifact of a fit has; `from_artifact` says which parts every one needs."""

    model: str
    hyperparameters: dict[str, Plain]
    seed: Count
    split: str | None
    versions: dict[str, str]
    code: str
    dataset: Dataset
    feature_names: Names
    segment_names: Names
    warm_start: Start | None
    iterations: Count
    converged: bool
    history: list[Number]
    objective: Number | None
    diagnostics: Diagnostics
    warnings: list[str]
    n_components: Count
    labels: Texts
    n_samples: Count
    created: str
    skipped_chunks: list[Skipped]
    drift: Drift | None
    usage_by_stage: dict[str, Used]
    pairs: str | None
