"""The worked example: run in a kernel of its own, and checked against the same calls made here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from flows.data.ingest import ingest_sources
from latentbits import functions as api
from storage.dataset.dataset import BinaryDataset
from tests.support.data import draw_probit_rows, write_arrays

pytestmark = pytest.mark.matrix
NOTEBOOK = Path(__file__).with_name("digits.ipynb")


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The notebook, executed in an empty folder."""
    folder = tmp_path_factory.mktemp("notebook")
    found = nbformat.read(NOTEBOOK, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
            patch.setenv(name, str(folder / name))
        work = folder / "work"
        work.mkdir()
        client = NotebookClient(found, timeout=600, resources={"metadata": {"path": str(work)}})
        client.execute()
    return found


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> BinaryDataset:
    return ingest_sources(["example:digits"], tmp_path_factory.mktemp("here") / "digits.zarr")


def outputs(notebook: Any, cell: str) -> Iterator[Any]:
    (found,) = (one for one in notebook.cells if one.id == cell)
    yield from found.outputs


def table(notebook: Any, cell: str) -> dict[str, str]:
    """Names and values of the table that a cell ends with."""
    (shown,) = (one.data for one in outputs(notebook, cell) if one.output_type == "execute_result")
    cells = r"<th [^>]*>(.*?)</th><td [^>]*>(.*?)</td>"
    assert "<table>" in shown["text/html"]
    found = dict(re.findall(cells, shown["text/html"]))
    assert all(f"  {name}" in shown["text/plain"] for name in found)
    return found


def printed(notebook: Any, cell: str) -> str:
    return "".join(one.text for one in outputs(notebook, cell) if one.get("name") == "stdout")


def test_it_is_kept_without_outputs() -> None:
    kept = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(kept)
    codes = [cell for cell in kept.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in codes)


def test_every_cell_runs_and_nothing_is_said_on_standard_error(notebook: Any) -> None:
    shown = [one for cell in notebook.cells for one in cell.get("outputs", ())]
    assert [one for one in shown if one.output_type == "error"] == []
    assert [one for one in shown if one.get("name") == "stderr"] == []
    assert sum("image/png" in one.get("data", ()) for one in shown) == 1


def test_data_and_codes_show_themselves(notebook: Any, digits: BinaryDataset) -> None:
    data = table(notebook, "ingest")
    assert data["path"] == "digits.zarr"
    assert data["rows"] == f"{digits.n_rows:,}" == "1,797"
    assert data["features"].startswith("34: r0c2, r0c3")
    assert data["segments"].startswith("10: 0 (178), 1 (182)")
    assert table(notebook, "transform")["mean"] == "row 1,797 × 2, float64"


def test_fits_and_their_numbers_are_those_of_the_same_calls(
    notebook: Any, digits: BinaryDataset
) -> None:
    settings: dict[str, Any] = {"estimator": "quadrature", "prior_precision": 1.0}
    mixture = api.fit(digits, "bernoulli-mixture", components=20)
    traits = api.fit(digits, "latent-trait", components=2, **settings)
    for cell, fitted in (("mixture", mixture), ("traits", traits)):
        shown = table(notebook, cell)
        kind = type(fitted.model).__name__
        assert shown["model"].startswith(f"{kind}(n_components={fitted.model.n_components}")
        assert shown["objective"] == f"{fitted.history[-1]:.6g} nats per row"
        assert shown["converged"] == "yes"
    assert table(notebook, "traits")["weights"] == "feature 34 × component 2"
    found = {fitted.model.name: api.evaluate(fitted, digits) for fitted in (mixture, traits)}
    lines = [f"{name}: {one['log_likelihood']:.4f}" for name, one in found.items()]
    assert printed(notebook, "evaluate").splitlines() == lines
    shown = table(notebook, "evaluate")
    assert shown["wrong_bits"] == f"{found['latent-trait']['wrong_bits']:.6g}"


def test_values_by_name_are_those_of_the_rows(notebook: Any, digits: BinaryDataset) -> None:
    X, _ = digits.dense(0)
    threes = X[digits.segments() == "3", digits.feature_names.index("r0c3")]
    said = printed(notebook, "names")
    assert said == f"r0c3 is set in {np.mean(threes):.4f} of the threes\n"
    (shown,) = (one.data for one in outputs(notebook, "names") if "data" in one)
    assert "xarray.Dataset" in shown["text/html"]


def test_a_cell_shows_how_far_a_fit_is_and_keeps_what_it_printed(tmp_path: Path) -> None:
    """Work that takes longer than a second, which here is none, has a line that is empty then."""
    cell = (
        "from latentbits import functions as api\n"
        "from storage import open_dataset\n"
        "api._QUIET_SECONDS = api._UPDATE_SECONDS = 0.0\n"
        "print('before')\n"
        "updates = []\n"
        "send = get_ipython().display_pub.publish\n"
        "def seen(data, metadata=None, **more):\n"
        "    updates.append(data)\n"
        "    return send(data, metadata, **more)\n"
        "get_ipython().display_pub.publish = seen\n"
        "fitted = api.fit(open_dataset('d.zarr'), 'latent-trait', max_iter=3)\n"
        "print(any(', pass 3, -' in one['text/plain'] for one in updates), len(updates) > 4)\n"
    )
    write_arrays(tmp_path / "d.zarr", draw_probit_rows(500, 6, 2, seed=1)[0])
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
            patch.setenv(name, str(tmp_path / name))
        resources = {"metadata": {"path": str(tmp_path)}}
        NotebookClient(notebook, timeout=600, resources=resources).execute()
    shown = notebook.cells[0].outputs
    assert (
        "".join(one.text for one in shown if one.get("name") == "stdout") == "before\nTrue True\n"
    )
    assert [one["data"] for one in shown if "data" in one] == [{"text/plain": ""}]
