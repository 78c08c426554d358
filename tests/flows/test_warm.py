"""Commands compile nothing after `warm`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.models.registry import list_model_names
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
    return done.stderr


def check_fits(
    folder: Path, models: list[str], warm: tuple[str, ...], options: tuple[str, ...] = ()
) -> None:
    X, _ = draw_probit_rows(300, 12, 2, seed=1)
    segments, times = [f"s{row % 3}" for row in range(300)], np.arange(300) % 5
    write_arrays(folder / "d.zarr", X, segments=segments, columns={"times": times})
    compiled = folder / "compiled"
    run(compiled, "flows.warm", *warm)
    files = set(compiled.rglob("*"))
    assert files
    for model in models:
        words = ("--dataset", str(folder / "d.zarr"), "--output", str(folder / "runs"))
        messages = run(compiled, "flows.fit", "--model", model, *words, *options)
        assert NOTICE not in messages, model
        assert set(compiled.rglob("*")) == files, model


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("model", "options"), [("kernel-pca", ()), ("clipped-pca", ("--weight", "times"))]
)
def test_a_fit_after_warm_compiles_nothing(
    tmp_path: Path, model: str, options: tuple[str, ...]
) -> None:
    check_fits(tmp_path, [model], ("--model", model), options)


@pytest.mark.slow
def test_no_fit_after_warm_compiles_anything(tmp_path: Path) -> None:
    check_fits(tmp_path, list_model_names(), ())


def test_the_first_fit_announces_compilation_once(tmp_path: Path) -> None:
    words = ("--dataset", "example:digits", "--model", "kernel-pca", "--no-report")
    fit = ("flows.fit", *words, "--executor", "serial", "--output", str(tmp_path / "runs"))
    assert run(tmp_path / "compiled", *fit).count(NOTICE) == 1
    assert NOTICE not in run(tmp_path / "compiled", *fit)


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.warm", "--model", "clipped-pcs"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "There is no model 'clipped-pcs'. Did you mean 'clipped-pca'?" in done.stderr
