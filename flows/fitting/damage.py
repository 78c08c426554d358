"""Chunks that cannot be read any more, and are left out of a fit that is asked to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from flows.fitting.job import FitJob
from storage.artifacts.artifacts import load_packed, write_packed
from storage.dataset.dataset import BinaryDataset
from storage.stores.locations import MANIFEST_NAME

_MAX_NAMED = 8


def find_damaged_chunks(job: FitJob) -> tuple[int, ...]:
    """Read all chunks once and give the keys of the damaged ones.

    They are recorded: a run that goes on leaves out the same, whatever was mended since.

    Raises
    ------
    DataError
        If a chunk cannot be read for another reason, such as a store that does not answer.
    """
    record = job.run_folder.work_folder / "skipped"
    if job.options.resume and (record / MANIFEST_NAME).exists():
        return tuple(load_packed(record).arrays["skipped"].tolist())
    read = job.dataset.make_reader(job.split, job.row_memory)
    whole: list[bool] = []
    with closing(job.executor.map(read.is_readable, range(job.dataset.n_chunks))) as found:
        for is_whole in found:
            whole.append(is_whole)
            job.progress("check chunks", len(whole), job.dataset.n_chunks, 0)
    damaged = tuple(key for key, is_whole in enumerate(whole) if not is_whole)
    write_packed(record, {"skipped": np.array(damaged, np.int64)}, {})
    return damaged


def describe_skipped_chunks(dataset: BinaryDataset, skipped: Sequence[int]) -> list[dict[str, int]]:
    """Say which chunks were left out, for the manifest; rows are counted from 0."""
    tables = [(key, *map(int, dataset.chunks[key, :2])) for key in skipped]
    return [{"chunk": key, "first_row": first, "n_rows": n_rows} for key, first, n_rows in tables]


def warn_about_skipped_chunks(dataset: BinaryDataset, skipped: Sequence[int]) -> list[str]:
    """Say the same to a person; nothing where nothing was left out."""
    if not skipped:
        return []
    named = ", ".join(
        f"{part['chunk']} (rows {part['first_row'] + 1} to {part['first_row'] + part['n_rows']})"
        for part in describe_skipped_chunks(dataset, skipped[:_MAX_NAMED])
    )
    more = f" and {len(skipped) - _MAX_NAMED} more" if len(skipped) > _MAX_NAMED else ""
    n_rows = int(dataset.chunks[list(skipped), 1].sum())
    return [
        f"{len(skipped)} of {dataset.n_chunks} chunks, {n_rows:,} rows, are damaged and left out: "
        f"{named}{more}"
    ]
