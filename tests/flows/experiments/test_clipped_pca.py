"""Experiments: the numbers in their tables, the pictures, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from flows.data import datasets
from flows.experiments.base import LinearPCA, draw_rows, fit_linear_pca
from flows.experiments.clipped_pca import compare_on_images
from flows.experiments.drawing import ImageRow, save_images
from flows.report.figures.images import find_image_layout
from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.statistics.counts import PairCounts
from storage.artifacts.artifacts import NamedArray, write_artifact
from tests.flows.experiments.tables import check_picture, run_experiment, table
from tests.support.data import draw_probit_rows, write_arrays

HERE = {"name": "serial", "workers": None, "cluster": None}
Call = Callable[..., Any]


@pytest.fixture(autouse=True, scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep examples in a folder of their own."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(datasets, "find_examples_folder", lambda: folder)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of one quick run of the whole command."""
    output = tmp_path_factory.mktemp("experiment") / "output"
    run_experiment("clipped-pca", output)
    return output


@pytest.fixture
def refused(call: Call, tmp_path: Path) -> Callable[..., str]:
    """Call what must be refused in one line, the last, and leave no file; return that line."""

    def called(*arguments: object) -> str:
        before = set(tmp_path.rglob("*"))
        line = call(*arguments).check_refused()
        assert set(tmp_path.rglob("*")) == before
        return line

    return called


# The ring


@pytest.mark.matrix
def test_the_ring_has_two_hidden_eigenvalues_and_a_continuum_of_spins(finished: Path) -> None:
    rows = table(finished / "ring_spectrum")
    hidden, spins = (np.array([row[name] for row in rows]) for name in ("clipped_pca", "spins"))
    assert len(rows) == 64
    np.testing.assert_allclose(hidden[:2], 32, rtol=0.03)
    assert abs(hidden[2:]).max() < 0.01
    assert hidden.sum() == pytest.approx(64)
    # Two components of the spins leave a fifth of the variance: 1 − 8/π².
    assert spins[2:].sum() / 64 == pytest.approx(1 - 8 / np.pi**2, abs=0.01)
    assert (spins[:30] > 0.05).all()


@pytest.mark.matrix
def test_the_limits_of_the_ring_are_those_of_a_triangle_wave(finished: Path) -> None:
    rows = table(finished / "ring_spectrum")
    odd = np.arange(1, 64, 2)
    closed_form = np.sort(4 / (64 * np.sin(np.pi * odd / 64) ** 2))[::-1]
    limit = [row["spins_limit"] for row in rows]
    np.testing.assert_allclose(limit, [*closed_form, *[0] * 32], atol=1e-12)
    np.testing.assert_allclose([row["spins"] for row in rows], limit, atol=0.4)
    np.testing.assert_allclose(
        [row["clipped_pca_limit"] for row in rows], [32, 32] + [0] * 62, atol=1e-12
    )


@pytest.mark.matrix
def test_clipped_pca_draws_rings_better_and_sooner_than_networks(finished: Path) -> None:
    clipped, ridge, free = table(finished / "ring_networks")
    assert clipped["model"] == "clipped PCA"
    assert clipped["correlation_error"] < 0.03 < ridge["correlation_error"] < 0.3
    assert 0.9 < clipped["arcs"] < free["arcs"]


# Images


@pytest.mark.matrix
def test_errors_fall_with_the_number_of_components(finished: Path) -> None:
    rows = table(finished / "images_errors")
    assert [(row["components"], row["model"]) for row in rows] == [
        (0, "margins alone"),
        *[(p, name) for p in (5, 20) for name in ("linear PCA", "clipped PCA")],
    ]
    for measure in ("wrong_bits", "nll_per_bit"):
        margins, linear_5, clipped_5, linear_20, clipped_20 = (row[measure] for row in rows)
        assert margins > linear_5 > linear_20 > 0
        assert margins > clipped_5 > clipped_20 > 0
        assert clipped_20 < linear_20 / 2
    assert rows[2]["nll_per_bit"] < rows[1]["nll_per_bit"]


