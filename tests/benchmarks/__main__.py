"""Run benchmarks, each in its own process: `python -m tests.benchmarks [NAME [ARGS]]`."""

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from tests.benchmarks._markdown import describe_machine, format_tables


def read_summaries() -> dict[str, str]:
    """Return the first docstring line of each benchmark, keyed by its name."""
    paths = sorted(Path(__file__).parent.glob("[!_]*.py"))
    docstrings = {path.stem: ast.get_docstring(ast.parse(path.read_text())) for path in paths}
    return {name: (text or "").partition("\n")[0] for name, text in docstrings.items()}


def run_benchmark(name: str, arguments: Sequence[str]) -> None:
    """Run a benchmark, which prints its measurements; exit if it fails."""
    print(f"\n{name}", flush=True)
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", *arguments]
    if code := subprocess.run(command).returncode:
        sys.exit(code)


def print_markdown(name: str, arguments: Sequence[str], summary: str) -> None:
    """Run a benchmark and print its measurements as a section of a page; exit if it fails."""
    command = [sys.executable, "-m", f"tests.benchmarks.{name}", *arguments]
    start = time.monotonic()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(done.returncode)
    seconds = time.monotonic() - start
    print(f"## {name}\n\n{summary}\n\n{format_tables(done.stdout)}\n")
    print(f"Measured on {date.today()} in {seconds:.0f} s: {describe_machine()}.\n", flush=True)


def main() -> None:
    """Run one benchmark, or all of them."""
    summaries = read_summaries()
    width = max(map(len, summaries))
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Run one benchmark, or all. Ratios compare measurements of the same run.",
        epilog="\n".join(f"{name:{width}}  {text}" for name, text in summaries.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print Markdown tables, with machine and date"
    )
    parser.add_argument("name", nargs="?", help="benchmark to run; default: all of them")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="arguments passed to the benchmark"
    )
    options = parser.parse_args()
    if options.name and options.name not in summaries:
        parser.exit(2, f"unknown benchmark: {options.name}; --help lists all\n")
    for name in [options.name] if options.name else summaries:
        if options.markdown:
            print_markdown(name, options.arguments, summaries[name])
        else:
            run_benchmark(name, options.arguments)


if __name__ == "__main__":
    main()
