"""The experiment on the latent-trait model: its tables, its pictures, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.datasets import load_digits

from flows.data import datasets
from flows.data.columns import ColumnRoles
from flows.data.ingest import ingest_sources
from flows.experiments import tipping as tipping
from flows.experiments.tipping import (
    ESTIMATORS,
    TippingFigures,
    TippingTrial,
    draw_synthetic_rows,
    open_images,
    run_tipping_trial,
)
from pipeline.errors import FitError
from tests.flows.experiments.tables import check_picture, run_experiment, table
from tests.support.data import draw_probit_rows, write_arrays

Call = Callable[..., Any]
DATA = ("5% flipped", "15% flipped", "digits 2")
FIGURES = ("synthetic", "expected", "codes", "posteriors")


@pytest.fixture(autouse=True, scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Make quick runs quicker still."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(datasets, "find_examples_folder", lambda: folder)
        patched.setattr(tipping, "_QUICK_COPIES", 20)
        patched.setattr(tipping, "_QUICK_SEEDS", 2)
        patched.setattr(tipping, "_QUICK_ROWS", 30)
        patched.setattr(tipping, "_TOL", 1e-4)
        patched.setattr(tipping, "_STEP", 0.2)
        patched.setitem(tipping._N_NODES, "quadrature", 11)
        patched.setitem(tipping._N_NODES, "sampling", 100)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of one quick run, and what it printed."""
    output = tmp_path_factory.mktemp("tipping") / "output"
    printed = run_experiment("tipping", output, "--seed", "3", "--json")
    (output.parent / "summary.json").write_text(printed, encoding="utf-8")
    return output


# Tables


@pytest.mark.matrix
def test_every_data_set_is_fitted_by_every_estimator_from_every_seed(finished: Path) -> None:
    rows = table(finished / "tipping")
    assert [(row["data"], row["estimator"], row["seed"]) for row in rows] == [
        (data, estimator, seed) for data in DATA for estimator in ESTIMATORS for seed in (3, 4)
    ]
    assert [(row["rows"], row["features"]) for row in rows[::6]] == [(60, 16), (60, 16), (30, 34)]
    images = open_images(None, None, None, 30)
    for seed in (3, 4):
        blocks = {data.name: data.block for data in (*draw_synthetic_rows(20, seed), images)}
        constant = {
            name: (np.ptp(b.unpack_values(), axis=0) == 0).sum() for name, b in blocks.items()
        }
        pinned = {row["data"]: row["pinned"] for row in rows if row["seed"] == seed}
        assert pinned == constant
    assert pinned["digits 2"] > 0


