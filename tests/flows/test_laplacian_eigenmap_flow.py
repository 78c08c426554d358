"""The Laplacian eigenmap from the command line: the same wherever tasks run; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.models import laplacian_eigenmap
from storage import load_artifact, open_codes
from tests.support.data import draw_probit_rows, write_arrays

FIT = ("--model", "laplacian-eigenmap", "--no-report")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Rows in ten chunks with a few missing values."""
    X, _ = draw_probit_rows(1200, 12, 2, seed=4)
    observed = (np.random.default_rng(1).random(X.shape) < 0.95).astype(np.uint8)
    return write_arrays(tmp_path / "d.zarr", X * observed, observed, words_per_chunk=2).path


@pytest.mark.matrix
def test_workers_give_the_bytes_of_serial(cli: Any, dataset: Path, cluster: str) -> None:
    command = ("fit", "--dataset", dataset, *FIT, "--components", 3, "--set", "weights=heat")
    for output, where in (("serial", ("--executor", "serial")), ("two", ("--cluster", cluster))):
        done = cli(*command, "--output", output, *where, "--json")
        assert done.code == 0
        assert done.json["diagnostics"]["parts"] == 1
    one, two = (load_artifact(path) for path in ("serial", "two"))
    assert {*one} == {*two} == {"rows", "observed", "embedding", "eigenvalues", "width"}
    for name in one:
        assert one[name].tobytes() == two[name].tobytes(), name
    use = ("--dataset", dataset, "--artifact", "serial", "--output", "z.zarr")
    assert cli("transform", *use).code == 0
    assert open_codes("z.zarr")["mean"].shape == (1200, 3)


def refused(cli: Any, dataset: Path, *settings: object) -> str:
    message: str = cli("fit", "--dataset", dataset, *FIT, *settings).check_refused()
    assert not Path("runs").exists()
    return message


@pytest.mark.matrix
def test_rows_that_make_no_graph_are_refused(
    cli: Any, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike = write_arrays(Path("alike.zarr"), np.tile([0, 1, 1], (50, 1)).astype(np.uint8)).path
    assert "All 50 rows are the same" in refused(cli, alike)
    few = write_arrays(Path("few.zarr"), np.eye(8, dtype=np.uint8)).path
    assert "k is 10, but there are only 8 distinct rows" in refused(cli, few)
    X = np.random.default_rng(0).integers(0, 2, (200, 12), dtype=np.uint8)
    halves = np.repeat(np.kron(np.eye(2, dtype=np.uint8), np.ones(6, np.uint8)), 100, axis=0)
    apart = write_arrays(Path("apart.zarr"), X * halves, halves).path
    assert "parts without a common row" in refused(cli, apart)
    monkeypatch.setattr(laplacian_eigenmap, "MAX_ROWS", 500)
    assert "--set landmarks=20000" in refused(cli, dataset)
