"""Commands and the Python interface without what Windows lacks; see `tests.support.windows`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.data import draw_probit_rows

ROOT = Path(__file__).parents[1]
SCRIPT = """
import runpy
import sys
import latentbits as lb

for command in (
    "flows.ingest rows.csv --dataset rows.zarr",
    "flows.fit --dataset rows.zarr --components 1 --output runs --no-report",
    "flows.transform --dataset rows.zarr --artifact runs --output codes.csv",
    "flows.export --artifact runs --what items --output items.csv",
):
    sys.argv = command.split()
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, command
fitted = lb.fit("rows.zarr", components=1)
print(fitted.params.loadings.tobytes().hex())
lb.from_numpy([[0, 1], [1, 0]], path="other.zarr")
"""


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_the_simulation_hides_posix(tmp_path: Path) -> None:
    (tmp_path / "needs.py").write_text("import os\nprint(hasattr(os, 'getuid'))\nimport fcntl\n")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.windows", "needs"],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "False\n"
    assert "No module named 'fcntl'" in done.stderr


@pytest.mark.matrix
@pytest.mark.timeout(300)
def test_results_are_the_same(tmp_path: Path) -> None:
    X = draw_probit_rows(300, 6, 1, seed=1)[0]
    folders = [tmp_path / "posix", tmp_path / "windows"]
    printed = []
    for folder, wrapper in zip(folders, [(), ("tests.support.windows",)], strict=True):
        folder.mkdir()
        np.savetxt(folder / "rows.csv", X, "%d", ",", header="a,b,c,d,e,f", comments="")
        (folder / "script.py").write_text(SCRIPT)
        printed.append(run(folder, *wrapper, "script"))
    assert printed[0] == printed[1]
    for name in ("codes.csv", "items.csv"):
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()
    left = {path.name for path in folders[1].iterdir()}
    assert not [name for name in left if name.endswith(".lock")]
