"""Find the Dask cluster of a run from its options, the environment or a Prefect block."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from flows.cli.options import SourcedValue
from flows.running.environment import is_server_configured
from flows.running.resources import parse_memory_size, read_memory_size
from flows.running.server import check_server
from pipeline.errors import FitError
from pipeline.executors.base import find_max_workers
from storage.extras import check_installed

if TYPE_CHECKING:
    from distributed.security import Security

LOCAL_CLUSTER = "local"
_TLS_SETTING_NAMES = ("tls_ca", "tls_cert", "tls_key")
_WORKER_SETTING_NAMES = ("worker_memory", "worker_timeout", "task_timeout")
_SETTING_NAMES = ("cluster", "workers", *_WORKER_SETTING_NAMES, *_TLS_SETTING_NAMES, "insecure")
_BLOCK_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_MIN_WORKER_MEMORY = 128 << 20  # the imported packages of a worker take that much


@dataclass(frozen=True)
class ClusterSettings:
    """The Dask cluster of a run.

    Attributes
    ----------
    address
        Address of an existing scheduler; None to start a local cluster.
    workers
        Number of workers to start, or to wait for. None runs them as threads in this process, or
        accepts any number.
    worker_memory
        Minimum bytes of memory of each worker process.
    worker_timeout
        Seconds to wait for workers, at the start and after all workers were lost, and for answers.
    task_timeout
        Seconds without a finished task after which others get the tasks of a worker; None takes ten
        times the slowest task, and at least 5 minutes.
    """

    address: str | None = None
    workers: int | None = None
    worker_memory: int | None = None
    worker_timeout: int = 60
    task_timeout: int | None = None
    security: Security | None = None


def resolve_cluster_settings(options: Mapping[str, Any]) -> ClusterSettings:
    """Find the cluster settings: options override the environment, which overrides a block.

    Raises `FitError` if a setting is invalid. Nothing has been started or connected yet.
    """
    from_options = {
        name: SourcedValue(value, f"{{{name}}}")
        for name, value in options.items()
        if value is not None and value is not False
    }
    settings = {**_read_environment(), **from_options}
    if (cluster := settings.get("cluster")) and _is_block_name(cluster.value):
        block = _read_block(cluster)
        settings = {**block, **settings, "cluster": block["cluster"]}
    address = _parse_address(settings)
    tls = {name: settings[name] for name in _TLS_SETTING_NAMES if name in settings}
    if address is None or address.scheme == "tcp":
        _refuse_settings(
            [tls[name] for name in _TLS_SETTING_NAMES if name in from_options],
            "{cluster=tls://HOST:PORT}",
        )
    workers, worker_memory = _parse_count(settings, "workers"), _parse_worker_memory(settings)
    timeout = _parse_count(settings, "worker_timeout") or ClusterSettings.worker_timeout
    limits = worker_memory, timeout, _parse_count(settings, "task_timeout")
    if address is None:
        if workers is not None:
            check_local_workers(workers, settings["workers"].source)
        if worker_memory is not None and worker_memory > (memory := read_memory_size()):
            value, source = settings["worker_memory"]
            raise FitError(
                f"{source} is {value!r}, but this machine has {memory / 1e9:.1f} GB of memory. "
                "Choose less."
            )
        if "cluster" in settings:
            workers = workers or _count_cores()
        if workers is None:
            _refuse_settings(
                [settings[name] for name in _WORKER_SETTING_NAMES if name in settings],
                "{workers} or {cluster}",
            )
        return ClusterSettings(None, workers, *limits)
    security = _make_security(address, tls) if address.scheme == "tls" else None
    return ClusterSettings(address.geturl(), workers, *limits, security)


def check_local_workers(n_workers: int, source: str) -> None:
    """Raise `FitError` if this machine cannot run so many workers; `source` names the setting."""
    n_cpus, memory = _count_cores(), read_memory_size()
    most = min(find_max_workers(n_cpus), memory // _MIN_WORKER_MEMORY)
    if n_workers > most:
        raise FitError(
            f"{source} is {n_workers:,}, but {n_cpus} CPUs and {memory / 1e9:.1f} GB of memory are "
            f"enough for {most} workers. Choose at most so many, or use a cluster of several "
            "machines by {cluster}."
        )


def _make_security(address: SplitResult, tls: Mapping[str, SourcedValue]) -> Security:
    check_installed(address.geturl(), "cryptography")
    from flows.running.tls import make_security  # Dask is slow to import

    return make_security(address.geturl(), tls)


def _count_cores() -> int:
    from dask.system import CPU_COUNT

    return int(CPU_COUNT)


def _read_environment() -> dict[str, SourcedValue]:
    """Read the environment variables that are set and not empty."""
    variables = {name: f"LATENTBITS_{name.upper()}" for name in _SETTING_NAMES}
    return {
        name: SourcedValue(os.environ[variable], variable)
        for name, variable in variables.items()
        if os.environ.get(variable)
    }


def _is_block_name(cluster: str) -> bool:
    return cluster != LOCAL_CLUSTER and _BLOCK_NAME.fullmatch(cluster) is not None


def _read_block(cluster: SourcedValue) -> dict[str, SourcedValue]:
    check_installed(f"{cluster.source}: the block {cluster.value!r}", "prefect")
    if not is_server_configured():
        raise FitError(
            f"{cluster.source}: {cluster.value!r} names a block on a Prefect server, but no server "
            "is configured. Set PREFECT_API_URL, or give an address."
        )
    check_server()
    from flows.running.cluster_block import DaskCluster  # Prefect is slow to import

    try:
        block: Any = DaskCluster.load(cluster.value)
    except ValueError as error:
        slug = DaskCluster.get_block_type_slug()
        raise FitError(
            f"{cluster.source}: the Prefect server has no block {cluster.value!r} of type {slug}. "
            f"Create it, check the name, or give an address such as tls://host:8786 or "
            f"{LOCAL_CLUSTER}."
        ) from error
    return {
        name: SourcedValue(
            value, f"block {cluster.value!r}, {'address' if name == 'cluster' else name}"
        )
        for name, value in block.settings().items()
        if value is not None
    }


def _parse_address(settings: Mapping[str, SourcedValue]) -> SplitResult | None:
    """Parse the address of the scheduler; None for a local cluster."""
    if "cluster" not in settings or settings["cluster"].value == LOCAL_CLUSTER:
        return None
    value, source = str(settings["cluster"].value), settings["cluster"].source
    if value.endswith(".json"):
        value = _read_scheduler_file(value, source)
    if re.search("[@?#]", value):  # a secret may follow or precede it, so the value is not shown
        raise FitError(
            f"{source}: an address has the form tls://HOST:PORT, without credentials. Schedulers "
            "accept certificates: {tls_ca}, {tls_cert} and {tls_key}."
        )
    try:
        parts = urlsplit(value)
        complete = parts.scheme in ("tcp", "tls") and parts.hostname and parts.port
    except ValueError:
        complete = False
    if not complete:
        raise FitError(
            f"{source}: {value!r} is neither an address such as tls://host:8786, nor a scheduler "
            f"file (.json), nor {LOCAL_CLUSTER}, nor the name of a block."
        )
    if parts.scheme == "tcp" and not _is_loopback(parts.hostname) and not _is_insecure(settings):
        raise FitError(
            f"{source}: {value} is not encrypted, so others on the network could read data and run "
            "code. Start the cluster with certificates and use tls://, or allow it by {insecure}."
        )
    return parts


def _read_scheduler_file(path: str, source: str) -> str:
    """Read the address from the file that `dask scheduler --scheduler-file` writes."""
    try:
        return str(json.loads(Path(path).read_bytes())["address"])
    except OSError as error:
        raise FitError(
            f"{source}: the scheduler file {path} cannot be read ({error.strerror}). "
            "Is the scheduler running?"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise FitError(
            f"{source}: {path} contains no address of a scheduler. Give the file of "
            "`dask scheduler --scheduler-file`."
        ) from error


def _is_loopback(host: str | None) -> bool:
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def _is_insecure(settings: Mapping[str, SourcedValue]) -> bool:
    setting = settings.get("insecure", SourcedValue("0", ""))
    answers = {"1": True, "true": True, "0": False, "false": False}
    if (text := str(setting.value).lower()) not in answers:
        raise FitError(f"{setting.source} is {setting.value!r}. Set it to 1 or 0.")
    return answers[text]


def _parse_count(settings: Mapping[str, SourcedValue], name: str) -> int | None:
    if name not in settings:
        return None
    value, source = settings[name]
    text = str(value)
    if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text)):
        raise FitError(f"{source} is {value!r}. Set it to a whole number from 1 to 99,999,999.")
    return int(text)


def _parse_worker_memory(settings: Mapping[str, SourcedValue]) -> int | None:
    if "worker_memory" not in settings:
        return None
    value, source = settings["worker_memory"]
    size = parse_memory_size(value)
    if size < _MIN_WORKER_MEMORY:
        raise FitError(f"{source} is {value!r}. Set it to a size such as 4GiB, at least 128MiB.")
    return size


def _refuse_settings(settings: list[SourcedValue], requirement: str) -> None:
    for setting in settings:
        raise FitError(f"{setting.source} needs {requirement}. Add that, or leave it out.")
