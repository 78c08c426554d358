"""Start a command quickly, and know the name that the user typed."""

from __future__ import annotations

import atexit
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Import much at once; what was made is never searched again."""
    gc.disable()
    try:
        yield
    finally:
        end_imports()


def begin_imports() -> None:
    """Do the same from now on, and leave it to the system to clear memory when the process ends."""
    gc.disable()
    atexit.register(gc.freeze)


def end_imports() -> None:
    """Search for garbage again, among what is made from now on."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


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
