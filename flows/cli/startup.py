"""Fast start of commands, and the name by which the user called the program."""

from __future__ import annotations

import atexit
import gc
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

PROGRAM_VARIABLE = "LATENTBITS_PROGRAM"
PROGRAM = "latentbits"
_COMMAND = re.compile(r"python -m flows\.(\w+)")


def format_command(command: str) -> str:
    """Return a command as the user typed it: `latentbits fit` or `python -m flows.fit`."""
    return f"{PROGRAM} {command}" if _is_script() else f"python -m {find_module(command)}"


def find_module(command: str) -> str:
    """Return the module of a command: `flows.next_items` of `next-items`."""
    return f"flows.{command.replace('-', '_')}"


def rewrite_commands(text: str) -> str:
    """Write the commands in a help text as the user types them."""
    if not _is_script():
        return text
    return _COMMAND.sub(lambda match: f"{PROGRAM} {match[1].replace('_', '-')}", text)


def _is_script() -> bool:
    return os.environ.get(PROGRAM_VARIABLE) == PROGRAM


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause garbage collection during imports, where it would find nothing."""
    gc.disable()
    try:
        yield
    finally:
        resume_garbage_collection()


def stop_garbage_collection() -> None:
    """Switch garbage collection off until `resume_garbage_collection`, and at exit."""
    gc.disable()
    atexit.register(gc.freeze)  # the system frees the memory faster


def resume_garbage_collection() -> None:
    """Collect garbage again, but never search the objects that exist now."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
