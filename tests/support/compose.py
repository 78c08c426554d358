"""What deploy/compose.yaml says, with variables filled in, to start the same by hand."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
_VARIABLE = re.compile(r"\$\{(\w+):\?\}")
_OWN_PREFIXES = ("PREFECT_", "LATENTBITS_", "AWS_", "DASK_")


def load_compose(variables: Mapping[str, str]) -> dict[str, Any]:
    """Read the file; a variable that is not given is an error, as it is for Compose."""
    text = (ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8")
    told: dict[str, Any] = yaml.safe_load(_VARIABLE.sub(lambda at: variables[at[1]], text))
    return told


@contextmanager
def run_service(
    told: Mapping[str, Any], here: Mapping[str, str], log: Path, **more: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service's command in a session of its own, with no variables of ours but its own.

    Parameters
    ----------
    told
        The service.
    here
        What stands in this place for hosts, ports and paths, in this order.
    log
        File for what it prints.
    more
        Further variables, such as a folder of its own.
    """
    command = [_substitute_names(word, here) for word in told["command"]]
    names = {
        name: _substitute_names(value, here) for name, value in told.get("environment", {}).items()
    }
    found = {
        name: value for name, value in os.environ.items() if not name.startswith(_OWN_PREFIXES)
    }
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{found['PATH']}"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**found, **names, **more, "PATH": scripts},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        stop_service(process)


def stop_service(process: subprocess.Popen[bytes]) -> None:
    """Interrupt a service, as its runs end with it then, and kill what is left."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)


def _substitute_names(word: str, here: Mapping[str, str]) -> str:
    for name, value in here.items():
        word = word.replace(name, value)
    return word
