"""Manifests: JSON beside Zarr, sealed by a digest, without which nothing counts as whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from storage.errors import DataError, Unreachable
from storage.format.schema import DATASET_FORMAT
from storage.stores.locations import MANIFEST, Place, is_unfinished, named_kind, write_text


def write_manifest(folder: Place, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Seal a manifest with its own digest and write it: from here on the folder counts as whole."""
    # Only what JSON gives back can be checked later: its keys are text, its lists are no tuples.
    body = json.loads(json.dumps(manifest))
    body.pop("manifest_digest", None)
    sealed = {**body, "manifest_digest": _digest(body)}
    write_text(folder / MANIFEST, json.dumps(sealed, indent=1) + "\n")
    return sealed


def read_manifest(folder: Place, kind: str, newest: int) -> dict[str, Any]:
    """Read a manifest and refuse what is not whole, not ours, too new or against its schema.

    Parameters
    ----------
    folder
        The dataset's or artifact's folder.
    kind
        Its `format` name, such as `latentbits-dataset`.
    newest
        The newest format version this package reads.

    Raises
    ------
    DataError
        If the manifest is missing, damaged, of another kind, of a newer version, or has a part
        that is not what the format says.
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
    if manifest.get("manifest_digest") != _digest(body):
        raise DataError(f"{folder / MANIFEST}: Expected the digest it was written with. Damaged.")
    from storage.format.manifest_schemas import (
        check_manifest,  # pydantic takes its time to be imported
    )

    check_manifest(str(folder / MANIFEST), kind, manifest)
    return manifest


def _read_json(folder: Place, kind: str) -> dict[str, Any]:
    try:
        text = (folder / MANIFEST).read_text(encoding="utf-8")
        manifest = json.loads(text)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(_why_not_there(folder, kind)) from None
    except Unreachable:
        raise
    except OSError as error:
        raise DataError(f"{folder / MANIFEST}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise DataError(f"{folder / MANIFEST}: Expected JSON, got damaged text.") from None
    if not isinstance(manifest, dict):
        raise DataError(f"{folder / MANIFEST}: Expected a JSON object, got something else.")
    return manifest


def _why_not_there(folder: Place, kind: str) -> str:
    if not folder.exists():
        return f"{folder}: Expected {named_kind(kind)}, got a path that does not exist."
    if is_unfinished(folder, kind):
        return (
            f"{folder}: Expected {named_kind(kind, 'whole')}, got one whose writing was "
            "interrupted. Run it again."
        )
    found = f"{folder}: Expected {named_kind(kind)}, got something else (no {MANIFEST})."
    if kind == DATASET_FORMAT:
        name = "NAME" if folder.name.endswith(".zarr") else folder.stem
        return f"{found} Ingest data first: python -m flows.ingest {folder} --dataset {name}.zarr"
    return found


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
