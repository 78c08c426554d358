"""Chunks that cannot be read any more, and are left out of a fit that is asked to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from flows.fitting.job import Job
from storage.artifacts.packed import load_packed, write_packed
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import MANIFEST

_NAMED = 8


def find_damaged(job: Job) -> tuple[int, ...]:
    """Read all chunks once and give the keys of the damaged ones.

    They are recorded: a run that goes on leaves out the same, whatever was mended since.

    Raises
    ------
    DataError
        If a chunk cannot be read for another reason, such as a store that does not answer.
    """
    record = job.run.work / "skipped"
    if job.options.resume and (record / MANIFEST).exists():
        return tuple(load_packed(record).arrays["skipped"].tolist())
    read = job.dataset.reader(job.split, job.memory)
    whole: list[bool] = []
    with closing(job.executor.map(read.is_whole, range(job.dataset.n_chunks))) as found:
        for is_whole in found:
            whole.append(is_whole)
            job.progress("check chunks", len(whole), job.dataset.n_chunks, 0)
    damaged = tuple(key for key, is_whole in enumerate(whole) if not is_whole)
    write_packed(record, {"skipped": np.array(damaged, np.int64)}, {})
    return damaged


def skipped_chunks(dataset: BinaryDataset, skipped: Sequence[int]) -> list[dict[str, int]]:
    """Say which chunks were left out, for the manifest; rows are counted from 0."""
    tables = [(key, *map(int, dataset.chunks[key, :2])) for key in skipped]
    return [{"chunk": key, "first_row": first, "n_rows": n_rows} for key, first, n_rows in tables]


def damage_warnings(dataset: BinaryDataset, skipped: Sequence[int]) -> list[str]:
    """Say the same to a person; nothing where nothing was left out."""
    if not skipped:
        return []
    named = ", ".join(
        f"{part['chunk']} (rows {part['first_row'] + 1} to {part['first_row'] + part['n_rows']})"
        for part in skipped_chunks(dataset, skipped[:_NAMED])
    )
    more = f" and {len(skipped) - _NAMED} more" if len(skipped) > _NAMED else ""
    n_rows = int(dataset.chunks[list(skipped), 1].sum())
    return [
        f"{len(skipped)} of {dataset.n_chunks} chunks, {n_rows:,} rows, are damaged and left out: "
        f"{named}{more}"
    ]
