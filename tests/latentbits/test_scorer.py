"""Codes of single rows: from any thread, and without Prefect, Dask or scikit-learn."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import latentbits as lb
from latentbits.scorer import Scorer
from pipeline.errors import FitError
from pipeline.models.clipped_pca.model import ClippedPCA
from storage.errors import DataError
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.fits import write_fit

ROOT = Path(__file__).parents[3]
NAMES = ["call 1", "call 2", "call 3", "call 4", "call 5"]


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    values = draw_probit_rows(300, len(NAMES), 2, seed=3)[0].astype(float)
    values[::3, 1] = np.nan
    return values


@pytest.fixture(scope="module")
def artifact(X: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scorer")
    rows, observed = np.nan_to_num(X).astype(np.uint8), (~np.isnan(X)).astype(np.uint8)
    dataset = write_arrays(folder / "rows.zarr", rows, observed, names=NAMES)
    return write_fit(folder / "fit", ClippedPCA(n_components=2), dataset)


@pytest.fixture(scope="module")
def scorer(artifact: Path) -> Scorer:
    return lb.Scorer(artifact)


def make_rows(X: np.ndarray) -> list[dict[str, float]]:
    return [dict(zip(NAMES, row, strict=True)) for row in X.tolist()]


@pytest.mark.parametrize(
    ("one", "zero", "missing"),
    [(1, 0, None), (True, False, float("nan")), (1.0, 0.0, pd.NA), (np.uint8(1), np.False_, None)],
)
def test_a_row_may_hold_any_kind_of_bit(scorer: Scorer, one: Any, zero: Any, missing: Any) -> None:
    row = {"call 5": one, "call 1": zero, "call 2": missing}
    codes = scorer(row)
    assert list(codes) == ["mean_1", "mean_2", "variance_1", "variance_2", "converged"]
    assert codes == scorer({"call 1": 0, "call 5": 1})
    assert json.loads(json.dumps(codes)) == codes
    assert codes["converged"] is True


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame])
def test_columns_of_a_frame_are_found_by_name(scorer: Scorer, X: np.ndarray, kind: Any) -> None:
    columns = dict(zip(NAMES, X.T, strict=True))
    codes = scorer(kind(columns))
    assert (
        scorer(kind(dict(reversed(columns.items()))))["mean"].tobytes() == codes["mean"].tobytes()
    )
    assert codes["row"].tolist() == list(range(len(X)))
    single = [scorer(row)["mean_1"] for row in make_rows(X)]
    assert codes["mean"][:, 0].tolist() == single
    without = scorer(kind({name: columns[name] for name in NAMES[2:]}))
    assert without["mean"][0, 0] == scorer(dict(zip(NAMES[2:], X[0, 2:], strict=True)))["mean_1"]


@pytest.mark.few(3)
@pytest.mark.parametrize("model", ["latent-trait", "bernoulli-mixture", "rbm", "noisy-or"])
def test_threads_get_the_bytes_of_one(X: np.ndarray, model: str) -> None:
    fitted = lb.fit(lb.from_numpy(X, NAMES), model, components=2, max_iter=2)
    scorer, rows = lb.Scorer(fitted), make_rows(X)
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(scorer, rows)) == [scorer(row) for row in rows]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ({"call": 1}, "The fit has no feature 'call'. Did you mean 'call"),
        ({1: 1}, "The fit has no feature '1'."),
        ({"call 1": 2}, "column 'call 1': the value is 2, not 0, 1, True, False or missing."),
        ({"call 1": "2"}, "the value is '2', not 0, 1"),
        ({"call 1": [1]}, r"the value is \[1\], not 0, 1"),
        ({"call 1": 10**400}, "the value is 1000.*…, not 0, 1"),
        ({}, "has no observed value"),
        ({"call 1": None}, "has no observed value"),
        ([1, 0], "A builtins.list is not a data frame .* Pass one row as a dictionary"),
        (pd.DataFrame({"call 1": [1, 0], "id": ["a", "b"]}), "no feature 'id'"),
        (pd.DataFrame({"call 1": [1, 3]}), r"^row 2 .* 'call 1': the value is 3.* of these values"),
        (pd.DataFrame({"call 1": [1, None]}), "^row 2 .* has no observed value"),
    ],
)
def test_what_is_no_row_is_refused_in_one_line(scorer: Scorer, rows: Any, reason: str) -> None:
    with pytest.raises(FitError, match=reason) as refused:
        scorer(rows)
    assert "\n" not in str(refused.value)


def test_segments_are_found_by_name(X: np.ndarray) -> None:
    data = lb.from_numpy(X, NAMES, segment=np.array(["a", "b", "c"])[np.arange(len(X)) % 3])
    fitted = lb.fit(data, "linear-ivae", components=2, max_iter=2)
    scorer, row = lb.Scorer(fitted), {"call 1": 1}
    assert len({scorer(row, segment)["mean_1"] for segment in ("a", "b", "c", None)}) == 4
    with pytest.raises(FitError, match=r"^The fit has no segment 'd'\. Leave it out"):
        scorer(row, "d")


def test_a_folder_without_a_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such artifact"):
        lb.Scorer(tmp_path / "none")


@pytest.mark.matrix
def test_neither_schedulers_nor_figures_are_imported(artifact: Path) -> None:
    program = (
        "import sys, latentbits as lb\n"
        f"print(lb.Scorer({str(artifact)!r})({{'call 1': 1}})['mean_1'])\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    number, names = done.stdout.splitlines()
    assert float(number) == lb.Scorer(artifact)({"call 1": 1})["mean_1"]
    unwanted = {"prefect", "dask", "distributed", "flows", "sklearn", "matplotlib", "pandas"}
    assert {*names.split()} & {*unwanted, "numba"} == {"numba"}
