"""What a shell needs to complete commands, options and choices."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Literal, cast

from cyclopts import App

from flows.cli.startup import PROGRAM


def generate_completion_script(commands: Sequence[str], shell: str) -> str:
    """Write the script for a shell from all command lines."""
    root = App(name=PROGRAM)
    for name in commands:
        module = import_module(_find_module_name(name))
        root.command(module.app, name=name)
    return root.generate_completion(
        prog_name=PROGRAM, shell=cast(Literal["bash", "fish", "zsh"], shell)
    )


def _find_module_name(name: str) -> str:
    """Name the module that has the command's application."""
    return f"flows.{name}.__main__" if name in ("experiments", "report") else f"flows.{name}"
