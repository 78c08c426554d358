"""Which Dask cluster a run uses: from its options, the environment or a Prefect block."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from flows.cli.options import SourcedValue
from flows.running.environment import is_server_configured
from flows.running.server import check_server
from pipeline.errors import FitError

if TYPE_CHECKING:
    from distributed.security import Security

LOCAL_CLUSTER = "local"
_SETTING_NAMES = (
    "cluster",
    "workers",
    "worker_memory",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "insecure",
)
_TLS_SETTING_NAMES = _SETTING_NAMES[3:6]
_BLOCK_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_MIN_WORKER_MEMORY = 128 << 20  # a worker that has imported its packages holds as much


@dataclass(frozen=True)
class ClusterSettings:
    """The Dask cluster of a run.

    Attributes
    ----------
    address
        Of a scheduler that runs elsewhere; None for a cluster of this command's own.
    workers
        Worker processes to start, or to wait for; None for one within this process, or any.
    worker_memory
        Bytes that each worker process has, at least.
    security
        Certificates of tls://.
    """

    address: str | None = None
    workers: int | None = None
    worker_memory: int | None = None
    security: Security | None = None


def resolve_cluster_settings(options: Mapping[str, Any]) -> ClusterSettings:
    """Settle on a cluster: options come before the environment, and that before a block.

    Raises
    ------
    FitError
        If a setting cannot be used, and before anything is started or connected to.
    """
    from_options = {
        name: SourcedValue(value, f"--{name.replace('_', '-')}")
        for name, value in options.items()
        if value is not None and value is not False
    }
    given = {**_read_environment(), **from_options}
    if (cluster := given.get("cluster")) and _is_block_name(cluster.value):
        block = _read_block(cluster)
        given = {**block, **given, "cluster": block["cluster"]}
    address = _parse_address(given)
    tls = {name: given[name] for name in _TLS_SETTING_NAMES if name in given}
    if address is None or address.scheme == "tcp":
        _refuse_settings(
            [tls[name] for name in _TLS_SETTING_NAMES if name in from_options], "--cluster tls://…"
        )
    workers, worker_memory = _parse_workers(given), _parse_worker_memory(given)
    if address is None:
        if "cluster" in given:
            workers = workers or _count_cores()
        if workers is None and worker_memory is not None:
            _refuse_settings([given["worker_memory"]], "--workers or --cluster")
        return ClusterSettings(None, workers, worker_memory)
    security = _make_security(address, tls) if address.scheme == "tls" else None
    return ClusterSettings(address.geturl(), workers, worker_memory, security)


def _make_security(address: SplitResult, tls: Mapping[str, SourcedValue]) -> Security:
    from flows.running.tls import make_security  # Dask takes its time to be imported

    return make_security(address.geturl(), tls)


def _count_cores() -> int:
    from dask.system import CPU_COUNT

    return int(CPU_COUNT)


def _read_environment() -> dict[str, SourcedValue]:
    """Read the variables that are set; an empty one is not."""
    variables = {name: f"LATENTBITS_{name.upper()}" for name in _SETTING_NAMES}
    return {
        name: SourcedValue(os.environ[variable], variable)
        for name, variable in variables.items()
        if os.environ.get(variable)
    }


def _is_block_name(cluster: str) -> bool:
    return cluster != LOCAL_CLUSTER and _BLOCK_NAME.fullmatch(cluster) is not None


def _read_block(cluster: SourcedValue) -> dict[str, SourcedValue]:
    if not is_server_configured():
        raise FitError(
            f"{cluster.source}: Expected a configured Prefect server to look up the block "
            f"{cluster.value!r} at, got none. Set PREFECT_API_URL, or give an address."
        )
    check_server()
    from flows.running.cluster_block import DaskCluster  # Prefect takes its time to be imported

    try:
        block = DaskCluster.load(cluster.value)
    except ValueError as error:
        slug = DaskCluster.get_block_type_slug()
        raise FitError(
            f"{cluster.source}: Expected a block of type {slug}, an address such as "
            f"tls://host:8786, or {LOCAL_CLUSTER}, got {cluster.value!r}, which the Prefect server does "
            "not have. Make it, or check the name."
        ) from error
    return {
        name: SourcedValue(
            value, f"block {cluster.value!r}, {'address' if name == 'cluster' else name}"
        )
        for name, value in block.settings().items()
        if value is not None
    }


def _parse_address(given: Mapping[str, SourcedValue]) -> SplitResult | None:
    """Take the address apart; None for a cluster of this command's own."""
    if "cluster" not in given or given["cluster"].value == LOCAL_CLUSTER:
        return None
    value, source = given["cluster"]
    try:
        parts = urlsplit(value)
        complete = parts.scheme in ("tcp", "tls") and parts.hostname and parts.port
    except ValueError:
        complete = False
    if not complete:
        raise FitError(
            f"{source}: Expected an address such as tls://host:8786, {LOCAL_CLUSTER}, or the name of a "
            f"block, got {value!r}."
        )
    if parts.scheme == "tcp" and not _is_loopback(parts.hostname) and not _is_insecure(given):
        raise FitError(
            f"{source}: Expected tls:// to another machine, got {value}, where anyone between "
            "could read data and run code. Start the cluster with certificates, or say --insecure."
        )
    return parts


def _is_loopback(host: str | None) -> bool:
    try:
        return ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def _is_insecure(given: Mapping[str, SourcedValue]) -> bool:
    value, source = given.get("insecure", SourcedValue("0", ""))
    answers = {"1": True, "true": True, "0": False, "false": False}
    if str(value).lower() not in answers:
        raise FitError(f"{source}: Expected 1 or 0, got {value!r}.")
    return answers[str(value).lower()]


def _parse_workers(given: Mapping[str, SourcedValue]) -> int | None:
    if "workers" not in given:
        return None
    value, source = given["workers"]
    if not str(value).isascii() or not str(value).isdigit() or int(value) < 1:
        raise FitError(f"{source}: Expected a whole number of at least 1, got {value!r}.")
    return int(value)


def _parse_worker_memory(given: Mapping[str, SourcedValue]) -> int | None:
    if "worker_memory" not in given:
        return None
    from dask.utils import parse_bytes

    value, source = given["worker_memory"]
    try:
        size = parse_bytes(value)
    except ValueError:
        size = 0
    if size < _MIN_WORKER_MEMORY:
        raise FitError(f"{source}: Expected a size such as 4GiB, at least 128MiB, got {value!r}.")
    return int(size)


def _refuse_settings(settings: list[SourcedValue], without: str) -> None:
    for given in settings:
        raise FitError(f"{given.source}: Expected {without} beside it, got none. Leave it out.")
