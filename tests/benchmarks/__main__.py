"""Runs every benchmark, each in a process of its own: `python -m tests.benchmarks [NAME]...`."""

import subprocess
import sys
from pkgutil import iter_modules

import tests.benchmarks


def main() -> None:
    """Run the benchmarks named, or all."""
    known = [module.name for module in iter_modules(tests.benchmarks.__path__)]
    for name in sys.argv[1:] or sorted(set(known) - {"__main__"}):
        print(f"\n{name}", flush=True)
        subprocess.run([sys.executable, "-m", f"tests.benchmarks.{name}"], check=True)


if __name__ == "__main__":
    main()
