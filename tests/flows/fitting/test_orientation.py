"""Fits whose components have signs that rows or features choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from flows.report.figures.row_plots import choose_names
from flows.report.figures.rows import read_dataset_sample
from flows.report.inputs import load_report_inputs
from flows.report.page import build_report_from_artifact
from pipeline.errors import FitError
from pipeline.params import get_named_arrays
from tests.support.data import draw_probit_rows, write_arrays

N_ROWS = 200
NAMES = np.array([f"member {k}" for k in range(N_ROWS)], object)
FIT = ("--model", "latent-trait", "--components", "1", "--no-report", "--set", "tol=1e-3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("orient")
    X, _ = draw_probit_rows(N_ROWS, 8, 1, seed=1)
    columns = {"party": np.where(np.arange(N_ROWS) % 3, "left", "right"), "name": NAMES}
    write_arrays(folder / "d.zarr", X, columns=columns, words_per_chunk=1)
    return folder


def fit(cli: Any, folder: Path, *options: str) -> tuple[Path, lb.Fitted]:
    path = folder / f"fits{len([*folder.iterdir()])}"
    done = cli("fit", "--dataset", folder / "d.zarr", *FIT, *options, "--output", path)
    assert done.code == 0
    return path, lb.load(path)


def test_a_feature_or_a_row_chooses_the_sign(cli: Any, folder: Path) -> None:
    dataset = lb.open_dataset(folder / "d.zarr")
    _, plain = fit(cli, folder)
    codes = lb.transform(plain, dataset)["mean"][:, 0]
    sign = "-" if plain.params.weights[0, 0] > 0 else "+"
    top, bottom = NAMES[codes.argmax()], NAMES[codes.argmin()]
    for pole in (f"f0={sign}1", f"{bottom}=+1", f"{top}=-1"):
        path, reversed_fit = fit(cli, folder, "--orient", pole)
        assert reversed_fit.manifest["orient"] == [pole]
        found = get_named_arrays(reversed_fit.params)
        for name, (_, values) in get_named_arrays(plain.params).items():
            expected = -values if name in ("weights", "rotated", "difficulty") else values
            np.testing.assert_array_equal(found[name][1], expected, err_msg=name)
        reversed_codes = lb.transform(reversed_fit, dataset)["mean"][:, 0]
        np.testing.assert_allclose(reversed_codes, -codes, atol=1e-9)
        report = build_report_from_artifact(path)
        np.testing.assert_array_equal(report.fitted.params.weights, -plain.params.weights)
    _, same = fit(cli, folder, "--orient", f"{top}=+1")
    np.testing.assert_array_equal(same.params.weights, plain.params.weights)


REFUSALS = {
    "form": (("--orient", "f0"), "--orient is 'f0'. Write NAME=+1"),
    "component": (("--orient", "f0=+2"), "but the model has 1 component."),
    "twice": (("--orient", "f0=+1", "--orient", "f1=-1"), "--orient: component 1 is given twice"),
    "name": (("--orient", "membr 3=+1"), "no row and no feature has this name. Did you mean 'memb"),
    "shared": (("--orient", "right=+1"), "67 rows have this text in column 'party'"),
    "skip": (("--orient", "member 3=+1", "--skip-corrupt"), "cannot be combined with --skip-corr"),
    "model": (
        ("--orient", "f0=+1", "--model", "bernoulli-mixture"),
        "has a meaning. Leave out --o",
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_bad_poles_are_refused(cli: Any, folder: Path, case: str) -> None:
    options, message = REFUSALS[case]
    own = () if case == "model" else FIT
    command = ("fit", "--dataset", folder / "d.zarr", *own, *options, "--output", folder / "no")
    assert message in cli(*command).check_refused()
    assert not (folder / "no").exists()


def make_table(n_components: int = 1) -> pd.DataFrame:
    X, _ = draw_probit_rows(N_ROWS, 8, n_components, seed=2)
    return pd.DataFrame(X, columns=[f"q{k}" for k in range(8)])


@pytest.mark.parametrize("model", ["clipped-pca", "laplacian-eigenmap", "kernel-pca"])
def test_every_component_has_a_sign_in_python(model: str) -> None:
    """Models without loadings take the signs of features from rows."""
    data = lb.from_dataframe(make_table(2).assign(name=NAMES), keep=["name"])
    plain = lb.transform(lb.fit(data, model, components=2), data)["mean"]
    signs = np.where(plain[3] > plain.mean(axis=0), "-", "+")
    poles = [f"member 3={signs[0]}1", f"member 3={signs[1]}2"]
    oriented = lb.fit(data, model, components=2, orient=poles)
    np.testing.assert_allclose(lb.transform(oriented, data)["mean"], -plain, atol=1e-9)
    loading = np.corrcoef(plain[:, 0], make_table(2)["q0"])[0, 1]
    by_item = lb.fit(data, model, components=2, orient=[f"q0={'-' if loading > 0 else '+'}1"])
    expected = plain * [-1, 1]
    np.testing.assert_allclose(lb.transform(by_item, data)["mean"], expected, atol=1e-9)


def test_groups_are_reversed_with_the_items() -> None:
    table = make_table().assign(group=np.repeat(["a", "b"], N_ROWS // 2))
    data = lb.from_dataframe(table, keep=["group"])
    options: dict[str, Any] = {"components": 1, "group": "group", "tol": 1e-3}
    plain = lb.fit(data, "latent-trait", **options)
    sign = "-" if plain.params.weights[0, 0] > 0 else "+"
    oriented = lb.fit(data, "latent-trait", orient=f"q0={sign}1", **options)
    np.testing.assert_array_equal(oriented.params.trait_mean, -plain.params.trait_mean)
    codes = [lb.transform(fitted, data)["mean"] for fitted in (plain, oriented)]
    np.testing.assert_allclose(*(codes[0], -codes[1]), atol=1e-9)


def test_poles_of_python_are_checked_before_the_fit() -> None:
    with pytest.raises(FitError, match=r"^orient is 'q9', but no row and no feature"):
        lb.fit(make_table(), "latent-trait", components=1, orient=["q9=+1"])
    items = {"feature": ["q0"], "slope": [1.0], "offset": [0.0]}
    with pytest.raises(FitError, match="orient cannot be combined with items"):
        lb.fit(make_table(), "latent-trait", items=items, orient=["q1=+1"])


def test_rows_of_long_tables_may_be_named_by_integers(cli: Any, tmp_path: Path) -> None:
    X = make_table().to_numpy()
    row, feature = (places.ravel() for places in np.indices(X.shape))
    lines = pd.DataFrame({"id": 1000 + row, "item": feature.astype(str), "answer": X.ravel()})
    lines.to_parquet(tmp_path / "a.parquet")
    path = tmp_path / "d.zarr"
    long = ("--long", "row=id,feature=item,value=answer")
    assert cli("ingest", tmp_path / "a.parquet", "--dataset", path, *long).code == 0
    data = lb.open_dataset(path)
    fits = [lb.fit(data, components=1, orient=[f"1003={sign}1"]) for sign in "+-"]
    codes = [lb.transform(fitted, data)["mean"][:, 0] for fitted in fits]
    np.testing.assert_allclose(codes[0], -codes[1], atol=1e-9)
    assert codes[0][3] > codes[0].mean()
    with pytest.raises(FitError, match="no row and no feature has this name"):
        lb.fit(data, components=1, orient=["9=+1"])
    done = cli("fit", "--dataset", path, *FIT, "--output", tmp_path / "fits")
    assert done.code == 0
    inputs = load_report_inputs(tmp_path / "fits")
    assert inputs.dataset is not None
    names = choose_names(read_dataset_sample(inputs.fitted, inputs.dataset).coded_rows, None, ())
    assert names is not None
    assert [*names.values] == [str(1000 + k) for k in range(N_ROWS)]


def test_rows_of_other_splits_have_no_pole() -> None:
    split = np.where(np.arange(N_ROWS) % 5, "train", "test")
    data = lb.from_dataframe(make_table().assign(name=NAMES, split=split), keep=["name", "split"])
    with pytest.raises(FitError, match="no row of the fit has this text in column 'name'"):
        lb.fit(data, split="train", orient=["member 0=+1"])
    for pole in ("member 1=+1", "member 1=-1"):
        fitted = lb.fit(data, components=1, split="train", orient=[pole])
        codes = lb.transform(fitted, data)["mean"][:, 0]
        assert (codes[1] > codes[split == "train"].mean()) == pole.endswith("+1")


def test_a_component_that_a_fit_does_not_have_is_a_warning() -> None:
    fitted = lb.fit(make_table(), "clipped-pca", components="auto", orient=["q0=+8"])
    assert fitted.manifest["n_components"] < 8
    assert any(text.startswith("orient of 'q0' has no effect") for text in fitted.warnings)
