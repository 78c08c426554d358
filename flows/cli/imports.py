"""Imports without Python's search for garbage, in vain there: what modules make stays."""

from __future__ import annotations

import atexit
import gc
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
