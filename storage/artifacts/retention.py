"""Delete old fits and abandoned work from folders of runs.

A fit is old if it is neither among the newest ones nor young. Kept whatever the rule says: the fit
that `latest` names, from which warm starts begin and with which drift compares; and, for a day, a
fit that a newer one replaced, because a transform that began with it may still read it.

Manifests are deleted first, so that what a killed deletion leaves never looks complete. The next
one finds it as an unfinished fit, or unfinished codes.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from storage.errors import DataError, FolderInUseError
from storage.format.manifests import read_manifest
from storage.format.schema import ARTIFACT_FORMAT, CODES_FORMAT, FORMAT_VERSION
from storage.stores.leases import lock_folder
from storage.stores.locations import (
    LATEST_NAME,
    LOCK_SUFFIX,
    MANIFEST_NAME,
    UNFINISHED_NAME,
    AnyPath,
    delete_tree,
    is_unfinished,
    list_children,
    measure_tree,
)
from storage.stores.object_store import translate_store_errors

MAX_RUNS_DEPTH = 3
"""Levels of folders to search for fits: runs, datasets, fits."""
_DAY = 86_400.0
_ABANDONED_AFTER = _REPLACED_KEPT = _DAY
_RULE = re.compile(r"(keep|days)=(\d{1,6})")


class RetentionRule(NamedTuple):
    """Which fits to keep: the newest `keep` in each folder of runs, and those of some days."""

    keep: int
    days: int


class Removal(NamedTuple):
    """A folder that may be deleted.

    Attributes
    ----------
    folder
        The folder.
    kind
        What it holds.
    runs
        The folder of runs that it is in.
    n_bytes
        Its size.
    modified
        When it was last written, in seconds since 1970.
    """

    folder: AnyPath
    kind: Literal["fit", "codes", "unfinished fit", "unfinished codes", "unfinished work"]
    runs: AnyPath
    n_bytes: int
    modified: float


def parse_retention_rule(text: str, option: str) -> RetentionRule:
    """Parse a rule such as `keep=30,days=90`; the newest fit is always kept.

    Errors call it by the name of the option, which for `--prune` is also that of a setting.

    Raises `DataError` if the text is none.
    """
    parts = [_RULE.fullmatch(part.strip()) for part in text.split(",")]
    values = {part[1]: int(part[2]) for part in parts if part is not None}
    if None in parts or len(values) < len(parts) or values.get("keep") == 0:
        raise DataError(
            f"{option} is {text!r}. Write keep=30,days=90 to keep the newest 30 fits and those "
            "of the last 90 days, or one of the two."
        )
    return RetentionRule(values.get("keep", 1), values.get("days", 0))


def find_removals(
    folder: AnyPath, rule: RetentionRule, now: float | None = None
) -> Iterator[Removal]:
    """Iterate over what may be deleted in a folder of runs, or in all folders of runs below it.

    These are old fits, codes of these fits next to them, and unfinished work that nobody wrote to
    for a day. Fits that cannot be read, and those without a time, are kept, and so are all fits of
    a folder whose `latest` names none.
    """
    now = time.time() if now is None else now
    for runs in _iter_run_folders(folder, MAX_RUNS_DEPTH - 1):
        yield from _find_old_results(runs, rule, now)
        yield from _find_abandoned_work(runs, now)


def delete_removal(removal: Removal, now: float | None = None) -> bool:
    """Delete a folder that `find_removals` found; return False if it is in use by now.

    Raises `DataError` if it cannot be deleted.
    """
    folder, now = removal.folder, time.time() if now is None else now
    if removal.kind == "fit" and folder.name == _read_latest(removal.runs):
        return False
    if removal.kind != "unfinished work":
        _delete_results(folder)
        return True
    try:
        with lock_folder(folder):
            if now - measure_tree(folder).modified < _ABANDONED_AFTER:
                return False
            delete_tree(folder)
    except FolderInUseError:
        return False
    with suppress(OSError):  # other work is in it
        (removal.runs / UNFINISHED_NAME).rmdir()
    return True


def _iter_run_folders(folder: AnyPath, depth: int) -> Iterator[AnyPath]:
    if (folder / LATEST_NAME).is_file() or (folder / UNFINISHED_NAME).is_dir():
        yield folder
    elif depth and not (folder / MANIFEST_NAME).is_file():
        for child in list_children(folder):
            if not child.name.startswith(".") and child.is_dir():
                yield from _iter_run_folders(child, depth - 1)


def _read_latest(runs: AnyPath) -> str | None:
    try:
        return (runs / LATEST_NAME).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None


def _find_old_results(runs: AnyPath, rule: RetentionRule, now: float) -> Iterator[Removal]:
    latest, fits, codes = _read_latest(runs), [], []
    for child in list_children(runs):
        if child.name.startswith(".") or not child.is_dir():
            continue
        if is_unfinished(child, ARTIFACT_FORMAT) or is_unfinished(child, CODES_FORMAT):
            is_fit = is_unfinished(child, ARTIFACT_FORMAT)
            removal = _measure(child, "unfinished fit" if is_fit else "unfinished codes", runs)
            if now - removal.modified > _ABANDONED_AFTER:
                yield removal
        elif manifest := _read_if_complete(child, ARTIFACT_FORMAT):
            with suppress(KeyError, TypeError, ValueError):
                created = datetime.fromisoformat(manifest["created"]).timestamp()
                fits.append((created, child.name, child, manifest["manifest_digest"]))
        elif manifest := _read_if_complete(child, CODES_FORMAT):
            codes.append((manifest.get("artifact"), child))
    fits.sort(reverse=True)
    if latest not in [name for _, name, _, _ in fits]:
        return
    old_fits = {}
    for place, (created, name, child, digest) in enumerate(fits):
        is_old = place >= rule.keep and now - created > rule.days * _DAY
        if is_old and name != latest and now - fits[place - 1][0] > _REPLACED_KEPT:
            old_fits[digest] = child
    for digest, child in codes:  # before their fits: without these, nothing tells that they are old
        if digest in old_fits:
            yield _measure(child, "codes", runs)
    for child in old_fits.values():
        yield _measure(child, "fit", runs)


def _find_abandoned_work(runs: AnyPath, now: float) -> Iterator[Removal]:
    """Find work folders of fits, and of codes next to them."""
    work = [place for place in list_children(runs / UNFINISHED_NAME) if place.name[0] != "."]
    work += [
        place
        for place in list_children(runs)
        if place.name.startswith(".") and place.name.endswith(UNFINISHED_NAME)
    ]
    for place in work:
        if place.name != UNFINISHED_NAME and place.is_dir():
            removal = _measure(place, "unfinished work", runs)
            lease = place.with_name(f".{place.name}{LOCK_SUFFIX}")  # renewed by a living writer
            if now - max(removal.modified, measure_tree(lease).modified) > _ABANDONED_AFTER:
                yield removal


def _read_if_complete(folder: AnyPath, kind: str) -> dict[str, Any] | None:
    try:
        return read_manifest(folder, kind, FORMAT_VERSION)
    except DataError:
        return None


def _measure(folder: AnyPath, kind: Any, runs: AnyPath) -> Removal:
    return Removal(folder, kind, runs, *measure_tree(folder))


def _delete_results(folder: AnyPath) -> None:
    """Delete a fit or codes: all manifests first, beginning with its own."""
    with translate_store_errors(folder):
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        for manifest in folder.rglob(MANIFEST_NAME) if isinstance(folder, Path) else ():
            manifest.unlink(missing_ok=True)
    delete_tree(folder)
    if folder.exists():
        raise DataError(f"{folder} could not be deleted completely. Check its permissions.")
