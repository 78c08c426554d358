"""Manifests: JSON next to Zarr, sealed by a digest. Without one, a folder counts as incomplete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage.errors import DataError, StoreUnreachableError
from storage.format.manifest_schemas import check_manifest
from storage.format.schema import ARTIFACT_FORMAT, CODES_FORMAT, REMEDIES
from storage.stores.leases import keep_leases
from storage.stores.locations import (
    DATASET_FORMAT,
    LATEST_NAME,
    MANIFEST_NAME,
    AnyPath,
    format_kind,
    is_unfinished,
    list_children,
    write_text,
)


def seal_manifest(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest as JSON will return it, with its own digest."""
    body = json.loads(json.dumps(manifest))  # keys become text and tuples become lists
    body.pop("manifest_digest", None)
    return {**body, "manifest_digest": _compute_digest(body)}


def write_manifest(folder: AnyPath, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Seal a manifest and write it, which makes the folder complete.

    Raises `LeaseLostError` if another process has taken over a folder that is locked.
    """
    sealed = seal_manifest(manifest)
    with keep_leases():
        write_text(folder / MANIFEST_NAME, json.dumps(sealed, indent=1) + "\n")
    return sealed


def read_manifest(folder: AnyPath, kind: str, *versions: int) -> dict[str, Any]:
    """Read and check a manifest.

    Parameters
    ----------
    folder
        Folder of the dataset, artifact or codes.
    kind, versions
        The format, such as `latentbits-dataset`, and the versions that this package reads.

    Raises
    ------
    DataError
        If the manifest is missing, damaged, of another kind or version, or violates its schema.
    """
    manifest = _read_json(folder, kind)
    if manifest.get("format") != kind:
        raise DataError(f"{folder}: the format is {manifest.get('format')!r}, not {kind!r}.")
    stored_version = manifest.get("format_version")
    if stored_version not in versions:
        is_newer = isinstance(stored_version, int) and stored_version > max(versions)
        remedy = "Upgrade latentbits to read it." if is_newer else REMEDIES[kind]
        raise DataError(f"{folder}: format version {stored_version} is not supported. {remedy}")
    body = {name: value for name, value in manifest.items() if name != "manifest_digest"}
    if manifest.get("manifest_digest") != _compute_digest(body):
        raise DataError(
            f"{folder / MANIFEST_NAME}: the manifest is damaged: its digest differs. "
            f"{REMEDIES[kind]}"
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
        raise DataError(
            f"{folder / MANIFEST_NAME}: the manifest is damaged: it is not JSON."
        ) from None
    if not isinstance(manifest, dict):
        raise DataError(
            f"{folder / MANIFEST_NAME}: the manifest is damaged: it is not a JSON object."
        )
    return manifest


def _explain_missing(folder: AnyPath, kind: str) -> str:
    noun = kind.removeprefix("latentbits-")
    if not folder.exists():
        verb = "are" if kind == CODES_FORMAT else "is"
        has_parent = isinstance(folder, Path) and folder.parent.name and folder.parent.is_dir()
        own = f" {folder.parent}" if has_parent else ""
        remedy = f" List the fits: python -m flows.runs{own}" * (kind == ARTIFACT_FORMAT)
        return f"{folder}: there {verb} no such {noun}.{remedy}"
    if is_unfinished(folder, kind):
        return (
            f"{folder}: this is not {format_kind(kind, 'complete')}: its writing was interrupted. "
            "Run the command again."
        )
    message = f"{folder}: this is not {format_kind(kind)} (it has no {MANIFEST_NAME})."
    if kind == DATASET_FORMAT:
        name = "NAME" if folder.name.endswith(".zarr") else folder.stem
        return (
            f"{message} Ingest data first: python -m flows.ingest {folder} {{dataset={name}.zarr}}"
        )
    runs = [child for child in list_children(folder) if (child / LATEST_NAME).is_file()]
    if kind == ARTIFACT_FORMAT and runs:
        return f"{folder}: this is a folder of several fits. Name one of them, such as {runs[0]}."
    return message


def _compute_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
