"""A Prefect block that stores the settings of a cluster, for `--cluster NAME`."""

from __future__ import annotations

from typing import Any

from prefect.blocks.core import Block
from pydantic import Field

_TIMEOUTS = ("worker_timeout", "task_timeout")


class DaskCluster(Block):
    """Settings of a Dask cluster. Certificates remain files on the machine that runs commands."""

    _block_type_name = "latentbits Dask cluster"
    _block_type_slug = "latentbits-dask-cluster"

    address: str = Field(
        default=..., description="tls://host:8786, tcp://host:8786, or local for worker processes."
    )
    tls_ca: str | None = Field(default=None, description="Path of the CA certificate.")
    tls_cert: str | None = Field(default=None, description="Path of the client certificate.")
    tls_key: str | None = Field(default=None, description="Path of that certificate's key.")
    workers: int | None = Field(
        default=None, ge=1, description="Number of workers to start, or to wait for."
    )
    worker_memory: str | None = Field(
        default=None, description="Minimum memory of each worker process, such as 4GiB."
    )
    worker_timeout: int | None = Field(
        default=None, ge=1, description="Seconds to wait for workers, and for lost ones to return."
    )
    task_timeout: int | None = Field(
        default=None,
        ge=1,
        description="Seconds without a finished task after which others get a worker's tasks.",
    )

    def settings(self) -> dict[str, Any]:
        """Return the settings by the names of the options."""
        names = ("tls_ca", "tls_cert", "tls_key", "workers", "worker_memory", *_TIMEOUTS)
        return {"cluster": self.address, **{name: getattr(self, name) for name in names}}
