"""Run benchmarks, each in its own process: `python -m tests.benchmarks [NAME [ARGS]]`."""

import argparse
import ast
import subprocess
import sys
from pathlib import Path


def read_summaries() -> dict[str, str]:
    """Return the first docstring line of each benchmark, keyed by its name."""
    paths = sorted(Path(__file__).parent.glob("[!_]*.py"))
    docstrings = {path.stem: ast.get_docstring(ast.parse(path.read_text())) for path in paths}
    return {name: (text or "").partition("\n")[0] for name, text in docstrings.items()}


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
    parser.add_argument("name", nargs="?", help="benchmark to run; default: all of them")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="arguments passed to the benchmark"
    )
    options = parser.parse_args()
    if options.name and options.name not in summaries:
        parser.exit(2, f"unknown benchmark: {options.name}; --help lists all\n")
    for name in [options.name] if options.name else summaries:
        print(f"\n{name}", flush=True)
        command = [sys.executable, "-m", f"tests.benchmarks.{name}", *options.arguments]
        if code := subprocess.run(command).returncode:
            sys.exit(code)


if __name__ == "__main__":
    main()
