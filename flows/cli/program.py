"""What the command line is called that the user typed: `latentbits`, or Python's own."""

from __future__ import annotations

import os

VARIABLE = "LATENTBITS_PROGRAM"
PROGRAM = "latentbits"


def named(command: str) -> str:
    """Give a command as it was typed."""
    is_script = os.environ.get(VARIABLE) == PROGRAM
    return f"{PROGRAM} {command}" if is_script else f"python -m flows.{command}"


def as_typed(text: str) -> str:
    """Write the commands in a help text as they are typed."""
    is_script = os.environ.get(VARIABLE) == PROGRAM
    return text.replace("python -m flows.", f"{PROGRAM} ") if is_script else text
