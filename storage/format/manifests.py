"""Manifests: JSON next to Zarr, sealed by a digest. Without one, a folder counts as incomplete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from storage.errors import DataError, StoreUnreachableError
from storage.format.schema import DATASET_FORMAT
from storage.stores.locations import MANIFEST_NAME, AnyPath, format_kind, is_unfinished, write_text


def write_manifest(folder: AnyPath, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Seal a manifest with its own digest and write it, which makes the folder complete."""
    # Only what JSON gives back can be checked later: its keys are text, its lists are no tuples.
    body = json.loads(json.dumps(manifest))
    body.pop("manifest_digest", None)
    sealed = {**body, "manifest_digest": _compute_digest(body)}
    write_text(folder / MANIFEST_NAME, json.dumps(sealed, indent=1) + "\n")
    return sealed


def read_manifest(folder: AnyPath, kind: str, newest: int) -> dict[str, Any]:
    """Read and check a manifest.

    Parameters
    ----------
    folder
        Folder of the dataset, artifact or codes.
    kind
        Its `format`, such as `latentbits-dataset`.
    version
        The format version that this package reads.

    Raises
    ------
    DataError
        If the manifest is missing, damaged, of another kind or version, or violates its schema.
    """
    manifest = _read_json(folder, kind)
    if manifest.get("format") != kind:
        raise DataError(f"{folder}: Expected a {kind}, got {manifest.get('format')!r}.")
    version = manifest.get("format_version")
    if not isinstance(version, int) or version > newest:
        raise DataError(
            f"{folder}: Expected format version {newest} or older, got {version}. "
            "Upgrade latentbits to read it."
        )
    body = {name: value for name, value in manifest.items() if name != "manifest_digest"}
    if manifest.get("manifest_digest") != _compute_digest(body):
        raise DataError(
            f"{folder / MANIFEST_NAME}: Expected the digest it was written with. Damaged."
        )
    from storage.format.manifest_schemas import (
        check_manifest,  # pydantic takes its time to be imported
    )

    check_manifest(str(folder / MANIFEST_NAME), kind, manifest)
    return manifest


def _read_json(folder: AnyPath, kind: str) -> dict[str, Any]:
    try:
        text = (folder / MANIFEST_NAME).read_text(encoding="utf-8")
        manifest = json.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(_explain_missing(folder, kind)) from None
    except StoreUnreachableError:
        raise
    except OSError as error:
        raise DataError(f"{folder / MANIFEST_NAME}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise DataError(f"{folder / MANIFEST_NAME}: Expected JSON, got damaged text.") from None
    if not isinstance(manifest, dict):
        raise DataError(f"{folder / MANIFEST_NAME}: Expected a JSON object, got something else.")
    return manifest


def _explain_missing(folder: AnyPath, kind: str) -> str:
    if not folder.exists():
        return f"{folder}: Expected {format_kind(kind)}, got a path that does not exist."
    if is_unfinished(folder, kind):
        return (
            f"{folder}: Expected {format_kind(kind, 'whole')}, got one whose writing was "
            "interrupted. Run it again."
        )
    found = f"{folder}: Expected {format_kind(kind)}, got something else (no {MANIFEST_NAME})."
    if kind == DATASET_FORMAT:
        name = "NAME" if folder.name.endswith(".zarr") else folder.stem
        return f"{found} Ingest data first: python -m flows.ingest {folder} --dataset {name}.zarr"
    return found


def _compute_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
