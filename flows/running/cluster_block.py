"""A cluster's settings, kept on a Prefect server under a name: `--cluster NAME`."""

from __future__ import annotations

from typing import Any

from prefect.blocks.core import Block
from pydantic import Field


class DaskCluster(Block):
    """A Dask cluster for latentbits. Certificates stay in files where the command runs."""

    _block_type_name = "latentbits Dask cluster"
    _block_type_slug = "latentbits-dask-cluster"

    address: str = Field(
        default=..., description="tls://host:8786, tcp://host:8786, or local for processes."
    )
    tls_ca: str | None = Field(default=None, description="Path of the CA's file.")
    tls_cert: str | None = Field(default=None, description="Path of the certificate to show.")
    tls_key: str | None = Field(default=None, description="Path of that certificate's key.")
    workers: int | None = Field(
        default=None, ge=1, description="Worker processes to start, or to wait for."
    )
    worker_memory: str | None = Field(
        default=None, description="Memory that each worker process has at least, such as 4GiB."
    )

    def settings(self) -> dict[str, Any]:
        """Give the settings by the names of the options."""
        names = ("tls_ca", "tls_cert", "tls_key", "workers", "worker_memory")
        return {"cluster": self.address, **{name: getattr(self, name) for name in names}}
