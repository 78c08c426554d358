"""Check paths on this machine."""

from __future__ import annotations

from pathlib import Path

from storage.errors import DataError

_MAX_SHOWN = 100  # characters of a path that is too long


def check_local_path(path: Path) -> Path:
    """Return a path that a file can have, whether or not there is one.

    Raises `DataError` if it is too long, has characters that no path has, or cannot be looked up.
    """
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "a character is not possible in a path"
        text = str(path).encode(errors="replace").decode()
        shown = text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
        raise DataError(f"{shown!r} is no usable path: {reason}.") from error
    return path


def check_is_no_pipe(path: Path) -> None:
    """Raise `DataError` for a pipe or a device, which cannot be read from its start twice."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(f"{path} is a pipe or a device. Write what it holds to a file.")