@pytest.mark.matrix
def test_spectrum_of_linear_pca_is_that_of_the_pixels(finished: Path) -> None:
    X = digits()
    expected = PCA().fit(X.astype(float))
    rows = table(finished / "images_spectrum")
    np.testing.assert_allclose(
        [row["linear_pca"] for row in rows],
        expected.explained_variance_ * (len(X) - 1) / len(X),
        atol=1e-12,
    )
    np.testing.assert_allclose(
        [row["linear_pca_share"] for row in rows], expected.explained_variance_ratio_, atol=1e-12
    )
    assert sum(row["clipped_pca_share"] for row in rows) == pytest.approx(1)
    assert all(row["clipped_pca_share"] > row["linear_pca_share"] for row in rows[:5])


@pytest.mark.matrix
def test_images_with_missing_values_and_a_constant_pixel(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(300, 16, 3, seed=1)
    X[:, 5] = 0
    observed = (np.random.default_rng(0).random(X.shape) > 0.1).astype(np.uint8)
    path = write_arrays(tmp_path / "d.zarr", X, observed).path
    found = compare_on_images(str(tmp_path), str(path), "4x4", True, 0, HERE)
    assert [row["components"] for row in found["errors"]] == [0, 5, 5, 16, 16]
    assert "constant" in found["warnings"][0]
    margins, *others = (row["nll_per_bit"] for row in found["errors"])
    assert max(others) < margins < np.log(2)


# The models beside and the rows chosen


def digits() -> np.ndarray:
    """The example's bits, by hand."""
    X = (load_digits().data >= 10).astype(np.uint8)
    ones = X.sum(axis=0)
    return X[:, (ones >= 180) & (ones <= 1617)]  # a tenth and nine tenths of 1,797 rows


def linear(X: np.ndarray) -> LinearPCA:
    return fit_linear_pca(PairCounts.from_block(pack_block(X), pooled=True), X.shape[1])


def test_linear_pca_reconstructs_as_any_other() -> None:
    X = digits()
    expected = PCA(7).fit(X.astype(float))
    projected = expected.inverse_transform(expected.transform(X.astype(float)))
    answers = linear(X).reconstruct(X, None, 7)
    np.testing.assert_array_equal(answers > 0.5, projected > 0.5)


def test_linear_pca_takes_the_mean_for_what_is_missing() -> None:
    X = digits()
    model, nothing = linear(X), np.zeros_like(X)
    answers = model.reconstruct(X, nothing, 7)
    np.testing.assert_array_equal(answers, np.broadcast_to(answers[0], X.shape))
    np.testing.assert_array_equal(answers[0] > 0.5, X.mean(axis=0) > 0.5)


def test_linear_pca_draws_with_its_own_probabilities() -> None:
    X = digits()
    model = linear(X)
    drawn = model.sample(10, 20_000, np.random.default_rng(0))
    # Without a component the probabilities are those of a Gaussian of each bit's variance.
    expected = model.reconstruct(X[:1], np.zeros_like(X[:1]), 0)[0]
    np.testing.assert_allclose(drawn.mean(axis=0), expected, atol=0.02)


def test_rows_come_from_the_first_chunk(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(640, 12, 2, seed=3)
    X[:320, 0], X[320:, 0] = 1, 0
    names = np.array(["a", "b"])[np.arange(640) % 2]
    dataset = write_arrays(tmp_path / "d.zarr", X, segments=names, words_per_chunk=5)
    block = draw_rows(dataset, 100, np.random.default_rng(0))
    assert block.unpack_values().shape == (100, 12)
    assert block.unpack_mask() is None
    assert block.unpack_values()[:, 0].all()
    assert {bytes(row) for row in block.unpack_values()} <= {bytes(row) for row in X[:320]}
    assert draw_rows(dataset, 1000, np.random.default_rng(0)).n_samples == dataset.chunks[0, 1]


# Pictures


@pytest.mark.matrix
def test_every_picture_can_be_read(finished: Path) -> None:
    pictures = sorted(finished.glob("*.png"))
    assert [path.stem for path in pictures] == [
        *[f"images_{name}" for name in ("components", "errors", "reconstructions")],
        *["images_samples", "images_spectra", "ring"],
    ]
    for path in pictures:
        check_picture(path, 300)


def test_an_image_shows_each_value_in_its_place(tmp_path: Path) -> None:
    images = np.array([[[1.0, 0.0], [0.0, np.nan]]])
    save_images(tmp_path / "p.png", rows=[ImageRow("", images)], title="", note="")
    pixels = imread(tmp_path / "p.png")[..., :3]
    blue, grey = (
        np.argwhere(abs(pixels * 255 - shade).max(axis=2) < 2)
        for shade in ((0, 114, 178), (217, 217, 217))
    )
    assert len(blue) > 100
    assert len(grey) > 100
    assert (np.median(blue, axis=0) < np.median(grey, axis=0)).all()


def test_the_same_figure_has_the_same_bytes(tmp_path: Path) -> None:
    images = np.random.default_rng(0).standard_normal((2, 3, 3))
    for name in ("a.svg", "b.svg"):
        rows = [ImageRow("row", images, ["1", "2"])]
        save_images(tmp_path / name, rows=rows, title="t", note="n", signed=True)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_features_are_placed_by_name() -> None:
    image = find_image_layout(["r1c0", "r0c2"], None).arrange_images([[5.0, 7.0]])
    np.testing.assert_array_equal(image, [[[np.nan, np.nan, 7], [5, np.nan, np.nan]]])
    assert find_image_layout(["r1c0", "r0c2"], "4x3").arrange_images([[5.0, 7.0]]).shape == (
        1,
        4,
        3,
    )


def test_other_features_are_placed_row_by_row() -> None:
    image = find_image_layout([f"f{i}" for i in range(6)], "2x3").arrange_images([range(6)])
    np.testing.assert_array_equal(image, [[[0, 1, 2], [3, 4, 5]]])


@pytest.mark.parametrize(
    ("names", "shape", "said"),
    [
        (("a", "b"), None, "The 2 features are not named r0c0, r0c1, …,"),
        (("a", "b"), "16", "is '16'. Write it as HEIGHTxWIDTH"),
        (("a", "b"), "0x2", "is '0x2'. Write it as HEIGHTxWIDTH"),
        (("a", "b"), "2x2", "is 2x2, which has 4 pixels, but there are 2 features"),
        (("r0c0", "r0c5"), "2x2", 'need at least image_shape="1x6"'),
    ],
)
def test_shapes_that_do_not_fit(names: tuple[str, ...], shape: str | None, said: str) -> None:
    with pytest.raises(FitError, match=said):
        find_image_layout(names, shape)


# Loadings of an artifact


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    loadings = np.random.default_rng(0).standard_normal((6, 3))
    arrays = {
        "loadings": NamedArray(("feature", "component"), loadings),
        "eigenvalues": NamedArray(("eigenvalue",), np.array([3.0, 2.0, 1.0])),
    }
    manifest = {
        "model": "clipped-pca",
        "hyperparameters": {},
        "dataset": {"path": "d.zarr", "digest": "0", "n_rows": 9, "n_chunks": 1},
        "feature_names": [f"f{i}" for i in range(6)],
    }
    return write_artifact(tmp_path / "artifact", arrays, manifest)


def test_loadings_are_drawn(call: Call, artifact: Path, tmp_path: Path) -> None:
    done = call("loadings", "--artifact", artifact, "--image-shape", "2x3", "--components", 2)
    assert (done.code, done.out) == (0, "2 loadings: loadings.png\n")
    assert imread(tmp_path / "loadings.png").shape[2] == 4
    svg = tmp_path / "l.svg"
    assert (
        call("loadings", "--artifact", artifact, "--image-shape", "2x3", "--output", svg).code == 0
    )
    comments = svg.read_text(encoding="utf-8")
    assert all(f"{k}: λ = {4 - k}" in comments for k in (1, 2, 3))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--image-shape", "3x3"),
            "--image-shape is 3x3, which has 9 pixels",
        ),
        ((), "Set --image-shape 2x3."),
        (("--image-shape", "2x3", "--output", "l.txt"), "must end in .png, .svg, .pdf"),
        (
            ("--image-shape", "2x3", "--components", "0"),
            "--components is 0, but must be at least 1",
        ),
        (("--image-shape", "2x3", "--colour", "red"), "--colour"),
    ],
)
def test_loadings_refuses(
    refused: Callable[..., str], artifact: Path, options: tuple[str, ...], said: str
) -> None:
    assert said in refused("loadings", "--artifact", artifact, *options)


def test_an_artifact_without_loadings(refused: Callable[..., str], tmp_path: Path) -> None:
    arrays = {"mixing": NamedArray(("feature", "component"), np.ones((2, 1)))}
    path = write_artifact(tmp_path / "other", arrays, {"feature_names": ["a", "b"]})
    assert "the model has no loadings" in refused("loadings", "--artifact", path)
    assert "there is no such artifact" in refused("loadings", "--artifact", tmp_path / "nothing")
