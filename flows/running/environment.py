"""Where Prefect runs: the user's own server if one is configured, else one of our own, off line."""

from __future__ import annotations

import os
import tomllib
from contextlib import suppress
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
