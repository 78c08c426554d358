"""Kernel PCA from the command line: the same bytes on worker processes, codes, refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import pipeline.models.kernel_pca as module
from storage import load_artifact, open_codes
from tests.storage.conftest import files_of
from tests.support.data import write_arrays

N_ROWS = 900
KERNEL = ("--model", "kernel-pca", "--components", 3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`d.zarr` in several chunks with three values missing in each row, `same.zarr` of one row."""
    folder = tmp_path_factory.mktemp("kernel")
    rng = np.random.default_rng(0)
    y = rng.standard_normal((N_ROWS, 2)) @ rng.standard_normal((2, 30))
    X = (y + rng.standard_normal(y.shape) > 0).astype(np.uint8)
    mask = (rng.random(X.shape).argsort(axis=1) >= 3).astype(np.uint8)
    write_arrays(folder / "d.zarr", X & mask, mask, words_per_chunk=4)
    write_arrays(folder / "same.zarr", np.tile(X[:1], (100, 1)))
    return folder


@pytest.mark.matrix
@pytest.mark.parametrize("landmarks", ["auto", pytest.param("50", marks=pytest.mark.matrix)])
def test_worker_processes_give_the_same_bytes(cli, folder, landmarks):
    fit = ("fit", "--dataset", folder / "d.zarr", *KERNEL, "--set", f"landmarks={landmarks}")
    found = []
    for where in (("--executor", "serial"), ("--workers", 2)):
        done = cli(*fit, *where, "--output", f"runs-{len(found)}", "--json")
        assert done.code == 0, done.err
        found.append(load_artifact(done.json["artifact"]))
    for name in found[0]:
        assert found[0][name].tobytes() == found[1][name].tobytes(), name
    code = ("--artifact", found[0].path, "--output", "z.zarr", "--dtype", "float64")
    done = cli("transform", "--dataset", folder / "d.zarr", *code)
    assert done.code == 0, done.err
    codes = open_codes("z.zarr")["mean"]
    np.testing.assert_allclose(np.square(codes).sum(axis=0), found[0]["eigenvalues"][:3], rtol=1e-6)
    assert load_artifact(found[0].path).manifest["diagnostics"]["width"] > 0


@pytest.mark.parametrize(
    ("data", "more", "told"),
    [
        ("same", (), "No two rows differ in features observed in both"),
        ("d", (), "distinct rows, but an exact fit takes at most 100; this one would take some"),
        ("d", ("--set", "landmarks=1"), "landmarks must be at least 2 and at most 5,000, but is 1"),
        ("d", ("--set", "width=-1"), "width must be above 0, but is -1.0"),
        ("d", ("--set", "landmarks=3"), "--components is 3, but there are only 3 landmarks"),
    ],
)
def test_what_cannot_be_fitted_is_told_in_one_line(cli, folder, monkeypatch, data, more, told):
    monkeypatch.setattr(module, "MAX_ROWS", 100)
    done = cli("fit", "--dataset", folder / f"{data}.zarr", *KERNEL, *more, "--output", "runs")
    assert done.code == 2
    assert told in done.err
    assert "Traceback" not in done.err
    assert not files_of(Path("runs"))
