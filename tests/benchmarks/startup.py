"""Start-up of a command, against importing the libraries that it needs.

`python -m tests.benchmarks startup`: CPU seconds of child processes with their own children, the
least of three runs after one that fills the caches. The command is `python -m flows.fit --dataset
example:digits` with an executor of the process, once without Prefect and once recorded by a server
inside the command. The work is that of a second fit in the same process. The imports are the sum
over all modules that `python -X importtime` reports.
"""

import os
import resource
import subprocess
import sys
import tempfile

REPEATS = 3
LIBRARIES = "import numpy, scipy, numba, zarr, dask"
COMMAND = ("-m", "flows.fit", "--dataset", "example:digits", "--executor", "serial")
FIT_TWICE = """
import sys, time
from flows.cli.options import ExecutorOptions
from flows.fitting.job import prepare_fit
from flows.fitting.options import FitOptions
from flows.fitting.stages import run_fit
options = FitOptions("example:digits", output=sys.argv[1], where=ExecutorOptions(name="serial"))
for _ in range(2):
    start = time.process_time()
    run_fit(prepare_fit(options))
print(time.process_time() - start)
"""
IMPORT_PREFECT = "from prefect import flow; from prefect.events.worker import EventsWorker"
RUN_SERVER = "from flows.running.server import run_with_server; run_with_server(lambda: None)"
RUN_FLOW = """
from flows.fitting.options import FitOptions
from flows.running.flow import run_flow
run_flow("fit", FitOptions("example:digits"), dict)
"""


def run(
    *arguments: str, is_recorded: bool = False
) -> tuple[float, subprocess.CompletedProcess[str]]:
    """Run Python, and return its CPU seconds and those of its children, and its output."""
    allowed = {"PREFECT_SERVER_EPHEMERAL_ENABLED": "true" if is_recorded else "false"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **allowed},
        capture_output=True,
        check=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, done


def measure(*arguments: str, is_recorded: bool = False) -> float:
    """Return the least CPU seconds of some runs, the first left out."""
    return min([run(*arguments, is_recorded=is_recorded)[0] for _ in range(1 + REPEATS)][1:])


def sum_imports(*arguments: str) -> float:
    """Return the seconds of all imports, by the times of single modules."""
    lines = run("-X", "importtime", *arguments)[1].stderr.splitlines()
    fields = [line.removeprefix("import time:").split("|")[0].strip() for line in lines]
    return 1e-6 * sum(int(field) for field in fields if field.isdigit())


def main() -> None:
    """Print the seconds of each part, and their ratios to the imports of the libraries."""
    with tempfile.TemporaryDirectory() as folder:
        command = (*COMMAND, "--output", folder)
        limit = measure("-c", LIBRARIES)
        total = measure(*command)
        work = float(run("-c", FIT_TWICE, folder)[1].stdout)
        recorded = measure(*command, is_recorded=True)
        imports = sum_imports(*command)
    prefect = measure("-c", IMPORT_PREFECT)
    server = measure("-c", RUN_SERVER, is_recorded=True)
    flow = measure("-c", RUN_FLOW, is_recorded=True)
    rows = [
        (f"limit: {LIBRARIES}", limit),
        ("whole command", total),
        ("  its work, repeated in one process", work),
        ("  start-up", total - work),
        ("    imports", imports),
        ("whole command, recorded by Prefect", recorded),
        ("  start-up", recorded - work),
        ("    import of Prefect", prefect),
        ("    server", server - prefect),
        ("    flow", flow - server),
    ]
    for name, seconds in rows:
        print(f"{name:46} {seconds:5.2f} CPU s, {seconds / limit:4.1f} times the limit")


if __name__ == "__main__":
    main()
