"""Reports and tables of every model on features of every kind, with hostile names."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from flows.exporting.columns import read_parameter_columns
from flows.report.figures.marks import Plot
from flows.report.figures.parameters import CORRELATION_TITLE
from flows.report.page import Report, build_report_from_artifact, render_page
from flows.report.tables import make_parameter_table
from latentbits.fitted import build_report
from pipeline.data.features import select_with_levels
from pipeline.data.level_probabilities import name_levels
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.registry import find_models
from storage.dataset.dataset import open_dataset
from storage.dataset.writer import append_dataset
from tests.flows.hostile import HOSTILE
from tests.support.data import ArrayBatch, write_arrays

LEVELS = {
    "binary": ("no", "yes"),
    "ordinal": ("None", "<18", "a,b"),
    "longer": ("never", "sometimes", "often", "always"),
    "continuous": (),
}
KINDS: Mapping[str, tuple[str, ...]] = {
    "binary": ("binary",),
    "ordered": ("ordinal", "longer"),
    "mixed": ("ordinal", "longer", "binary"),
    "continuous": ("ordinal", "continuous", "binary"),
}
N_ROWS = 240
NAMES = ("age", *HOSTILE[1:4], "None", *HOSTILE[5:])
"""One is that of a per-row column as well."""
SHORT = {"max_iter": 4}


def write_dataset(path: Path, kinds: Sequence[str], n_rows: int = N_ROWS) -> Path:
    """Write rows of two factors, a tenth of the values missing."""
    rng = np.random.default_rng(4)
    levels = dict(zip(NAMES, (LEVELS[kind] for kind in cycle(kinds)), strict=False))
    is_continuous = np.array([not own for own in levels.values()])
    y = rng.normal(size=(n_rows, 2)) @ rng.normal(size=(2, len(NAMES)))
    y += rng.normal(size=y.shape)
    cuts = [np.linspace(-0.8, 0.8, len(own) + 1)[1:-1] for own in levels.values()]
    X = np.stack([np.searchsorted(*pair) for pair in zip(cuts, y.T, strict=True)], axis=1)
    seen = rng.random(y.shape) < 0.9
    numbers = np.where(seen, 3 + 20 * y, np.nan)[:, is_continuous].astype(np.float32)
    rows = np.arange(n_rows)
    columns = {
        "weight": rng.integers(1, 4, n_rows),
        "group": np.array(["None", "<b>x</b>", "a,b"])[rows % 3],
        "age": rng.normal(40, 10, n_rows),
        "sex": np.array(["m", "f"])[rng.integers(0, 2, n_rows)],
    }
    write_arrays(
        path,
        (X * seen).astype(np.uint8),
        seen.astype(np.uint8),
        [f"s{row % 3}" for row in rows],
        columns=columns,
        names=NAMES,
        feature_levels=levels,
        numbers=numbers if is_continuous.any() else None,
    )
    return path


@pytest.fixture(scope="module")
def datasets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset with features of each kind."""
    folder = tmp_path_factory.mktemp("data")
    return {name: write_dataset(folder / f"{name}.zarr", own) for name, own in KINDS.items()}


def list_feature_kinds(kinds: Sequence[str]) -> set[str]:
    return {"ordinal" if kind == "longer" else kind for kind in kinds}


def iter_options(model: type[Model]) -> Iterator[dict[str, Any]]:
    """Yield options of fits: none, and what the model can take besides; at most one a kind."""
    weight = {"weight": "weight"} if "frequency" in model.support.parts else {}
    yield {"components": 3}
    yield {"components": 1, **weight}
    if "groups" in model.support.parts:
        yield {"components": 2, "group": "group", **weight}
    if "covariates" in model.support.parts:
        yield {"components": 2, "covariates": ["age", "sex"], **weight}


def fit(data: Path, name: str, **options: Any) -> Any:
    fields = find_models()[name].__dataclass_fields__
    short = SHORT if fields["max_iter"].init else {}
    return lb.fit(str(data), name, executor="serial", **options, **short)


def check_report(report: Report) -> str:
    """Render a report, and check its numbers and names; return its text."""
    page = render_page(report).partition("<body>")[2].partition("<details>")[0]
    text = html.unescape(re.sub(r"<[^>]*>", " ", page))
    # Numbers that are none, a negative zero, and no name.
    assert not re.findall(r"\bnan\b|\binf\b|−0(?:\.0*)?(?![\d.])|\d_\d", text)
    fitted = report.fitted
    features = select_with_levels(fitted.dataset_features)
    names = {*fitted.feature_names, *fitted.plane_names, *name_levels(features)}
    for figure in report.figures:
        for mark in figure.plot.marks if isinstance(figure.plot, Plot) else ():
            facts = dict(getattr(mark, "facts", None) or ())
            assert {*facts.get(fitted.model.vocabulary.feature, ())} <= names
    table = make_parameter_table(fitted.artifact, report.correlations)
    if table is not None:
        order = list(range(len(fitted.feature_names)))
        if "communality" in fitted.artifact:  # by the factor with the largest loading
            sizes = np.abs(fitted.artifact["loadings"])
            order.sort(key=lambda i: (int(sizes[i].argmax()), -float(sizes[i].max())))
        assert [name for name, _ in table.rows] == [fitted.feature_names[i] for i in order]
    return text


