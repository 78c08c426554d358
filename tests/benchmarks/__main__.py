"""Runs every benchmark: `python -m tests.benchmarks`, or one by its name."""

import sys
from importlib import import_module
from pkgutil import iter_modules

import tests.benchmarks


def main() -> None:
    """Run the benchmarks named, or all."""
    names = [module.name for module in iter_modules(tests.benchmarks.__path__)]
    for name in sys.argv[1:] or sorted(name for name in names if name != "__main__"):
        print(f"\n{name}", flush=True)
        import_module(f"tests.benchmarks.{name}").main()


if __name__ == "__main__":
    main()
