"""What a local cluster opens, and who can reach it."""

from __future__ import annotations

import psutil
import pytest

from flows.runtime import opened_executor


def listening() -> set[str]:
    own = psutil.Process()
    processes = [own, *own.children(recursive=True)]
    return {
        connection.laddr.ip
        for process in processes
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }


@pytest.mark.parametrize("workers", [None, 2])
def test_a_local_cluster_listens_on_loopback_alone(workers):
    with opened_executor("dask", workers, None) as executor:
        assert list(executor.map(abs, [-1, -2, -3])) == [1, 2, 3]
        assert listening() <= {"127.0.0.1", "::1"}


def test_worker_processes_do_not_import_the_command():
    with opened_executor("dask", 1, None) as executor:
        loaded = executor.client.run(_loaded)
    assert not any(loaded.values())


def _loaded() -> bool:
    import sys

    return "prefect" in sys.modules