@pytest.mark.matrix
def test_medians_and_ratios_are_of_the_fits(finished: Path) -> None:
    rows, middle = table(finished / "tipping"), table(finished / "tipping_medians")
    assert [(row["data"], row["estimator"]) for row in middle] == [
        (data, estimator) for data in DATA for estimator in ESTIMATORS
    ]
    for k, row in enumerate(middle):
        pair = rows[2 * k : 2 * k + 2]
        assert row["error_grid"] == pytest.approx(np.mean([one["error_grid"] for one in pair]))
        bases = rows[6 * (k // 3) : 6 * (k // 3) + 2]
        ratios = [
            one["cpu_seconds"] / base["cpu_seconds"] for one, base in zip(pair, bases, strict=True)
        ]
        assert row["cpu_ratio"] == pytest.approx(np.mean(ratios))


@pytest.mark.matrix
def test_an_error_is_that_of_dense_arithmetic(finished: Path) -> None:
    """Of the fit that the table tells of, made again: on a coarse grid, by the plain formula."""
    block = open_images(None, None, None, 30).block
    tried = run_tipping_trial(TippingTrial(block, "variational", 3))
    (row,) = (
        row
        for row in table(finished / "tipping")
        if (row["data"], row["estimator"], row["seed"]) == ("digits 2", "variational", 3)
    )
    assert row["error_grid"] == tried.values["error_grid"]
    axis = np.arange(-6, 6.01, 0.15)
    points = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    prior = np.exp(-(points**2).sum(axis=1) / 2)
    eta = points @ tried.params.weights.T + tried.params.offsets
    X = block.unpack_values()
    log_p = X @ -np.logaddexp(0, -eta).T + (1 - X) @ -np.logaddexp(0, eta).T
    error = -logsumexp(log_p, b=prior / prior.sum(), axis=1).mean()
    assert row["error_grid"] == pytest.approx(error, abs=2e-3)


def test_the_default_images_are_the_twos() -> None:
    images = open_images(None, None, None, None)
    digits = load_digits()
    bits = digits.data >= 10
    kept = np.abs(bits.mean(axis=0) - 0.5) <= 0.4
    expected = (bits & kept)[digits.target == 2].reshape(177, 8, 8)[..., :7]
    drawn = images.layout.arrange_images(images.block.unpack_values())
    assert (images.name, drawn.shape) == ("digits 2", (177, 8, 7))
    np.testing.assert_array_equal(np.nan_to_num(drawn), expected)


def test_images_of_a_split_of_a_packed_archive(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(300, 16, 3, seed=1)
    labels = (np.arange(300) % 3).astype(np.int8)
    shape = np.array(X.shape)
    np.savez(tmp_path / "d.npz", X=np.packbits(X, axis=1), shape=shape, y=labels)
    ingest_sources([str(tmp_path / "d.npz")], tmp_path / "d.zarr", ColumnRoles(split_by="y"))
    images = open_images(str(tmp_path / "d.zarr"), "2", "4x4", None)
    assert images.name == "d 2"
    np.testing.assert_array_equal(images.block.unpack_values(), X[labels == 2])


def test_missing_values_and_several_chunks_and_segments(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(200, 12, 2, seed=1)
    observed = (np.random.default_rng(0).random(X.shape) > 0.1).astype(np.uint8)
    observed[:64] = 1  # a chunk without holes has no mask
    path = write_arrays(tmp_path / "d.zarr", X, observed, words_per_chunk=1).path
    block = open_images(str(path), None, "3x4", None).block
    np.testing.assert_array_equal(block.unpack_mask(), observed)
    np.testing.assert_array_equal(block.unpack_values(), X & observed)


def test_images_with_missing_values_can_be_drawn(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(90, 12, 2, seed=1)
    X[:, 3] = 1
    observed = (np.random.default_rng(0).random(X.shape) > 0.2).astype(np.uint8)
    path = write_arrays(tmp_path / "d.zarr", X, observed).path
    images = open_images(str(path), None, "3x4", None)
    tried = run_tipping_trial(TippingTrial(images.block, "variational", 0))
    assert tried.values["pinned"] == 1
    pictures = TippingFigures(tmp_path / "o", {("d", "variational"): tried.params})
    pictures.plot_image_codes(images)
    pictures.plot_posteriors([images])
    assert len(list((tmp_path / "o").iterdir())) == 4


def test_synthetic_data_share_their_prototypes() -> None:
    little, much = draw_synthetic_rows(200, 0)
    for data, flip in ((little, 0.05), (much, 0.15)):
        X = data.block.unpack_values().reshape(3, 200, 16)
        usual = (X.mean(axis=1) > 0.5).astype(int)
        assert np.abs(X - usual[:, None]).mean() == pytest.approx(flip, abs=0.01)
    np.testing.assert_array_equal(little.prototype, much.prototype)


# Pictures


@pytest.mark.parametrize("name", FIGURES)
def test_the_picture_can_be_read(finished: Path, name: str) -> None:
    check_picture(finished / f"tipping_{name}.png", 800)


def test_json_and_the_table_say_what_was_found(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = json.loads((finished.parent / "summary.json").read_text())
    assert summary["medians"] == table(finished / "tipping_medians")
    assert summary["files"] == sorted(map(str, finished.iterdir()))
    tipping.print_summary(summary)
    title, head, *lines = capsys.readouterr().out.splitlines()
    assert title.startswith("medians")
    assert head.split()[:6] == ["data", "estimator", "shared", "fresh", "quadrature", "grid"]
    assert lines[0].split()[:3] == ["5%", "flipped", "variational"]
    assert lines[0].split()[6] == f"{summary['medians'][0]['error_grid']:.3f}"
    assert lines[9:] == summary["files"]
    assert max(map(len, (title, head, *lines[:9]))) <= 80


# What is refused


def test_images_that_cannot_be_used(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(100, 12, 2, seed=1)
    observed = np.ones_like(X)
    observed[:, 5] = 0
    columns = {"split": np.array(["train"] * 100)}
    path = str(write_arrays(tmp_path / "d.zarr", X, observed, columns=columns).path)
    with pytest.raises(FitError, match="image_shape is 4x4, which has 16 pixels"):
        open_images(path, None, "4x4", None)
    with pytest.raises(ValueError, match="split: there is no split 'test'"):
        open_images(path, "test", "3x4", None)
    with pytest.raises(FitError, match="no observed value: 'f5'"):
        open_images(path, "train", "3x4", None)
