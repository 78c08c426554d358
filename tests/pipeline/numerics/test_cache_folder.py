"""The folder of compiled functions."""

import os
import subprocess
import sys
from pathlib import Path

import numba

import pipeline.numerics

SHOW_FOLDER = "import numba, pipeline.numerics; print(numba.config.CACHE_DIR)"


def test_the_folder_depends_on_the_sources(tmp_path: Path) -> None:
    """Numba itself does not notice a change in a file that a kernel calls functions of."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW_FOLDER],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    digest = pipeline.numerics._digest_sources()
    assert Path(done.stdout.strip()) == tmp_path / f"kernels-{digest}"
    assert Path(numba.config.CACHE_DIR).name == f"kernels-{digest}"