@pytest.mark.matrix
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "ordered"])
@pytest.mark.parametrize("name", sorted(find_models()))
def test_the_report_of_every_model_is_drawn(
    datasets: Mapping[str, Path], name: str, kind: str
) -> None:
    """Kinds of features take the options of a model by turns."""
    model = find_models()[name]
    every = [*iter_options(model)]
    options = every[([*KINDS].index(kind) + sorted(find_models()).index(name)) % len(every)]
    if not list_feature_kinds(KINDS[kind]) <= {*model.support.features}:
        with pytest.raises(FitError, match="features, but"):
            fit(datasets[kind], name, **options)
        return
    fitted = fit(datasets[kind], name, **options)
    text = check_report(build_report(fitted._to_loaded_model()))
    assert f" {len(NAMES)} {fitted.model.vocabulary.features} " in text
    assert ("by level)" in text) == (model.support.splits_levels and kind != "binary")


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["hidden-tree", "latent-trait", "clipped-pca"])
def test_reports_after_an_append_are_drawn(cli: Any, tmp_path: Path, name: str) -> None:
    path = write_dataset(tmp_path / "data.zarr", KINDS["mixed"])
    command = ("fit", "--dataset", path, "--model", name, "--components", 2, "--report")
    assert cli(*command).code == 0
    dataset = open_dataset(path)
    with append_dataset(path, dataset.feature_names) as writer:
        X, rows = np.zeros((80, len(NAMES)), np.uint8), np.arange(80)
        X[rows, rows % len(NAMES)] = 1
        texts = {"group": np.array(["new"] * 80), "sex": np.array(["m"] * 80)}
        columns = {"weight": 1 + rows % 3, "age": rows + 0.5, **texts}
        writer.add(ArrayBatch(X, np.ones_like(X), columns), np.array(["s0"] * 80))
    warm = () if name == "clipped-pca" else ("--warm-start",)
    done = cli(*command, *warm)
    assert done.code == 0, done.err
    assert "Since the last fit" in check_report(build_report_from_artifact("runs/data"))


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
def test_reports_with_known_items_and_patterns_are_drawn(
    datasets: Mapping[str, Path], kind: str
) -> None:
    known = fit(datasets[kind], "latent-trait", components=1)
    pattern = pd.DataFrame({"feature": NAMES, "<b>": [1] * 5 + [0] * 3, "None": [0] * 4 + [1] * 4})
    for options in ({"items": known}, {"pattern": pattern}):
        fitted = fit(datasets[kind], "latent-trait", **options)
        check_report(build_report(fitted._to_loaded_model()))


def test_levels_are_pixels_of_images(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data.zarr", KINDS["mixed"])
    for name in ("clipped-pca", "tree-mixture"):
        fitted = fit(path, name, components=2)
        report = build_report(fitted._to_loaded_model(), image_shape="2x4")
        text = check_report(report)
        if name == "clipped-pca":
            assert "expected level, from the lowest (0) to the highest (1)," in text
        else:
            (figure,) = (f for f in report.figures if f.title == CORRELATION_TITLE)
            assert len(figure.images) == 2


def test_correlations_are_of_features_not_of_their_levels(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data.zarr", KINDS["ordered"])
    report = build_report(fit(path, "hidden-tree", components=3)._to_loaded_model())
    assert report.correlations is not None
    assert report.correlations.shape == (len(NAMES), 3)
    check_report(report)


def test_independent_features_have_no_tree_in_the_report(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data.zarr", KINDS["ordered"])
    text = check_report(build_report(fit(path, "hidden-tree", components=1)._to_loaded_model()))
    assert "Tree of features" not in text
    assert "strongest edge" not in text.lower()


def test_rows_are_not_coloured_by_their_weights(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data.zarr", KINDS["binary"])
    texts = [
        check_report(build_report(fit(path, "clipped-pca", components=2, **own)._to_loaded_model()))
        for own in ({}, {"weight": "weight"})
    ]
    assert [", by weight" in text for text in texts] == [True, False]
    assert ", by group" in texts[1]
    assert "Time and memory" not in texts[1]  # nothing is known about them


def test_parameters_of_continuous_features_by_group_belong_to_the_features(tmp_path: Path) -> None:
    path = write_dataset(tmp_path / "data.zarr", KINDS["continuous"])
    artifact = fit(path, "latent-trait", components=1, group="group")._to_loaded_model().artifact
    dims = {artifact.dims(name) for name in artifact}
    assert ("segment", "continuous") in dims
    columns = [column.name for column in read_parameter_columns(artifact, "feature")]
    assert {f"group_deviations_{group}" for group in ("None", "<b>x</b>", "a,b")} <= {*columns}
    groups = [column.name for column in read_parameter_columns(artifact, "segment")]
    assert not any("deviations" in name for name in groups)
