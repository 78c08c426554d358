"""Find the dataset, the split, the label and the fitted model that options name."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.running.environment import find_examples_folder
from pipeline.data.features import are_binary, list_features
from pipeline.data.matching import check_same_features, check_same_levels, check_split_levels
from pipeline.data.plane_views import adapt_to_manifest
from pipeline.errors import FitError
from pipeline.inference import from_artifact
from pipeline.statistics.labels import SEGMENT
from storage.artifacts.artifacts import Artifact, load_artifact
from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.errors import DataError, FolderInUseError
from storage.examples import EXAMPLE_PREFIX, compute_examples_digest, format_example_slug
from storage.stores.locations import AnyPath
from storage.stores.object_path import ObjectPath, is_url

LoadedModel = from_artifact.LoadedModel[Artifact]
"""A fitted model (hyperparameters and parameters), and the artifact it comes from."""
COMBINED = "combined"
"""Name of the folder with the tables and the page of all scales."""
ALL_ROWS, TRAIN, TEST = "all", "train", "test"


def open_dataset_or_example(name: str) -> BinaryDataset:
    """Open a dataset; create an example dataset if it does not exist yet."""
    if not name.startswith(EXAMPLE_PREFIX):
        return open_dataset(name)
    path = find_examples_folder() / compute_examples_digest() / f"{format_example_slug(name)}.zarr"
    while True:
        with suppress(DataError):
            return open_dataset(path)
        from flows.data.ingest import ingest_sources  # slow to import

        try:
            return ingest_sources([name], path, overwrite=path.exists())
        except FolderInUseError:
            time.sleep(0.2)  # another process is creating it


def may_open(recorded: str, *own: AnyPath) -> bool:
    """Return whether to open a path that an artifact or codes record.

    Whoever wrote them chose the path, and a request to another bucket would carry the signature of
    the user. So a URL must be in the same bucket as one of the paths that the user named.
    """
    roots = [f"{path.root}/" for path in own if isinstance(path, ObjectPath)]
    return not is_url(recorded) or recorded.startswith(tuple(roots))


def resolve_split(
    dataset: BinaryDataset, split: str | None, default: str | None = None
) -> str | None:
    """Return the split that `--split` selects; None for all rows.

    `all` selects all rows, unless a split has that name. `default` is used if the option is not set
    and the dataset has this split.
    """
    if split is None:
        return default if default in dataset.splits else None
    if split == ALL_ROWS and split not in dataset.splits:
        return None
    dataset.find_split_code(split)
    return split


def check_label(dataset: BinaryDataset, name: str | None) -> None:
    """Check that a label is a per-row column or `segment`."""
    columns = [*dataset.column_names, SEGMENT]
    if name is not None and name not in columns:
        raise DataError(
            f"{{label}} is {name!r}, but {dataset.path} has no such per-row column. "
            f"Choose one of: {', '.join(columns)}."
        )


def read_true_mixing(dataset: BinaryDataset) -> NDArray[np.float64]:
    """Read the mixing matrix that generated a dataset, (n_features, n_components)."""
    truth = dataset.attributes.get("truth")
    if not isinstance(truth, Mapping) or "mixing" not in truth:
        raise DataError(
            f"{dataset.path} does not contain its true mixing matrix, as example:nonstationary "
            "does. Leave out {truth}."
        )
    try:
        mixing = np.array(truth["mixing"], np.float64)
    except (TypeError, ValueError, OverflowError):
        mixing = np.empty(0)
    if not np.isfinite(mixing).all() or mixing.ndim != 2 or len(mixing) != dataset.n_features:
        raise DataError(
            f"{dataset.path}: the true mixing matrix has shape {mixing.shape}, which does not "
            f"match the {dataset.n_features} features. Leave out {{truth}}."
        )
    return mixing


def split_scales(paths: Sequence[str]) -> dict[str, list[str]]:
    """Return the paths of the fits of each scale, if the paths are folders of scales.

    Other paths are those of a scale without a name. Raises `DataError` if the folders do not have
    the same scales.
    """
    found = {path: _find_scales(path) for path in paths}
    first = next((path for path, scales in found.items() if scales), None)
    if first is None:
        return {"": [*paths]}
    for path, scales in found.items():
        if not scales:
            load_fitted_model(path)  # says what is wrong if it is none
            raise DataError(
                f"{path} has no scales, unlike {first}. Name folders of fit --scales only, or the "
                f"fits of one scale, such as {first}/{found[first][0]}."
            )
        if {*scales} != {*found[first]}:
            differing = ", ".join(sorted({*scales} ^ {*found[first]}))
            raise DataError(
                f"{path} and {first} do not have the same scales: {differing}. Name the fits of "
                f"one scale, such as {first}/{found[first][0]}."
            )
    return {scale: [str(Path(path) / scale) for path in paths] for scale in found[first]}


def _find_scales(path: str) -> list[str]:
    """Return the scales in a folder of `fit --scales`, in their order; none in others."""
    if is_url(path) or not (table := Path(path) / COMBINED / "items.csv").is_file():
        return []
    with table.open(encoding="utf-8", newline="") as file:
        return [*dict.fromkeys(line["scale"] for line in csv.DictReader(file))]


def load_fitted_model(path: str | AnyPath) -> LoadedModel:
    """Load a fitted model, or the latest one in a folder of runs."""
    artifact = load_artifact(path)
    try:
        return from_artifact.model_from_artifact(artifact)
    except FitError as error:
        raise DataError(f"{artifact.path}: {error}") from None


def adapt_to_fit(dataset: BinaryDataset, manifest: Mapping[str, Any], path: str) -> BinaryDataset:
    """Return the dataset as `adapt_to_manifest` does; `path` is that of the manifest."""

    def make_error(column: str, role: str) -> DataError:
        return DataError(
            f"{dataset.path} has no per-row column {column!r}, whose values are the {role} of "
            f"{path}. Add the column."
        )

    check_dataset_levels(dataset, manifest, path)
    return adapt_to_manifest(dataset, manifest, make_error)


def check_dataset_levels(dataset: BinaryDataset, manifest: Mapping[str, Any], path: str) -> None:
    """Check that the features that a fit cut in two or split into planes have its levels."""
    try:
        check_split_levels(manifest, dataset, path)
    except FitError as error:
        raise DataError(f"{dataset.path}: {error}") from None


def check_dataset_features(
    fitted: LoadedModel,
    dataset: BinaryDataset,
    remedy: str = "Use the features of the fit in the same order, or fit again.",
) -> None:
    """Check that a dataset has the features of the fit, in the same order and with its levels."""
    own, path = list_features(dataset), str(fitted.artifact.path)
    expected = fitted.features if are_binary(own) else fitted.dataset_features
    try:
        check_same_features([f.name for f in expected], dataset.feature_names, path, remedy="")
    except FitError as error:
        raise DataError(f"{dataset.path}: {error}{remedy}") from None
    try:
        check_same_levels(expected, own, path)
    except FitError as error:
        raise DataError(f"{dataset.path}: {error}") from None
