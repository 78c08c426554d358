"""All commands under one name: `latentbits NAME`, or `python -m flows NAME`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from typing import Any

from flows.cli.startup import PROGRAM, PROGRAM_VARIABLE, find_module

COMMANDS = {
    "Data": {
        "ingest": "Read binary or ordered data and store it bit-packed.",
        "sample": "Draw a synthetic dataset from a fitted model.",
    },
    "Models": {
        "fit": "Fit a latent-variable model to a dataset.",
        "compare": "Compare fits by AIC, BIC and likelihood-ratio tests.",
        "evaluate": "Compare fitted models on a dataset.",
        "transform": "Compute the latent codes of every row.",
        "query": "Compute probabilities of features given others.",
        "next-items": "Choose the next items of an adaptive test.",
        "export": "Write results as tables for R, pandas and Excel.",
        "models": "List the models that can be fitted.",
        "runs": "List the fits in a folder.",
    },
    "Reports and neighbours": {
        "report": "Write the report of a fit as a web page, or its figures.",
        "neighbours": "Find the nearest neighbours of every row.",
        "experiments": "Reproduce published figures.",
    },
    "Schedules and clusters": {
        "warm": "Compile the functions of all models for this machine.",
        "serve": "Run the scheduled deployments in this process.",
        "certificates": "Create TLS certificates for a cluster.",
    },
}
_SHELLS = ("bash", "fish", "zsh")
_HELP = """Usage: {program} COMMAND [OPTIONS]

Latent-variable models of binary and ordered data that are too large for one array in memory.
{commands}
Other
  completion    Print a completion script for {shells}.
  --version     Print the version.

`{program} COMMAND --help` explains a command. To start: {program} fit --dataset example:digits
"""


def main() -> None:
    """Print the overview, or run the named command in place of this process."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h", "help"):
        print(format_overview(), end="")
    elif name == "--version":
        print(f"latentbits {version('latentbits')}")
    elif name == "completion":
        _print_completion(rest)
    elif name in list_commands():
        # Start afresh, as `python -m` does. With -P, files in the working folder whose names equal
        # those of our packages are not imported.
        os.environ[PROGRAM_VARIABLE] = PROGRAM
        _replace_process([sys.executable, "-P", "-m", find_module(name), *rest])
    else:
        similar = get_close_matches(name, list_commands(), n=1)
        hint = f"Did you mean {similar[0]}?" if similar else f"See {PROGRAM} --help."
        _exit_with_error(f"{name!r} is not a command. {hint}")


def _replace_process(command: list[str]) -> None:
    """Run a command in place of this process; on Windows in a child, whose end is waited for."""
    if sys.platform == "win32":
        sys.exit(subprocess.run(command, check=False).returncode)
    os.execv(command[0], command)


def list_commands() -> list[str]:
    """List the names of all commands."""
    return [name for group in COMMANDS.values() for name in group]


def format_overview() -> str:
    """List the commands by topic."""
    lines = (
        f"\n{title}\n" + "".join(f"  {name:<12}  {text}\n" for name, text in group.items())
        for title, group in COMMANDS.items()
    )
    return _HELP.format(program=PROGRAM, commands="".join(lines), shells=", ".join(_SHELLS))


def _print_completion(words: Sequence[str]) -> None:
    if len(words) != 1 or words[0] not in _SHELLS:
        _exit_with_error(f"completion: name one shell: {', '.join(_SHELLS)}.")
    print(generate_completion_script(list_commands(), words[0]))


def generate_completion_script(commands: Sequence[str], shell: Any) -> str:
    """Write the completion script of a shell, from the command lines of all commands."""
    from cyclopts import App

    root = App(name=PROGRAM)
    for name in commands:
        is_package = name in ("experiments", "report")
        module = import_module(find_module(name) + ".__main__" * is_package)
        root.command(module.app, name=name)
    return root.generate_completion(prog_name=PROGRAM, shell=shell)


def _exit_with_error(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
