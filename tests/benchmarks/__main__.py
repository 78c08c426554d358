"""Runs benchmarks, each in a process of its own: `python -m tests.benchmarks [NAME]`."""

import argparse
import ast
import subprocess
import sys
from pathlib import Path


def read_summaries() -> dict[str, str]:
    """Return the first line of the docstring of each benchmark, by its name."""
    paths = sorted(Path(__file__).parent.glob("[!_]*.py"))
    docstrings = {path.stem: ast.get_docstring(ast.parse(path.read_text())) for path in paths}
    return {name: (text or "").partition("\n")[0] for name, text in docstrings.items()}


def main() -> None:
    """Run one benchmark, or all."""
    summaries = read_summaries()
    width = max(map(len, summaries))
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Run one benchmark, or all. They print ratios measured in one run.",
        epilog="\n".join(f"{name:{width}}  {text}" for name, text in summaries.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", help="the benchmark; all if left out")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="arguments of the benchmark")
    chosen = parser.parse_args()
    if chosen.name and chosen.name not in summaries:
        parser.exit(2, f"unknown benchmark: {chosen.name}; --help lists all\n")
    for name in [chosen.name] if chosen.name else summaries:
        print(f"\n{name}", flush=True)
        command = [sys.executable, "-m", f"tests.benchmarks.{name}", *chosen.arguments]
        if code := subprocess.run(command).returncode:
            sys.exit(code)


if __name__ == "__main__":
    main()
