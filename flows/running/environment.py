"""The environment of the process: Prefect's settings, cache folders and conflicting packages."""

from __future__ import annotations

import os
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

from platformdirs import user_cache_path

_EMBEDDED_SERVER_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    # The command itself reports failures.
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_CLI_PROMPT": "false",
    # Every event would be compared with the automations, which are for servers that keep running.
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    # Without stored events, none need to be deleted at every start. Runs are stored all the same.
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    # Recording task runs one by one would take half of the server's time.
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_READ_BATCH_SIZE": "100",
    "PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_BATCH_SIZE": "100",
    # Blocks are for servers that keep running.
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
    # A dependency of the server would add type checks to all its modules at every start.
    "PY_KEY_VALUE_DISABLE_BEARTYPE": "true",
}
_TRUE_VALUES = ("1", "true", "t", "yes", "y", "on")  # as in Prefect


def configure_prefect() -> None:
    """Configure an embedded Prefect server: no network, no logs; keep the user's server."""
    if not is_prefect_installed() or is_server_configured():
        return
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost"]))
    if "prefect" in sys.modules:  # it has read its settings, and may be somebody's server
        return
    for name, value in _EMBEDDED_SERVER_SETTINGS.items():
        os.environ.setdefault(name, value)


def is_prefect_installed() -> bool:
    """Return whether Prefect can be imported."""
    return find_spec("prefect") is not None


def is_recording() -> bool:
    """Return whether commands run as Prefect flows, so that a database records their runs.

    That is the database of a configured server, or the one in `PREFECT_HOME` if the environment
    allows servers that end with the run. Importing Prefect and starting such a server take longer
    than many fits, so otherwise commands call their stages directly.
    """
    value = os.environ.get("PREFECT_SERVER_EPHEMERAL_ENABLED", "").strip().lower()
    return is_server_configured() or (value in _TRUE_VALUES and is_prefect_installed())


def is_server_configured() -> bool:
    """Return whether Prefect is installed and its environment or active profile names a server."""
    if not is_prefect_installed():
        return False
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
    """Return the folder of the generated example datasets."""
    return user_cache_path("latentbits") / "examples"


_ROOT = Path(__file__).parents[2]


def check_own_packages(is_command: bool) -> None:
    """Check that no file in the working folder hides a package of latentbits.

    `python -P` ignores the working folder; processes started by this one then ignore it too. Raises
    `ImportError` if a file hides a package. A command prints one line and exits with code 2
    instead.
    """
    if sys.flags.safe_path:
        os.environ["PYTHONSAFEPATH"] = "1"
    for name in ("pipeline", "storage"):
        spec = find_spec(name)
        file = Path(spec.origin) if spec and spec.origin else None
        if file is not None and file.parent != _ROOT / name:
            _report_conflict(name, file, is_command)


def _report_conflict(name: str, file: Path, is_command: bool) -> None:
    message = (
        f"{file} hides the package {name!r} of latentbits. "
        "Rename it, work in another folder, or ignore this folder with python -P -m …"
    )
    if not is_command:
        raise ImportError(message)
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)
