"""A fitted model in Python: saving, loading, reports and figures."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latentbits as lb
from pipeline.data.datasets import MemoryDataset
from pipeline.errors import FitError
from pipeline.params import get_named_arrays
from tests.support.data import draw_probit_rows

NAMES = [f"item {i}" for i in range(8)]
N_ROWS = 600
PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    values = draw_probit_rows(N_ROWS, len(NAMES), 1, seed=1)[0].astype(float)
    values[np.random.default_rng(0).random(values.shape) < 0.05] = np.nan
    return values


@pytest.fixture(scope="module")
def data(X: np.ndarray) -> MemoryDataset:
    segment = np.array(["x", "y", "z"])[np.arange(N_ROWS) % 3]
    keep = {"name": [f"row {k}" for k in range(N_ROWS)], "age": np.arange(N_ROWS) % 7}
    dataset: Any = lb.from_numpy(X, NAMES, segment=segment, keep=keep)
    return dataset


@pytest.fixture(scope="module")
def fitted(data: MemoryDataset) -> lb.Fitted:
    return lb.fit(data, "latent-trait", components=1)


def test_representations_are_short_and_survive_saving(tmp_path: Path) -> None:
    """Names of 600 features, of which many warnings and settings could be about."""
    X = np.random.default_rng(0).integers(0, 2, (40, 600), dtype=np.uint8)
    X[:, ::2] = 1
    names = [f"a very long name of the question {k}" for k in range(600)]
    free = ",".join(names[1:400:2])
    fitted = lb.fit(
        lb.from_numpy(X, names, keep={"school": np.arange(40) % 2}),
        "latent-trait",
        components=1,
        group="school",
        free=free,
        constant_features="keep",
        errors="none",
        max_iter=2,
    )
    fitted.save(tmp_path / "fit")
    text = repr(fitted)
    assert text == repr(lb.load(tmp_path / "fit"))
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) < 500
    assert "LatentTrait(n_components=1, estimator='quadrature', constant_features='keep'" in text


def test_the_representation_of_plots_lists_the_figures(fitted: lb.Fitted) -> None:
    names = [line.split("()")[0].strip() for line in repr(fitted.plot).splitlines()[1:-1]]
    assert names == dir(fitted.plot)
    assert "convergence" in names


def test_what_is_saved_is_loaded(fitted: lb.Fitted, data: MemoryDataset, tmp_path: Path) -> None:
    fitted.save(tmp_path / "fit")
    again = lb.load(tmp_path / "fit")
    expected = get_named_arrays(fitted.params)
    for name, (_, values) in get_named_arrays(again.params).items():
        assert values.tobytes() == expected[name][1].tobytes(), name
    assert (again.model, again.warnings, again.history) == (
        fitted.model,
        fitted.warnings,
        fitted.history,
    )
    assert repr(again) == repr(fitted)
    codes = [lb.transform(one, data)["mean"].tobytes() for one in (fitted, again)]
    assert codes[0] == codes[1]
    with pytest.raises(ValueError, match="fit already exists"):
        fitted.save(tmp_path / "fit")


@pytest.mark.matrix
def test_commands_read_what_is_saved(fitted: lb.Fitted, X: np.ndarray, tmp_path: Path) -> None:
    fitted.save(tmp_path / "fit")
    lb.from_numpy(X, NAMES, path=tmp_path / "rows.zarr")
    commands = [
        ["evaluate", "--dataset", "rows.zarr", "--artifact", "fit", "--split", "all"],
        ["export", "--artifact", "fit", "--what", "items", "--output", "items.csv"],
        ["report", "--artifact", "fit"],
    ]
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", f"flows.{command[0]}", *command[1:]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
    assert "fitted to rows in memory" in done.stdout
    assert len((tmp_path / "items.csv").read_text().splitlines()) == 1 + len(NAMES)


def test_a_stored_dataset_is_recorded(X: np.ndarray, tmp_path: Path) -> None:
    dataset: Any = lb.from_numpy(X, NAMES, path=tmp_path / "rows.zarr")
    fitted = lb.fit(dataset, "bernoulli-mixture", components=2)
    assert fitted.manifest["dataset"]["path"] == str(dataset.path)
    assert fitted.manifest["n_samples"] == N_ROWS
    assert "rows_in_latent_space" not in dir(lb.fit(X, "latent-trait", components=1).plot)
    assert len(dir(fitted.plot)) > len(dir(lb.fit(X, "bernoulli-mixture", components=2).plot))


def test_a_report_shows_the_given_rows(
    fitted: lb.Fitted, data: MemoryDataset, tmp_path: Path
) -> None:
    alone, page = fitted.report(), fitted.report(data, label="age", names="name")
    assert alone.findings[0] == page.findings[0]
    assert page.findings[-1].startswith("latent-trait was fitted with 1 trait to 600 rows")
    assert "Calibration of pairs" in page.html
    assert "Calibration of pairs" not in alone.html
    assert page._repr_html_().startswith("<iframe ")
    assert page.findings[1] in repr(page)
    page.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page.html
    with pytest.raises(ValueError, match="label"):
        fitted.report(data, label="weight")
    with pytest.raises(ValueError, match="Feature 1 is 'f0'"):
        fitted.report(lb.from_numpy(np.eye(8)))


def test_figures_have_the_names_of_the_report(
    fitted: lb.Fitted, data: MemoryDataset, tmp_path: Path
) -> None:
    assert {"convergence", "weights"} <= {*dir(fitted.plot)}
    picture = fitted.plot.convergence()
    assert picture._repr_png_().startswith(PNG)
    assert repr(picture).startswith("Convergence. ")
    curves = fitted.plot.features_over_the_component(data)
    for suffix, start in ((".png", PNG), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        curves.save(tmp_path / f"curves{suffix}")
        assert (tmp_path / f"curves{suffix}").read_bytes().startswith(start)
    with pytest.raises(FitError, match=r"must end in \.png, \.svg or \.pdf"):
        curves.save(tmp_path / "curves.jpg")
    with pytest.raises(FitError, match=r"no figure 'weigths'.*Did you mean 'weights'.* take the"):
        fitted.plot.weigths()


def test_notebooks_show_the_findings(fitted: lb.Fitted) -> None:
    shown = fitted._repr_html_()
    assert "<li>latent-trait was fitted with 1 trait to 600 rows" in shown
    assert "<table>" in shown


def test_rows_in_memory_come_back(data: MemoryDataset, X: np.ndarray) -> None:
    tables = [*data.iter_tables()]
    values = np.concatenate([table.X.astype(float) for table in tables])
    masks = [np.ones_like(t.X) if t.observed is None else t.observed for t in tables]
    values[np.concatenate(masks) == 0] = np.nan
    np.testing.assert_array_equal(values, X)
    assert [*np.concatenate([table.segments for table in tables])[:4]] == ["x", "y", "z", "x"]
    assert tables[0].columns["name"][:2].tolist() == ["row 0", "row 1"]


def test_pickles_hold_no_rows(fitted: lb.Fitted, X: np.ndarray) -> None:
    assert len(pickle.dumps(fitted)) < 50_000 < X.nbytes * 2
    estimator = lb.LatentTrait(n_components=1).fit(X)
    again = pickle.loads(pickle.dumps(estimator))
    assert again.transform(X).tobytes() == estimator.transform(X).tobytes()
    json.dumps(again.fitted_.manifest)


def test_fitted_estimators_and_paths_stand_for_their_fit(X: np.ndarray, tmp_path: Path) -> None:
    estimator = lb.LatentTrait(n_components=1, random_state=0).fit(X)
    estimator.fitted_.save(tmp_path / "fit")
    fits = (estimator.fitted_, estimator, tmp_path / "fit", str(tmp_path / "fit"))
    row = {f"x{i}": i % 2 for i in range(len(NAMES))}
    own: Any = lb.from_numpy(X, [*estimator.fitted_.feature_names])
    expected: Any = None
    for fit in fits:
        found = (
            lb.transform(fit, X)["mean"].tolist(),
            lb.evaluate(fit, X)["log_likelihood"],
            lb.query(fit, {"x0": 1}, "x1")["probability"].tolist(),
            lb.Scorer(fit)(row),
            lb.link_items(fit, fit)["slope"].tolist(),
            lb.fit(own, "latent-trait", items=fit).history,
        )
        expected = expected or found
        assert found == expected
    for other in (lb.LatentTrait(), None, lb.LatentTrait):
        name = type(other).__name__
        with pytest.raises(
            FitError, match=f"^This {name} is not a fitted model. .* after its `fit`"
        ):
            lb.transform(other, X)  # type: ignore[arg-type]
