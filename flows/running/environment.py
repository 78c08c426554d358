"""The environment of the process: Prefect's settings, cache folders, and which packages Python finds."""

from __future__ import annotations

import os
import sys
import tomllib
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from platformdirs import user_cache_path, user_data_path

_EMBEDDED_SERVER_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # The embedded server lives as long as the run: nobody could read its logs afterwards, and
    # what went wrong is told by the command itself.
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
    # Nobody makes automations there, yet every event would be held against them.
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    # A dependency of the server has all its modules rewritten to check types, at every start.
    "PY_KEY_VALUE_DISABLE_BEARTYPE": "true",
}


def configure_prefect() -> None:
    """Keep an embedded server's database apart and off line; leave a configured server alone."""
    if is_server_configured():
        return
    home = user_data_path("latentbits") / "prefect"
    os.environ.setdefault("PREFECT_HOME", str(home))
    with suppress(OSError):  # Prefect makes the folder itself, but not its parents
        Path(os.environ["PREFECT_HOME"]).mkdir(parents=True, exist_ok=True)
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost"]))
    for name, value in _EMBEDDED_SERVER_SETTINGS.items():
        os.environ.setdefault(name, value)


def is_server_configured() -> bool:
    """Tell whether the environment or the active Prefect profile names a server."""
    if os.environ.get("PREFECT_API_URL"):
        return True
    home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
    path = Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml"))
    try:
        profiles = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    active = os.environ.get("PREFECT_PROFILE", profiles.get("active"))
    return bool(profiles.get("profiles", {}).get(active, {}).get("PREFECT_API_URL"))


def find_examples_folder() -> Path:
    """Give the folder that holds generated example datasets."""
    return user_cache_path("latentbits") / "examples"


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
