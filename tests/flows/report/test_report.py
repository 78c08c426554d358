"""The report: what it holds, what it refuses, and that a fit survives without it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from html.parser import HTMLParser
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

from flows.data.datasets import load_fitted_model
from flows.report.figures.images import find_image_layout
from flows.report.figures.latent import choose_name_places, find_even_odds_lines
from flows.report.figures.marks import LineMarks
from flows.report.figures.parameters import correlate_features_with_codes, plot_parameters
from flows.report.figures.row_plots import MAX_COLOURED_LABELS, ColourLabels, group_rows_by_label
from flows.report.figures.rows import CodedRows, read_dataset_sample
from flows.report.figures.text import format_number, shorten_texts
from flows.report.inputs import REPORT_FILE
from flows.report.page import build_report_from_artifact, write_report
from flows.report.pictures import render_picture
from pipeline.data.blocks import pack_block
from pipeline.models.capabilities import CanSample, HasHiddenCauses
from pipeline.models.registry import find_models
from pipeline.random import RowRandom
from storage import load_artifact
from storage.dataset.dataset import open_dataset
from tests.flows.hostile import HOSTILE
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.fits import build_model, mark_models, write_fit
from tests.support.outside import load_manifest, write_sealed

N_ROWS, N_FEATURES = 900, 9


def png_pixels(source: str) -> np.ndarray:
    """Red, green, blue and opacity of a picture within a page."""
    return np.asarray(Picture.open(BytesIO(base64.b64decode(source.split(",", 1)[1]))))


class Page(HTMLParser):
    """The tags of a page, and its text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X, _ = draw_probit_rows(N_ROWS, N_FEATURES, 2, seed=3)
    segments = np.array(["a", "b", "c"])[np.arange(N_ROWS) * 3 // N_ROWS]
    group = np.where(X.sum(axis=1) > N_FEATURES / 2, "high", "low")
    path = tmp_path_factory.mktemp("report") / "probit.zarr"
    write_arrays(path, X, segments=segments, words_per_chunk=8, columns={"group": group})
    return path


@pytest.fixture(scope="module")
def fitted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact of clipped PCA, made without a flow; leave it as it is."""
    model = build_model("clipped-pca", "2", [])
    return write_fit(tmp_path_factory.mktemp("fitted") / "artifact", model, open_dataset(data))


def test_bootstrap_intervals_are_drawn_beside_the_weights(data, tmp_path):
    model = build_model("blica", "1", ["bootstrap=20", "regularization=20"])
    path = write_fit(tmp_path / "blica", model, open_dataset(data))
    artifact = load_artifact(path)
    (figure,) = [f for f in plot_parameters(artifact, None) if f.title == "Mixing: 95 % intervals"]
    lines, points = figure.plot.marks[-2:]
    low, high = artifact["mixing_interval"][:, :, 0]
    ends = np.array(lines.points)[:, :, 0]
    np.testing.assert_array_equal(ends, np.column_stack([low, high]))
    np.testing.assert_array_equal(points.x, artifact["mixing"][:, 0])
    n_sure = int(((low > 0) | (high < 0)).sum())
    n_known = int((~np.isnan(low)).sum())  # features of pairs with an empty cell have none
    assert figure.note == f"{n_sure} of {n_known} intervals exclude 0."
    assert render_picture(figure).startswith(b"\x89PNG")
    plain = build_model("blica", "1", ["regularization=20"])
    other = load_artifact(write_fit(tmp_path / "plain", plain, open_dataset(data)))
    assert not any("intervals" in figure.title for figure in plot_parameters(other, None))


def test_standard_errors_are_drawn_as_intervals(data, tmp_path):
    model = build_model("binary-ica-likelihood", "1", [])
    artifact = load_artifact(write_fit(tmp_path / "likelihood", model, open_dataset(data)))
    titles = {figure.title: figure for figure in plot_parameters(artifact, None)}
    assert "Mixing error" not in titles
    lines, _ = titles["Mixing: 95 % intervals"].plot.marks[-2:]
    reach = 1.96 * artifact["mixing_error"][:, 0]
    low, high = np.array(lines.points)[:, :, 0].T
    np.testing.assert_allclose(high - low, 2 * reach)
    np.testing.assert_allclose((high + low) / 2, artifact["mixing"][:, 0])


def test_a_fit_leaves_a_report_in_its_artifact(plain_cli, data):
    done = plain_cli("fit", "--dataset", data, "--components", 2, "--executor", "serial")
    assert done.code == 0, done.err
    report = Path(load_artifact("runs/probit").path, REPORT_FILE)
    assert f"report: {report}" in done.out
    assert "clipped-pca of probit" in Page(report).text


def test_a_report_that_cannot_be_drawn_loses_no_fit(cli, data, monkeypatch, warn_after_fits):
    def broken(*_):
        raise ValueError("a\nlong\nstory")

    monkeypatch.setattr("flows.report.page.read_dataset_sample", broken)
    done = cli("fit", "--dataset", data, "--components", 2, "--report", "--json")
    assert (done.code, done.json["report"]) == (0, None)
    (line,) = [line for line in done.err.splitlines() if "report" in line]
    assert "The report could not be drawn (ValueError: a long story)" in line
    assert load_artifact(done.json["artifact"])["loadings"].shape == (N_FEATURES, 2)


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [["--executor", "serial"], ["--workers", 1]], ids=str)
def test_peak_memory_is_recorded_with_or_without_a_report(cli, data, options):
    done = cli("fit", "--dataset", data, "--components", 2, *options, "--json", "--no-report")
    assert done.code == 0, done.err
    manifest = load_artifact(done.json["artifact"]).manifest
    usage = manifest["usage_by_stage"]
    assert list(usage) == list(done.json["stages"])[:-1]  # all but that which wrote it
    assert all(used["cpu_seconds"] >= 0 for used in usage.values())
    own = [used["peak_memory"] for used in usage.values()]
    # Linux counts resident pages to within some of every processor and thread.
    assert all(later > earlier - (1 << 20) for earlier, later in pairwise(own))
    assert min(own) > 50e6
    assert done.json["report"] is None
    assert not Path(done.json["artifact"], REPORT_FILE).exists()
    if "--workers" not in options:
        assert {used["peak_memory_of_largest_worker"] for used in usage.values()} == {None}
    elif Path("/proc/self/status").exists():
        workers = [used["peak_memory_of_largest_worker"] for used in usage.values()]
        # A worker has neither Prefect nor pytest in it.
        assert all(50e6 < worker < process for worker, process in zip(workers, own, strict=True))


@pytest.mark.parametrize(
    "model",
    mark_models(
        sorted(find_models()),
        "autoencoder",
        "bernoulli-mixture blica kernel-pca latent-trait noisy-or stack",
    ),
)
def test_what_is_drawn_follows_from_the_arrays(data, tmp_path, model):
    built = build_model(model, "2", [])
    artifact = load_artifact(write_fit(tmp_path / "artifact", built, open_dataset(data)))
    write_report(build_report_from_artifact(artifact.path), tmp_path / REPORT_FILE)
    text = Page(tmp_path / REPORT_FILE).text
    drawn = [name for name in artifact if set(artifact.dims(name)) == {"feature", "component"}]
    words = built.vocabulary
    titles = [words.format_array(name).capitalize() for name in drawn]
    if isinstance(built, HasHiddenCauses):
        titles.append("Features that units of layer 1 turn on")
    elif "weights_0" in artifact:
        titles.append("Weights of the first layer")
    titles += [] if titles else [f"Correlation of {words.features} with {words.components}"]
    assert any(title in text for title in titles)
    by_segment = [n for n in artifact if set(artifact.dims(n)) == {"segment", "component"}]
    n_drawn = sum(bool(np.nan_to_num(artifact[name]).any()) for name in by_segment)
    assert text.count(" by segment") >= n_drawn
    assert ("Convergence" in text) == (len(artifact.manifest["history"]) > 1)
    assert ("Calibration of pairs" in text) == isinstance(built, CanSample)
    figures = f"{words.rows.capitalize()} in latent space", f"Share of {words.components}"
    assert any(figure in text for figure in figures)


def test_text_that_no_file_can_hold_is_drawn_with_a_stand_in(data, tmp_path):
    artifact = write_fit(
        tmp_path / "artifact", build_model("clipped-pca", "2", []), open_dataset(data)
    )
    manifest = load_manifest(artifact)
    write_sealed(
        artifact, {**manifest, "versions": {**manifest["versions"], "numpy": "half\ud800"}}
    )
    write_report(build_report_from_artifact(artifact), tmp_path / REPORT_FILE)
    assert "numpy half?" in Page(tmp_path / REPORT_FILE).text


def test_parallel_analysis_is_drawn(data, tmp_path):
    built = build_model("clipped-pca", "auto", [])
    artifact = write_fit(tmp_path / "artifact", built, open_dataset(data))
    write_report(build_report_from_artifact(artifact), tmp_path / REPORT_FILE)
    page = Page(tmp_path / REPORT_FILE)
    assert "95 % of independent features (parallel analysis)" in page.text
    assert (
        "2 components, left of the dotted line; their eigenvalues exceed the dashed line."
        in page.text
    )


def test_both_lines_of_a_long_spectrum_end_at_the_same_rank(tmp_path):
    X, _ = draw_probit_rows(150, 80, 2, seed=0)
    dataset = write_arrays(tmp_path / "d.zarr", X)
    artifact = load_artifact(
        write_fit(tmp_path / "a", build_model("clipped-pca", "auto", []), dataset)
    )
    (figure,) = [f for f in plot_parameters(artifact, None) if f.title == "Spectrum"]
    lines = [mark.points[0] for mark in figure.plot.marks if isinstance(mark, LineMarks)]
    assert [line[-1, 0] for line in lines] == [64, 64]
    assert figure.plot.y.low < min(line[:, 1].min() for line in lines)


def test_warnings_are_shown_whole(data, tmp_path):
    built = build_model("clipped-pca", "2", ["correlation=arcsine"])
    artifact = load_artifact(write_fit(tmp_path / "artifact", built, open_dataset(data)))
    warnings = artifact.manifest["warnings"]
    assert warnings
    write_report(build_report_from_artifact(artifact.path), tmp_path / REPORT_FILE)
    assert all(
        " ".join(warning.split()) in Page(tmp_path / REPORT_FILE).text for warning in warnings
    )


def test_nothing_in_a_page_comes_from_elsewhere(fitted, tmp_path):
    write_report(build_report_from_artifact(fitted), tmp_path / REPORT_FILE)
    page = Page(tmp_path / REPORT_FILE)
    links = [a.get(name) for _, a in page.tags for name in ("src", "href") if a.get(name)]
    assert all(link.startswith(("data:", "#")) for link in links)
    policy = next(a["content"] for _, a in page.tags if a.get("http-equiv"))
    assert "default-src 'none'" in policy
    scripts = re.findall(r"<script>(.*?)</script>", page.source, re.S)
    assert "unsafe" not in policy.partition("script-src")[2]
    assert all(_hash(script) in policy for script in scripts)


def _hash(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def test_names_are_no_markup(tmp_path):
    X, _ = draw_probit_rows(400, len(HOSTILE), 1, seed=5)
    columns = {"<b>x</b>": np.where(X[:, 0] == 1, *HOSTILE[:2])}
    dataset = write_arrays(tmp_path / "bad.zarr", X, names=HOSTILE, columns=columns)
    built = build_model("latent-trait", "1", [])
    artifact = write_fit(tmp_path / "artifact", built, dataset)
    write_report(build_report_from_artifact(artifact), tmp_path / REPORT_FILE)
    page = Page(tmp_path / REPORT_FILE)
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert not {"b", "iframe"} & {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, given in page.tags for name in given)


def test_rows_are_read_from_every_part(fitted, data):
    fit, dataset = load_fitted_model(fitted), open_dataset(data)
    assert dataset.n_chunks == 2
    seen = read_dataset_sample(fit, dataset)
    X, _ = draw_probit_rows(N_ROWS, N_FEATURES, 2, seed=3)
    first, second = seen.pairs.features.T
    np.testing.assert_allclose(seen.pairs.observed, (X.T @ (X / N_ROWS))[first, second])
    assert sorted(seen.coded_rows.rows) == list(range(N_ROWS))
    codes = fit.model.transform(fit.params, pack_block(X), RowRandom(0))["mean"]
    np.testing.assert_allclose(seen.coded_rows.codes, codes[seen.coded_rows.rows], atol=1e-8)
    group = np.where(X.sum(axis=1) > N_FEATURES / 2, "high", "low")
    assert seen.coded_rows.columns["group"].tolist() == group[seen.coded_rows.rows].tolist()


def test_the_last_row_that_is_shown_exists(tmp_path):
    """Of 2,050 rows, every 1.025th is shown; 2,000 times the rounded step is 2,050 again."""
    X, _ = draw_probit_rows(2050, 3, 1, seed=3)
    dataset = write_arrays(tmp_path / "d.zarr", X)
    artifact = write_fit(tmp_path / "artifact", build_model("clipped-pca", "1", []), dataset)
    rows = read_dataset_sample(load_fitted_model(artifact), dataset).coded_rows.rows
    assert len(rows) == len({*rows.tolist()}) == 2000


def test_lines_of_even_odds_lie_where_they_should():
    x = y = np.linspace(-3, 3, 61)
    weights, offsets = np.array([[1.5, -0.5], [0.2, 2.0], [0.1, 0.1]]), np.array([0.4, -1.0, 5.0])
    plane = np.stack(np.meshgrid(x, y), axis=-1)
    probabilities = np.moveaxis(1 / (1 + np.exp(-(plane @ weights.T + offsets))), 2, 0)
    lines = find_even_odds_lines(x, y, probabilities)
    assert sorted(line.feature for line in lines) == [0, 1]  # the third has none in view
    for line in lines:
        w = weights[line.feature]
        np.testing.assert_allclose(line.points @ w + offsets[line.feature], 0, atol=5e-3)
        np.testing.assert_allclose(line.direction, w / np.linalg.norm(w), atol=0.02)
    places = choose_name_places(lines)
    features = [line.feature for line in lines]
    assert ((places * weights[features]).sum(axis=1) + offsets[features] > 0).all()


def test_labels_are_told_apart_or_in_order():
    few = np.array(["b", "a", "b", "c"], object)
    kinds, ramp = group_rows_by_label(ColourLabels("x", few), 4)
    assert [kind.key.name for kind in kinds] == ["a", "b", "c"]
    assert [kind.rows.tolist() for kind in kinds] == [[1], [0, 2], [3]]
    assert ramp is None
    ten = np.arange(10).astype(str).astype(object)
    kinds, _ = group_rows_by_label(ColourLabels("digit", ten), 10)
    assert len({kind.key.colour for kind in kinds}) == 10
    many = np.array([f"n{k}" for k in range(40)] + ["n0"], object)
    kinds, _ = group_rows_by_label(ColourLabels("x", many), 41)
    assert kinds[0].key.name == f"{40 - MAX_COLOURED_LABELS + 1} others"
    assert sorted(np.concatenate([kind.rows for kind in kinds])) == list(range(41))
    assert len({kind.key[1:] for kind in kinds}) == len(kinds)
    kinds, ramp = group_rows_by_label(ColourLabels("x", many, list(dict.fromkeys(many))), 41)
    assert (ramp.low, ramp.high) == ("x n0", "n39")
    assert (kinds[0].name, kinds[-1].name) == ("n0 to n1", "n39")
    assert sorted(np.concatenate([kind.rows for kind in kinds])) == list(range(41))


def test_shares_of_components_have_the_names_of_many_segments(tmp_path):
    X = np.random.default_rng(0).random((280, 4)) < 0.5
    segments = [f"s{k % 14}" for k in range(280)]
    dataset = write_arrays(tmp_path / "data.zarr", X, segments=segments)
    model = build_model("bernoulli-mixture", "2", [])
    artifact = write_fit(tmp_path / "artifact", model, dataset)
    write_report(build_report_from_artifact(artifact), tmp_path / REPORT_FILE)
    text = Page(tmp_path / REPORT_FILE).text
    assert "Mean share of 2 classes among 280 rows, by segment" in text
    assert "all rows" not in text.split("Share of classes")[1].split("Mean share")[0]


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "0"),
        (12, "12"),
        (741.26, "741.3"),
        (-0.000123456, "−0.0001235"),
        (1234567.8, "1,235,000"),
        (0.5, "0.5"),
        (3e-7, "3.000e−07"),
        (np.nan, "–"),
        (-np.inf, "−∞"),
    ],
)
def test_numbers_have_sensible_digits(value, written):
    assert format_number(value) == written


def test_names_that_begin_alike_are_shortened_to_their_ends():
    names = ["question 1>=yes", "question 2>=yes", "another question", "milk"]
    assert shorten_texts(names, 9) == ["…n 1>=yes", "…n 2>=yes", "another …", "milk"]


def test_what_cannot_be_used_is_refused(cli, fitted, tmp_path):
    X, _ = draw_probit_rows(200, N_FEATURES, 2, seed=9)
    write_arrays(tmp_path / "named.zarr", X, names=[f"g{i}" for i in range(N_FEATURES)])
    Path("there.html").write_text("mine")
    refused = [
        (["--output", "there.html"], "Use --overwrite"),
        (["--output", "page.pdf"], "--output is 'page.pdf', but must end in .html"),
        (["--image-shape", "4x4"], "--image-shape is 4x4, which has 16 pixels"),
        (["--dataset", tmp_path / "named.zarr"], "Feature 1 is 'g0', but 'f0'"),
        (["--dataset", tmp_path / "none.zarr"], "there is no"),
        (["--label", "groop"], "--label is 'groop', but"),
    ]
    for options, message in refused:
        done = cli("report", "--artifact", fitted, *options)
        assert done.code == 2, options
        assert message in done.message
    assert Path("there.html").read_text() == "mine"
    assert not Path(REPORT_FILE).exists()


@pytest.mark.matrix
def test_every_figure_becomes_a_picture(cli, fitted):
    options = ["--artifact", fitted, "--pictures", "drawn"]
    done = cli("report", *options)
    assert done.code == 0, done.err
    loadings = ["loadings-95-intervals", "loadings"]
    latent = ["features-in-latent-space", *loadings, "rows-in-latent-space"]
    names = ["calibration-of-pairs", *latent, "spectrum"]
    paths = [Path("drawn", f"{name}.png") for name in names]
    captions = Path("drawn/captions.txt")
    assert sorted(Path("drawn").iterdir()) == sorted([*paths, captions])
    text = captions.read_text(encoding="utf-8")
    assert re.search(r"^spectrum\.png: Spectrum\. 2 components", text, re.MULTILINE)
    assert all(f"picture: {path}" in done.out for path in paths)
    whole = {path: path.read_bytes() for path in paths}
    assert all(png.startswith(b"\x89PNG") for png in whole.values())
    paths[0].write_bytes(b"mine")
    Path(REPORT_FILE).unlink()
    refused = cli("report", *options)
    assert refused.code == 2
    assert "drawn/spectrum.png already exists" in refused.message
    assert paths[0].read_bytes() == b"mine"
    assert not Path(REPORT_FILE).exists()
    assert cli("report", *options, "--overwrite").code == 0
    assert {path: path.read_bytes() for path in paths} == whole
    assert cli("report", *options, "--overwrite", "--picture-format", "pdf").code == 0
    pages = [path.with_suffix(".pdf") for path in paths]
    assert sorted(Path("drawn").iterdir()) == sorted([*paths, *pages, captions])
    assert all(path.read_bytes().startswith(b"%PDF") for path in pages)


def test_an_artifact_of_a_newer_format_is_refused(cli, fitted):
    path = Path(shutil.copytree(fitted, "newer"), "manifest.json")
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format_version": 99}))
    done = cli("report", "--artifact", path.parent)
    assert done.code == 2
    assert "Upgrade latentbits" in done.message


def test_a_page_is_replaced_whole_or_not_at_all(fitted, tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("old")
    write_report(build_report_from_artifact(fitted), page)
    whole = page.read_bytes()
    assert whole.rstrip().endswith(b"</html>")

    def broken(*_):
        raise OSError("disk is full")

    monkeypatch.setattr("os.fsync", broken)
    with pytest.raises(OSError, match="disk is full"):
        write_report(build_report_from_artifact(fitted), page)
    assert page.read_bytes() == whole
    assert [path.name for path in tmp_path.glob("page*")] == ["page.html"]


def test_rows_of_another_dataset_are_told_apart(cli, fitted, tmp_path):
    X, _ = draw_probit_rows(200, N_FEATURES, 2, seed=9)
    write_arrays(tmp_path / "other.zarr", X)
    done = cli("report", "--artifact", fitted, "--dataset", tmp_path / "other.zarr")
    assert done.code == 0, done.err
    assert "which is not the dataset of the fit" in done.out
    assert "which is not the dataset of the fit" in Page(Path(REPORT_FILE)).text
    assert "36 pairs of features in 200 rows" in Page(Path(REPORT_FILE)).text


def test_without_its_dataset_a_report_has_no_rows(cli, tmp_path):
    X, _ = draw_probit_rows(200, N_FEATURES, 2, seed=9)
    dataset = write_arrays(tmp_path / "moved.zarr", X)
    artifact = write_fit(tmp_path / "artifact", build_model("clipped-pca", "2", []), dataset)
    dataset.path.rename(tmp_path / "elsewhere.zarr")
    done = cli("report", "--artifact", artifact)
    assert done.code == 0, done.err
    assert "Figures of rows are omitted" in done.out
    text = Page(Path(REPORT_FILE)).text
    assert "Loadings" in text
    assert "Calibration of pairs" not in text


def test_pixels_become_images(cli, fitted):
    done = cli("report", "--artifact", fitted, "--image-shape", "3x3", "--label", "group")
    assert done.code == 0, done.err
    page = Page(Path(REPORT_FILE))
    images = [given for tag, given in page.tags if tag == "img"]
    assert [image["alt"][:21] for image in images] == [
        "Loadings, component 1",
        "Loadings, component 2",
    ]
    assert "Images over latent space" in page.text
    assert "by group" in page.text


@pytest.mark.parametrize(
    ("name", "settings", "title", "array"),
    [
        ("rbm", ["max_iter=2"], "Weights", "weights"),
        (
            "stack",
            ["layers=5,2", "max_iter=2", "pretrain=2"],
            "Weights of the first layer",
            "weights_0",
        ),
    ],
)
def test_each_hidden_units_weights_become_an_image(data, tmp_path, name, settings, title, array):
    n_units = "70" if name == "rbm" else "2"
    made = write_fit(tmp_path / name, build_model(name, n_units, settings), open_dataset(data))
    artifact = load_artifact(made)
    layout = find_image_layout([f"f{i}" for i in range(N_FEATURES)], "3x3")
    (figure,) = [f for f in plot_parameters(artifact, layout) if f.images]
    assert figure.title == title
    weights = artifact[array]
    assert len(figure.images) == min(weights.shape[1], 64)
    assert ("64 of 70 components are shown." in figure.note) == (name == "rbm")
    for image, column in zip(figure.images, weights.T, strict=False):
        pixels = png_pixels(image.uri)[18::37, 18::37].astype(float)
        opacity = np.abs(column / np.abs(column).max()).reshape(3, 3)
        np.testing.assert_allclose(pixels[..., 3] / 255, opacity, atol=0.003)
        is_red = pixels[..., 0] > pixels[..., 2]
        np.testing.assert_array_equal(is_red, column.reshape(3, 3) > 0)


def test_correlations_are_of_what_was_observed():
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((300, 2))
    X = (codes @ rng.standard_normal((2, 5)) + rng.standard_normal((300, 5)) > 0).astype(float)
    X[rng.random(X.shape) < 0.2] = np.nan
    X[:, 3], X[:, 4] = 1.0, np.nan
    coded = CodedRows(codes, X.astype(np.float32), np.arange(300), np.zeros(300), {}, codes)
    found = correlate_features_with_codes(coded)
    for i in range(3):
        seen = np.isfinite(X[:, i])
        expected = [np.corrcoef(X[seen, i], codes[seen, k])[0, 1] for k in range(2)]
        np.testing.assert_allclose(found[i], expected, atol=1e-12)
    assert not found[3:].any()
