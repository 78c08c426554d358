"""All commands by one name: `latentbits NAME`, or `python -m flows NAME`."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from importlib.metadata import version

from flows.cli.startup import PROGRAM, PROGRAM_VARIABLE

COMMANDS = {
    "Data": {
        "ingest": "Read binary data and write it bit-packed.",
        "sample": "Draw a dataset from a fitted model.",
    },
    "Models": {
        "fit": "Fit a latent-variable model to a dataset.",
        "evaluate": "Compare fitted models with each other.",
        "transform": "Write the latent codes of every row.",
        "export": "Write results as tables for R, pandas and Excel.",
        "models": "List the models that can be fitted.",
        "runs": "List the fits below a folder.",
    },
    "Pictures and rows": {
        "report": "Write the report of a fit as one page, and its figures.",
        "neighbours": "Find the nearest neighbours of every row.",
        "experiments": "Reproduce published figures.",
    },
    "Schedules and clusters": {
        "serve": "Run the scheduled deployments from this process.",
        "certificates": "Make certificates for a cluster.",
    },
}
_SHELLS = ("bash", "fish", "zsh")
_HELP = """Usage: {program} COMMAND [OPTIONS]

Latent-variable models of binary data too large for one array in memory.
{commands}
Other
  completion    Print what a shell needs to complete commands: {shells}.
  --version     Print the version.

`{program} COMMAND --help` explains each. A first one: {program} fit --dataset example:digits
"""


def main() -> None:
    """Print the overview, or become the command that is named."""
    name, *rest = sys.argv[1:] or ["--help"]
    if name in ("--help", "-h", "help"):
        print(format_overview(), end="")
    elif name == "--version":
        print(f"latentbits {version('latentbits')}")
    elif name == "completion":
        _print_completion(rest)
    elif name in list_commands():
        # As `python -m` does, in a process that has not begun anything; what lies in the working
        # folder under the name of a package of ours is not taken for it.
        os.environ[PROGRAM_VARIABLE] = PROGRAM
        os.execv(sys.executable, [sys.executable, "-P", "-m", f"flows.{name}", *rest])
    else:
        near = get_close_matches(name, list_commands(), n=1)
        hint = f"Did you mean {near[0]}?" if near else f"See {PROGRAM} --help."
        _exit_with_error(f"Expected a command, got {name!r}. {hint}")


def list_commands() -> list[str]:
    """Name all commands."""
    return [name for group in COMMANDS.values() for name in group]


def format_overview() -> str:
    """List the commands by what they are for."""
    lines = (
        f"\n{title}\n" + "".join(f"  {name:<12}  {told}\n" for name, told in group.items())
        for title, group in COMMANDS.items()
    )
    return _HELP.format(program=PROGRAM, commands="".join(lines), shells=", ".join(_SHELLS))


def _print_completion(words: list[str]) -> None:
    if len(words) != 1 or words[0] not in _SHELLS:
        _exit_with_error(
            f"completion: Expected one of {', '.join(_SHELLS)}, got {' '.join(words) or 'none'!r}."
        )
    from flows.cli.completion import generate_completion_script  # imports every command

    print(generate_completion_script(list_commands(), words[0]))


def _exit_with_error(message: str) -> None:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
