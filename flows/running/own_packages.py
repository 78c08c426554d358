"""Whether Python finds our packages, and not files of their names in the folder of the user."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def check_own_packages(is_command: bool) -> None:
    """Say which file hides a package of ours; `python -P` leaves the working folder out.

    Processes that this one starts leave it out where this one does.

    Raises
    ------
    ImportError
        If a file is in the way; a command says so in one line and ends with exit code 2.
    """
    if sys.flags.safe_path:
        os.environ["PYTHONSAFEPATH"] = "1"
    for name in ("pipeline", "storage"):
        spec = find_spec(name)
        found = Path(spec.origin) if spec and spec.origin else None
        if found is not None and found.parent != _ROOT / name:
            _report_conflict(name, found, is_command)


def _report_conflict(name: str, found: Path, is_command: bool) -> None:
    message = (
        f"{found}: Expected the package {name!r} of latentbits, got this file in its place. "
        "Rename it, go to another folder, or leave this one out: python -P -m …"
    )
    if not is_command:
        raise ImportError(message)
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
