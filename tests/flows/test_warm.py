"""Commands compile nothing after `warm`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.models.registry import find_models, list_model_names
from tests.support.data import draw_probit_rows, write_arrays

NOTICE = "Compiling functions for this machine, once"


def run(folder: Path, *words: str) -> str:
    """Run a command with the compiled functions in `folder`; return its standard error."""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "could not be drawn" not in done.stderr
    return done.stderr


def write_mixed(path: Path, X: np.ndarray, **rows: Any) -> None:
    """Write six measurements, two features with three levels, and two binary ones."""
    rng = np.random.default_rng(2)
    numbers = (X[:, :6] + rng.standard_normal((len(X), 6))).astype(np.float32)
    numbers[:7, 0] = np.nan
    ordinal = X[:, 6:8] + X[:, 8:10]
    levels = {**{f"f{i}": () for i in range(6)}, **{f"f{i}": ("0", "1", "2") for i in (6, 7)}}
    X = np.hstack([np.zeros_like(X[:, :6]), ordinal, X[:, 10:]])
    write_arrays(path, X, feature_levels=levels, numbers=numbers, **rows)


def check_fits(
    folder: Path,
    models: list[str],
    warm: tuple[str, ...],
    options: tuple[str, ...] = (),
    write: Callable[..., Any] = write_arrays,
) -> None:
    X, _ = draw_probit_rows(300, 12, 2, seed=1)
    segments, times = [f"s{row % 3}" for row in range(300)], np.arange(300) % 5
    write(folder / "d.zarr", X, segments=segments, columns={"times": times})
    compiled = folder / "compiled"
    run(compiled, "flows.warm", *warm)
    check_nothing_is_compiled(folder, compiled, models, options)


def check_nothing_is_compiled(
    folder: Path, compiled: Path, models: list[str], options: tuple[str, ...]
) -> None:
    files = set(compiled.rglob("*"))
    assert files
    for model in models:
        words = ("--dataset", str(folder / "d.zarr"), "--output", str(folder / "runs"))
        messages = run(compiled, "flows.fit", "--model", model, *words, *options)
        assert NOTICE not in messages, model
        assert set(compiled.rglob("*")) == files, model


@pytest.mark.parametrize(
    ("model", "options", "write"),
    [
        pytest.param("kernel-pca", (), write_arrays, marks=pytest.mark.slow),
        pytest.param("clipped-pca", ("--weight", "times"), write_arrays, marks=pytest.mark.matrix),
        pytest.param("bernoulli-mixture", (), write_mixed, marks=pytest.mark.slow),
    ],
)
def test_a_fit_after_warm_compiles_nothing(
    tmp_path: Path, model: str, options: tuple[str, ...], write: Callable[..., Any]
) -> None:
    check_fits(tmp_path, [model], ("--model", model), options, write)


@pytest.mark.slow
def test_no_fit_after_warm_compiles_anything(tmp_path: Path) -> None:
    check_fits(tmp_path, list_model_names(), ())
    mixed = [
        name for name, model in find_models().items() if "continuous" in model.support.features
    ]
    write_mixed(tmp_path / "mixed" / "d.zarr", draw_probit_rows(300, 12, 2, seed=1)[0])
    check_nothing_is_compiled(tmp_path / "mixed", tmp_path / "compiled", mixed, ())


@pytest.mark.matrix
def test_the_first_fit_announces_compilation_once(tmp_path: Path) -> None:
    words = ("--dataset", "example:digits", "--model", "kernel-pca", "--no-report")
    fit = ("flows.fit", *words, "--executor", "serial", "--output", str(tmp_path / "runs"))
    assert run(tmp_path / "compiled", *fit).count(NOTICE) == 1
    assert NOTICE not in run(tmp_path / "compiled", *fit)


def test_an_unknown_model_is_refused(cli: Any) -> None:
    message = cli("warm", "--model", "clipped-pcs").check_refused()
    assert "There is no model 'clipped-pcs'. Did you mean 'clipped-pca'?" in message
