"""Which Dask cluster a run uses: from its options, the environment or a Prefect block."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from flows.cli.options import Given
from flows.running.environment import server_configured
from flows.running.server import check_server
from pipeline.errors import FitError

if TYPE_CHECKING:
    from distributed.security import Security

LOCAL = "local"
_SETTINGS = ("cluster", "workers", "worker_memory", "tls_ca", "tls_cert", "tls_key", "insecure")
_TLS = _SETTINGS[3:6]
_BLOCK_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_LEAST_MEMORY = 128 << 20  # a worker that has imported its packages holds as much


@dataclass(frozen=True)
class Cluster:
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


def settled(options: Mapping[str, Any]) -> Cluster:
    """Settle on a cluster: options come before the environment, and that before a block.

    Raises
    ------
    FitError
        If a setting cannot be used, and before anything is started or connected to.
    """
    from_options = {
        name: Given(value, f"--{name.replace('_', '-')}")
        for name, value in options.items()
        if value is not None and value is not False
    }
    given = {**_from_environment(), **from_options}
    if (cluster := given.get("cluster")) and _is_name(cluster.value):
        block = _from_block(cluster)
        given = {**block, **given, "cluster": block["cluster"]}
    address = _address(given)
    tls = {name: given[name] for name in _TLS if name in given}
    if address is None or address.scheme == "tcp":
        _refuse([tls[name] for name in _TLS if name in from_options], "--cluster tls://…")
    workers, worker_memory = _workers(given), _worker_memory(given)
    if address is None:
        if "cluster" in given:
            workers = workers or _cores()
        if workers is None and worker_memory is not None:
            _refuse([given["worker_memory"]], "--workers or --cluster")
        return Cluster(None, workers, worker_memory)
    security = _security(address, tls) if address.scheme == "tls" else None
    return Cluster(address.geturl(), workers, worker_memory, security)


def _security(address: SplitResult, tls: Mapping[str, Given]) -> Security:
    from flows.running.tls import security_of  # Dask takes its time to be imported

    return security_of(address.geturl(), tls)


def _cores() -> int:
    from dask.system import CPU_COUNT

    return int(CPU_COUNT)


def _from_environment() -> dict[str, Given]:
    """Read the variables that are set; an empty one is not."""
    variables = {name: f"LATENTBITS_{name.upper()}" for name in _SETTINGS}
    return {
        name: Given(os.environ[variable], variable)
        for name, variable in variables.items()
        if os.environ.get(variable)
    }


def _is_name(cluster: str) -> bool:
    return cluster != LOCAL and _BLOCK_NAME.fullmatch(cluster) is not None


def _from_block(cluster: Given) -> dict[str, Given]:
    if not server_configured():
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
            f"tls://host:8786, or {LOCAL}, got {cluster.value!r}, which the Prefect server does "
            "not have. Make it, or check the name."
        ) from error
    return {
        name: Given(value, f"block {cluster.value!r}, {'address' if name == 'cluster' else name}")
        for name, value in block.settings().items()
        if value is not None
    }


def _address(given: Mapping[str, Given]) -> SplitResult | None:
    """Take the address apart; None for a cluster of this command's own."""
    if "cluster" not in given or given["cluster"].value == LOCAL:
        return None
    value, source = given["cluster"]
    try:
        parts = urlsplit(value)
        complete = parts.scheme in ("tcp", "tls") and parts.hostname and parts.port
    except ValueError:
        complete = False
    if not complete:
        raise FitError(
            f"{source}: Expected an address such as tls://host:8786, {LOCAL}, or the name of a "
            f"block, got {value!r}."
        )
    if parts.scheme == "tcp" and not _is_loopback(parts.hostname) and not _insecure(given):
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


def _insecure(given: Mapping[str, Given]) -> bool:
    value, source = given.get("insecure", Given("0", ""))
    answers = {"1": True, "true": True, "0": False, "false": False}
    if str(value).lower() not in answers:
        raise FitError(f"{source}: Expected 1 or 0, got {value!r}.")
    return answers[str(value).lower()]


def _workers(given: Mapping[str, Given]) -> int | None:
    if "workers" not in given:
        return None
    value, source = given["workers"]
    if not str(value).isascii() or not str(value).isdigit() or int(value) < 1:
        raise FitError(f"{source}: Expected a whole number of at least 1, got {value!r}.")
    return int(value)


def _worker_memory(given: Mapping[str, Given]) -> int | None:
    if "worker_memory" not in given:
        return None
    from dask.utils import parse_bytes

    value, source = given["worker_memory"]
    try:
        size = parse_bytes(value)
    except ValueError:
        size = 0
    if size < _LEAST_MEMORY:
        raise FitError(f"{source}: Expected a size such as 4GiB, at least 128MiB, got {value!r}.")
    return int(size)


def _refuse(settings: list[Given], without: str) -> None:
    for given in settings:
        raise FitError(f"{given.source}: Expected {without} beside it, got none. Leave it out.")
