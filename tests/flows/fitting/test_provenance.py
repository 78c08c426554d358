"""The fingerprint names a fit by what decides its result."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.fitting.provenance import compute_fingerprint
from pipeline.evaluation.records import describe_provenance
from pipeline.models.clipped_pca import ClippedPCA
from storage import BinaryDataset
from tests.support.data import draw_probit_rows, write_arrays


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> BinaryDataset:
    return written(tmp_path_factory.mktemp("one"), seed=1)


def written(folder: Path, seed: int) -> BinaryDataset:
    return write_arrays(folder / "d.zarr", draw_probit_rows(200, 5, 1, seed)[0])


def name_of(dataset: BinaryDataset, model: ClippedPCA, split: str | None, seed: int) -> str:
    return compute_fingerprint(describe_provenance(model, dataset, split, seed))


def test_equal_data_elsewhere_is_the_same_fit(dataset, tmp_path):
    other = written(tmp_path, seed=1)
    assert name_of(dataset, ClippedPCA(), None, 0) == name_of(other, ClippedPCA(), None, 0)


def test_whatever_decides_the_result_makes_another_fit(dataset, tmp_path):
    fits = [
        (dataset, ClippedPCA(), None, 0),
        (written(tmp_path, seed=2), ClippedPCA(), None, 0),
        (dataset, ClippedPCA(3), None, 0),
        (dataset, ClippedPCA(correlation="arcsine"), None, 0),
        (dataset, ClippedPCA(), "train", 0),
        (dataset, ClippedPCA(), None, 1),
    ]
    assert len({name_of(*fit) for fit in fits}) == len(fits)
