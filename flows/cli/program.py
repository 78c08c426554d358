"""What the command line is called that the user typed: `latentbits`, or Python's own."""

from __future__ import annotations

import os

PROGRAM_VARIABLE = "LATENTBITS_PROGRAM"
PROGRAM = "latentbits"


def format_command(command: str) -> str:
    """Give a command as it was typed."""
    is_script = os.environ.get(PROGRAM_VARIABLE) == PROGRAM
    return f"{PROGRAM} {command}" if is_script else f"python -m flows.{command}"


def rewrite_commands(text: str) -> str:
    """Write the commands in a help text as they are typed."""
    is_script = os.environ.get(PROGRAM_VARIABLE) == PROGRAM
    return text.replace("python -m flows.", f"{PROGRAM} ") if is_script else text
