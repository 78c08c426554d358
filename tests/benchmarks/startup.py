"""Start-up time of a command against importing the libraries that it needs.

python -m tests.benchmarks startup

Prints CPU seconds of child processes including their own children: the shortest of three runs after
one that fills the caches. The command is `python -m flows.fit --dataset example:digits --executor
serial`, once without Prefect and once recorded by a Prefect server that it starts. `work` is a
second fit in the same process. `imports` is the sum over all modules that `python -X importtime`
reports.
"""

import os
import resource
import subprocess
import sys
import tempfile

from tests.benchmarks._measure import Table

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
    """Run Python; return the CPU seconds of it and its children, and the completed process."""
    environment = {"PREFECT_SERVER_EPHEMERAL_ENABLED": "true" if is_recorded else "false"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        check=True,
        text=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, done


def measure(*arguments: str, is_recorded: bool = False) -> float:
    """Return the shortest CPU time of several runs after one that is not counted."""
    return min([run(*arguments, is_recorded=is_recorded)[0] for _ in range(1 + REPEATS)][1:])


def sum_imports(*arguments: str) -> float:
    """Return the seconds that all imports take, summed over modules."""
    lines = run("-X", "importtime", *arguments)[1].stderr.splitlines()
    fields = [line.removeprefix("import time:").split("|")[0].strip() for line in lines]
    return 1e-6 * sum(int(field) for field in fields if field.isdigit())


def main() -> None:
    """Print the seconds of each part, and their ratios to importing the libraries."""
    with tempfile.TemporaryDirectory() as folder:
        command = (*COMMAND, "--output", folder)
        library_seconds = measure("-c", LIBRARIES)
        total = measure(*command)
        work = float(run("-c", FIT_TWICE, folder)[1].stdout)
        recorded = measure(*command, is_recorded=True)
        imports = sum_imports(*command)
    prefect = measure("-c", IMPORT_PREFECT)
    server = measure("-c", RUN_SERVER, is_recorded=True)
    flow = measure("-c", RUN_FLOW, is_recorded=True)
    rows = [
        (LIBRARIES, library_seconds),
        ("whole command", total),
        ("  work", work),
        ("  start-up", total - work),
        ("    imports", imports),
        ("whole command, recorded by Prefect", recorded),
        ("  start-up", recorded - work),
        ("    import of Prefect", prefect),
        ("    server", server - prefect),
        ("    flow", flow - server),
    ]
    table = Table("part:<46", "CPU s:6.2f", "ratio to libraries:.1f")
    for name, seconds in rows:
        table.add(name, seconds, seconds / library_seconds)


if __name__ == "__main__":
    main()
