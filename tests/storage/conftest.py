"""Small datasets: draw them, write them, and list their files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from storage.dataset.dataset import BinaryDataset, open_dataset
from storage.dataset.writer import append_dataset, create_dataset
from tests.support.data import ArrayBatch

Array = NDArray[Any]


def write_dataset(
    path: Path,
    X: NDArray[np.uint8],
    observed: NDArray[np.uint8] | None = None,
    segments: Array | None = None,
    columns: Mapping[str, Array] | None = None,
    *,
    words_per_chunk: int = 1,
    cuts: Sequence[int] = (),
    append: bool = False,
    overwrite: bool = False,
) -> BinaryDataset:
    """Write rows, in batches that end at `cuts`, as a new dataset or as an append."""
    names, columns = feature_names(X.shape[1]), columns or {}
    if append:
        opened = append_dataset(path, names)
    else:
        options = {"words_per_chunk": words_per_chunk, "overwrite": overwrite}
        opened = create_dataset(path, names, columns=list(columns), **options)
    with opened as writer:
        for part in (slice(*edges) for edges in pairwise([0, *cuts, len(X)])):
            batch = ArrayBatch(
                X[part],
                None if observed is None else observed[part],
                {name: values[part] for name, values in columns.items()},
            )
            writer.add(batch, None if segments is None else segments[part])
    return open_dataset(path)


def random_bits(n_rows: int, n_features: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 2, (n_rows, n_features), np.uint8)


def feature_names(n_features: int) -> list[str]:
    return [f"f{i}" for i in range(n_features)]


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below a folder, by relative path."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


NAMES = np.array(["night", "a/b c", "çalış", "1", "x" * 40])


@dataclass(frozen=True)
class Table:
    """Rows, and how to cut them: into batches, and into a dataset and an append."""

    X: np.ndarray
    observed: np.ndarray | None
    segments: np.ndarray | None
    columns: dict[str, Array]
    words_per_chunk: int
    first: int
    cuts: tuple[int, ...]

    @property
    def mask(self) -> np.ndarray:
        return np.ones_like(self.X) if self.observed is None else self.observed

    @property
    def labels(self) -> np.ndarray:
        return np.full(len(self.X), "all") if self.segments is None else self.segments

    def write(self, path: Path, cuts: tuple[int, ...] = ()) -> BinaryDataset:
        """Write the rows up to `first`, then append the others."""
        head, tail = slice(self.first), slice(self.first, None)
        early = [cut for cut in cuts if cut <= self.first]
        dataset = write_dataset(
            path, *self._rows(head), words_per_chunk=self.words_per_chunk, cuts=early
        )
        if self.first == len(self.X):
            return dataset
        late = [cut - self.first for cut in cuts if cut > self.first]
        return write_dataset(path, *self._rows(tail), cuts=late, append=True)

    def _rows(self, part: slice) -> tuple[Any, ...]:
        optional = [None if a is None else a[part] for a in (self.observed, self.segments)]
        return self.X[part], *optional, {name: a[part] for name, a in self.columns.items()}


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Sizes and cuts are drawn, values come from a drawn seed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    words_per_chunk, n_segments = draw(st.integers(1, 8)), draw(st.integers(0, 4))
    n_rows, n_features = draw(st.integers(2, 600)), draw(st.integers(2, 20))
    first = draw(st.just(n_rows) | st.integers(2, n_rows))
    cuts = tuple(sorted(draw(st.lists(st.integers(0, n_rows), max_size=6))))
    X = (rng.random((n_rows, n_features)) < draw(st.sampled_from([0, 0.1, 0.5, 1]))).astype(
        np.uint8
    )
    observed = None
    if draw(st.booleans()):
        observed = (rng.random(X.shape) < 0.8).astype(np.uint8)
        observed[draw(st.integers(0, n_rows)) :] = 1
        X = X & observed
    segments = None
    if n_segments:
        # More segments than words make a chunk a run: keep the runs few.
        shortest = 1 if n_segments <= words_per_chunk else 1 + n_rows // 12
        run = draw(st.integers(shortest, max(shortest, 80)))
        segments = NAMES[rng.integers(n_segments, size=-(-n_rows // run))].repeat(run)[:n_rows]
        segments[:first] = without_single_rows(segments[:first])
        segments = without_single_rows(segments)
    columns = {
        "age": rng.integers(-(2**63), 2**63 - 1, n_rows),
        "weight": np.where(rng.random(n_rows) < 0.1, np.nan, rng.standard_normal(n_rows)),
        "ward/ü 1": NAMES[rng.integers(len(NAMES), size=n_rows)],
    }
    return Table(X, observed, segments, columns, words_per_chunk, first, cuts)


def without_single_rows(segments: np.ndarray) -> np.ndarray:
    """Merge a segment of a single row, which is not allowed, into the largest one."""
    names, counts = np.unique(segments, return_counts=True)
    single = np.isin(segments, names[counts == 1])
    return np.where(single, names[counts.argmax()], segments)


@contextmanager
def new_path() -> Iterator[Path]:
    """Yield a path for one example, in memory if possible: many small files are slow on disk."""
    shared_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        dir=shared_memory if shared_memory.is_dir() else None
    ) as folder:
        yield Path(folder) / "data.zarr"
