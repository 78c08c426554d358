"""The first fit on a machine, which compiles functions, against later fits.

python -m tests.benchmarks cold_start

Prints CPU seconds of `python -m flows.fit --dataset example:digits` and of its child processes,
without Prefect and recorded by a Prefect server that it starts: the first fit with an empty folder
of compiled functions, and the shortest of three later ones.
"""

import os
import tempfile
from pathlib import Path

from tests.benchmarks._measure import Table
from tests.benchmarks.startup import REPEATS, run

COMMAND = ("-m", "flows.fit", "--dataset", "example:digits")


def measure_first_and_later(folder: Path, *, is_recorded: bool) -> tuple[float, float]:
    """Return the CPU seconds of the first fit and of a later one."""
    os.environ["NUMBA_CACHE_DIR"] = str(folder / "compiled")
    command = (*COMMAND, "--output", str(folder / "runs"))
    first, *later = (run(*command, is_recorded=is_recorded)[0] for _ in range(1 + REPEATS))
    return first, min(later)


def main() -> None:
    """Print the seconds of the first and of later fits, and their ratio."""
    table = Table("fit:<22", "first, CPU s:.1f", "later, CPU s:.2f", "first / later:.1f")
    for name, is_recorded in (("without Prefect", False), ("recorded by Prefect", True)):
        with tempfile.TemporaryDirectory() as folder:
            first, later = measure_first_and_later(Path(folder), is_recorded=is_recorded)
        table.add(name, first, later, first / later)


if __name__ == "__main__":
    main()
