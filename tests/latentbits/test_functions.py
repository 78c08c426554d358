"""The notebook's functions against the flows' building blocks."""

from __future__ import annotations

import os
import pty
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

from latentbits import functions as api
from latentbits.data import from_numpy
from latentbits.fitted import load
from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor, ThreadsExecutor, make_executor
from pipeline.executors.progress import ignore_progress
from pipeline.models.binary_ica.blica import BLICA
from pipeline.models.registry import find_models
from pipeline.random import RowRandom
from storage import load_artifact
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.fits import write_fit

NAMES = ["<b>", *(f"f{i}" for i in range(1, 8))]


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    return draw_probit_rows(1000, 8, 2, seed=3)[0]


@pytest.fixture(scope="module")
def dataset(X: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> BinaryDataset:
    place = np.random.default_rng(0)
    segments = np.array(["a", "b", "c", "d"])[place.integers(0, 4, len(X))]
    split = np.where(np.arange(len(X)) % 3, "train", "test")
    path = tmp_path_factory.mktemp("api") / "d.zarr"
    columns = {"split": split}
    return write_arrays(path, X, None, segments, words_per_chunk=10, columns=columns, names=NAMES)


@pytest.mark.parametrize("model", ["clipped-pca", "latent-trait", "blica", "bernoulli-mixture"])
def test_a_model_in_three_lines(dataset: BinaryDataset, X: np.ndarray, model: str) -> None:
    fitted = api.fit(dataset, model, components=2, split="train")
    codes = api.transform(fitted, dataset)
    made = api.transform(fitted, dataset, reconstruct="bits")
    found = api.evaluate(fitted, dataset, split="test", label="segment", fitted_split="train")
    near, told = found["neighbourhoods"], found["neighbour_labels"]
    assert (near["rows"], told["rows"], told["neighbours"]) == (334, 334, 666)
    assert made["bits"].shape == X.shape
    if model != "blica":  # its segments count
        expected = fitted.model.reconstruct(fitted.params, codes["mean"])
        np.testing.assert_array_equal(made["bits"], expected > 0.5)
    assert codes["row"].tolist() == list(range(len(X)))
    assert codes["mean"].shape == (len(X), 2)
    assert np.isfinite(found["nll_per_bit"])
    if model in ("latent-trait", "bernoulli-mixture"):
        block = pack_block(X)
        expected = fitted.model.transform(fitted.params, block, RowRandom(0))["mean"]
        np.testing.assert_allclose(codes["mean"], expected, atol=1e-12)
        measured: Any = fitted.model
        nats = measured.log_likelihood(fitted.params, block, RowRandom(0)).nats[::3].mean()
        assert found["log_likelihood"] == pytest.approx(nats)
    for shown in (fitted, codes, found):
        table, lines = shown._repr_html_(), repr(shown).splitlines()
        own = {"ul", "li"} if shown is fitted else set()
        assert set(re.findall(r"<(\w+)", table)) == {"table", "caption", "tr", "th", "td"} | own
        assert "color" not in table
        assert table.count("<tr>") == len(lines) - 1 < 40
    assert "mean: row 1,000 × 2, float64" in said(codes)
    assert f"wrong_bits: {found['wrong_bits']:.6g}" in said(found)
    assert {"features: 8", "segments: 4"} < said(fitted)


def test_tables_of_an_evaluation_are_data_frames(X: np.ndarray) -> None:
    keep = {"school": np.where(np.arange(len(X)) % 3, "a", "b"), "age": np.arange(len(X)) % 50}
    data = from_numpy(X, NAMES, keep=keep)
    fitted = api.fit(data, "bernoulli-mixture", components=2, errors="none")
    found = api.evaluate(fitted, data, dif="school", outcomes=["age", "school"])
    assert {*found} == {"item_bias", "classification", "outcomes"}
    dif = pd.DataFrame(found.tables["dif"])
    assert sorted(dif["feature"]) == sorted(NAMES)
    assert dif["p"].is_monotonic_increasing
    outcomes = pd.DataFrame(found.tables["outcomes"])
    assert outcomes["column"].tolist() == ["age"] * 2 + ["school"] * 4
    shares = outcomes[outcomes["column"] == "school"].groupby("class")["estimate"].sum()
    np.testing.assert_allclose(shares, 1.0)
    assert {*found.tables} == {"dif", "outcomes"}
    scored = api.evaluate(fitted, data, calibration=True)
    assert {*scored.tables} == {"models", "calibration"}
    calibration = pd.DataFrame(scored.tables["calibration"])
    assert {*calibration["of"]} == {"marginals", "pairs"}
    assert calibration["number"].sum() == 8 + 8 * 7 // 2
    frame = pd.DataFrame(scored.tables["models"])
    assert frame["log_likelihood"][0] == pytest.approx(scored["log_likelihood"])
    with pytest.raises(DataError, match="the data has 50 values"):
        api.evaluate(fitted, data, dif="age")


def said(shown: Any) -> set[str]:
    """What the lines of a representation say."""
    return {re.sub(" {2,}", ": ", line.strip()) for line in repr(shown).splitlines()[1:]}


def test_settings_and_executors_are_passed_on(dataset: BinaryDataset) -> None:
    settings: dict[str, Any] = {"estimator": "quadrature", "nodes": 5, "max_iter": 3}
    fits = [
        api.fit(dataset, "latent-trait", components="auto", executor=executor, **settings)
        for executor in (SerialExecutor(), ThreadsExecutor())
    ]
    assert fits[0].params.weights.tobytes() == fits[1].params.weights.tobytes()
    assert fits[0].model.n_components is None
    assert {name: getattr(fits[0].model, name) for name in settings} == settings


@pytest.mark.parametrize("model", ["clipped-pca", "latent-trait", "blica", "bernoulli-mixture"])
def test_an_artifact_is_a_fitted_model(dataset: BinaryDataset, tmp_path: Path, model: str) -> None:
    fitted = api.fit(dataset, model, components=2)
    fitted.save(tmp_path / "a")
    again = load(tmp_path / "a")
    assert again.model == fitted.model
    codes, expected = (api.transform(one, dataset)["mean"] for one in (again, fitted))
    assert codes.tobytes() == expected.tobytes()


def test_what_a_fit_says_is_text(dataset: BinaryDataset) -> None:
    fitted = api.fit(dataset, "latent-trait", max_iter=2)
    manifest = {**fitted.manifest, "warnings": ["constant: '<b>\x1b[31m'"]}
    shown = replace(fitted, manifest=manifest)
    assert {"converged: no", "weights: feature 8 × component 2"} < said(shown)
    assert f"objective: {fitted.history[-1]:.6g} nats per row" in said(shown)
    assert "warning: constant: '<b> [31m'" in said(shown)
    assert "<b>" not in shown._repr_html_()
    assert "&lt;b&gt;" in shown._repr_html_()


def test_why_there_is_no_likelihood_is_said() -> None:
    assert said(api.Evaluation(kind="none", refusals=["too few", "<i>"])) == {
        "kind: none",
        "refusals: too few",
        "refusals: <i>",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "latent-trai"}, "Did you mean 'latent-trait'"),
        ({"components": "many"}, "components: 'many' is neither a whole number nor 'auto'"),
        ({"estimatr": "arcsine"}, "has no setting 'estimatr'.* Did you mean 'estimator'"),
        ({"model": "blica", "split": "train", "min_rows": 10**6}, "at least 3 usable segments"),
        ({"model": "latent-trai"}, "^model: There is no model"),
        ({"model": 3}, "^model: The model is 3, but must be a name"),
        ({"model": "chow-liu2"}, "Did you mean 'chow-liu'.* chow-liu, clipped-pca, "),
        (
            {"model": "chow-liu", "components": 3},
            "^chow-liu is tree-mixture with components=1. Leave out components, or choose "
            'model="tree-mixture".$',
        ),
        ({"components": 9}, "^components is 9, but the limit is 8"),
        ({"components": 0}, "^components must be at least 1"),
        ({"components": 2.5}, "^components must be a whole number or None, but is 2.5"),
        ({"null_draws": "few"}, "^null_draws must be a whole number, but is 'few'"),
        (
            {"model": "latent-trait", "nodes": "few"},
            "^nodes must be a whole number or None, but is 'few'",
        ),
        ({"model": "latent-trait", "tol": True}, "^tol must be a number, but is True"),
        (
            {"model": "stack", "layers": "4,2"},
            "^layers must be whole numbers or None, but is '4,2'",
        ),
        ({"n_jobs": 0}, "^n_jobs is 0. Choose a number of threads, or -1 for all CPUs"),
        ({"n_jobs": 99_999}, "^n_jobs is 99,999, but this machine has .* or -1 for all CPUs"),
        ({"seed": -1}, "^seed must be 0 to"),
        ({"split": "tes"}, "d.zarr: split: there is no split 'tes'"),
    ],
)
def test_what_cannot_be_fitted_is_refused(
    dataset: BinaryDataset, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as refused:
        api.fit(dataset, **arguments)
    assert isinstance(refused.value, FitError | DataError)
    assert "--" not in str(refused.value)


def test_features_named_like_options_stay_as_they_are(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(200, 4, 1, seed=0)
    X[:, 1] = 1
    data = write_arrays(tmp_path / "d.zarr", X, names=["a", "--set b=c", "--seed", "d"])
    said = r"features are constant: '--set b=c'\. .* by constant_features=\"keep\"\.$"
    with pytest.raises(FitError, match=said):
        api.fit(data)


def test_warnings_speak_python_also_those_of_an_artifact(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(910, 4, 2, seed=1)
    segments = np.array(["a", "b", "c", "d"])[np.arange(910) // 300]
    data = write_arrays(tmp_path / "d.zarr", X, None, segments)
    settings: dict[str, Any] = {"n_components": 2, "regularization": 10.0}
    artifact = load_artifact(write_fit(tmp_path / "a", BLICA(**settings), data))
    ends = "'d'; {min_rows=1} keeps them", "'d'; min_rows=1 keeps them"
    for warnings, end in (
        (artifact.manifest["warnings"], ends[0]),
        (api.Fitted.from_artifact(artifact).warnings, ends[1]),
        (api.fit(data, "blica", components=2, regularization=10.0).warnings, ends[1]),
    ):
        assert any(text.endswith(end) for text in warnings)


def test_auto_is_a_text_where_it_is_a_choice(dataset: BinaryDataset) -> None:
    by_default = api.fit(dataset, "latent-trait", max_iter=2)
    asked = api.fit(dataset, "latent-trait", estimator="auto", nodes="auto", max_iter=2)
    assert asked.model == by_default.model


def test_an_alias_is_its_model_with_fixed_settings(dataset: BinaryDataset) -> None:
    expected = api.fit(dataset, "tree-mixture", components=1, smoothing=2.0)
    for components in (None, 1):
        found = api.fit(dataset, "chow-liu", components=components, smoothing=2.0)
        assert found.model == expected.model
        assert found.manifest["model"] == "tree-mixture"


def test_all_cpus_are_used() -> None:
    executor = make_executor(-1)
    assert isinstance(executor, ThreadsExecutor)
    assert executor.n_threads == len(psutil.Process().cpu_affinity())


def test_a_terminal_shows_how_far_a_fit_is(
    dataset: BinaryDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_QUIET_SECONDS", 0.0)
    monkeypatch.setattr(api, "_UPDATE_SECONDS", 0.0)
    fitted, shown = api.fit(dataset, "latent-trait", estimator="variational", max_iter=3), []
    for work in (
        lambda: api.fit(dataset, "latent-trait", estimator="variational", max_iter=3),
        lambda: api.transform(fitted, dataset),
        lambda: api.evaluate(fitted, dataset),
        lambda: api.evaluate(fitted, dataset, progress=ignore_progress),
    ):
        ours, theirs = pty.openpty()
        with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            work()
            os.write(theirs, b"end")
        found = b""
        while not found.endswith(b"end"):
            found += os.read(ours, 1 << 16)
        shown.append(found.decode())
        os.close(ours)
    fit, transform, evaluate, nothing = shown
    assert "pair counts: 100%\x1b[K" in fit
    assert re.search(r"\r[\w-]+, pass 3, -\d\.\d+: 100%\x1b\[K\r\x1b\[Kend$", fit)
    assert transform.endswith("\rtransform: 100%\x1b[K\r\x1b[Kend")
    assert evaluate.endswith("\rscore: 100%\x1b[K\r\x1b[Kend")
    assert nothing == "end"


def test_other_features_are_refused(dataset: BinaryDataset, tmp_path: Path) -> None:
    fitted = api.fit(dataset, "bernoulli-mixture", components=1)
    other = write_arrays(tmp_path / "o.zarr", draw_probit_rows(100, 8, 2, 0)[0])
    with pytest.raises(FitError, match="Feature 1 is 'f0', but '<b>' in the fit") as error:
        api.transform(fitted, other)
    assert error.value.__suppress_context__  # the traceback has one part
    fewer = write_arrays(tmp_path / "f.zarr", draw_probit_rows(100, 2, 2, 0)[0], names=NAMES[:2])
    with pytest.raises(FitError, match="Feature 3 is missing, but 'f2' in the fit"):
        api.evaluate(fitted, fewer)


def test_segments_that_were_not_fitted_are_told(dataset: BinaryDataset) -> None:
    fitted = api.fit(dataset, "blica", components=2, regularization=10.0)
    names = (*fitted.segment_names[:3], "e")
    others = replace(fitted, manifest={**fitted.manifest, "segment_names": names})
    for use in (api.transform, api.evaluate):
        with pytest.warns(
            UserWarning, match=f"not fitted, .*: '{fitted.segment_names[3]}'$"
        ) as caught:
            use(others, dataset)
        assert [warning.filename for warning in caught] == [__file__]


def test_what_codes_cannot_be_turned_into(dataset: BinaryDataset) -> None:
    fitted = api.fit(dataset, components=1)
    with pytest.raises(FitError, match=r"must be 'probabilities', .* or None, not 'rows'"):
        api.transform(fitted, dataset, reconstruct="rows")  # type: ignore[arg-type]


def test_the_models_are_named_where_one_looks_for_them():
    named = " ".join(api.fit.__doc__.split())
    own = [name for name, kind in find_models().items() if kind.__module__.startswith("pipeline.")]
    assert ", ".join(own) in named
