"""Which cluster a run takes, and what is refused before anything is connected to."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest
from dask.system import CPU_COUNT

from flows.cli.errors import format_error
from flows.running.cluster_block import DaskCluster
from flows.running.cluster_settings import ClusterSettings
from flows.running.executors import check_executor_options
from pipeline.errors import FitError
from tests.support.cluster_processes import write_certificates

ADDRESS = "tls://127.0.0.1:8786"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificates(tmp_path_factory.mktemp("settings") / "files")


@pytest.fixture
def tls(files: Path) -> dict[str, str]:
    names = {"tls_ca": "ca.pem", "tls_cert": "node.pem", "tls_key": "node-key.pem"}
    return {setting: str(files / name) for setting, name in names.items()}


def environment(monkeypatch: pytest.MonkeyPatch, **settings: str) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(f"LATENTBITS_{name.upper()}", value)


def refusal(**where: object) -> str:
    with pytest.raises(FitError) as refused:
        check_executor_options(**where)
    message = format_error(refused.value)
    assert "\n" not in message
    return message


def test_threads_are_the_default_without_a_cluster(monkeypatch, tmp_path):
    assert check_executor_options() is None
    assert check_executor_options(name="threads") is None
    assert check_executor_options(name="dask") == ClusterSettings()
    report = str(tmp_path / "report.html")
    assert check_executor_options(performance_report=report) == ClusterSettings()
    environment(monkeypatch, workers="2")
    assert check_executor_options() == ClusterSettings(workers=2)


def test_local_takes_all_cores_unless_told_otherwise():
    assert check_executor_options(cluster="local") == ClusterSettings(workers=CPU_COUNT)
    limits = {"worker_memory": "1GiB", "worker_timeout": 9, "task_timeout": 7}
    told = check_executor_options(cluster="local", workers=3, **limits)
    assert told == ClusterSettings(
        workers=3, worker_memory=1 << 30, worker_timeout=9, task_timeout=7
    )


def test_options_come_before_the_environment(monkeypatch, tls):
    environment(monkeypatch, cluster=ADDRESS, workers="2", worker_memory="1GiB", **tls)
    found = check_executor_options()
    assert (found.address, found.workers, found.worker_memory) == (ADDRESS, 2, 1 << 30)
    assert found.security.tls_client_key == tls["tls_key"]
    assert check_executor_options(workers=5).workers == 5
    assert check_executor_options(cluster="local").address is None
    assert check_executor_options(name="serial") is None


def test_the_environment_comes_before_a_block(prefect_server, monkeypatch, tls):
    DaskCluster(address=ADDRESS, workers=7, worker_memory="2GiB", **tls).save("farm", True)
    found = check_executor_options(cluster="farm")
    assert (found.address, found.workers, found.worker_memory) == (ADDRESS, 7, 2 << 30)
    assert found.security.tls_ca_file == tls["tls_ca"]
    environment(monkeypatch, cluster="farm", workers="2")
    assert check_executor_options().workers == 2
    assert check_executor_options(workers=1).workers == 1


def test_a_block_that_is_not_there(prefect_server):
    assert "--cluster" in refusal(cluster="nowhere")


def test_a_block_without_a_server(monkeypatch, tmp_path):
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    assert "PREFECT_API_URL" in refusal(cluster="farm")


@pytest.mark.parametrize("host", ["10.0.0.7", "scheduler", "127.evil.example", "0.0.0.0"])
def test_tcp_to_another_machine_takes_a_word(host, monkeypatch):
    address = f"tcp://{host}:8786"
    assert "--insecure" in refusal(cluster=address)
    assert check_executor_options(cluster=address, insecure=True).address == address
    environment(monkeypatch, insecure="0")
    assert "--insecure" in refusal(cluster=address)
    environment(monkeypatch, insecure="1")
    assert check_executor_options(cluster=address).address == address


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "[::1]", "localhost"])
def test_tcp_on_this_machine_is_taken(host):
    assert check_executor_options(cluster=f"tcp://{host}:8786").security is None


@pytest.mark.parametrize(
    "cluster", ["host:8786", "tls://host", "http://host:1", "tls://:8786", "tcp://127.0.0.1:99999"]
)
def test_what_is_no_address(cluster):
    assert repr(cluster) in refusal(cluster=cluster)


def test_a_scheduler_file_gives_the_address(monkeypatch, tmp_path, tls):
    file = tmp_path / "of@me.json"
    file.write_text(json.dumps({"type": "Scheduler", "address": ADDRESS, "workers": {}}))
    found = check_executor_options(cluster=str(file), **tls)
    assert (found.address, found.security.tls_client_key) == (ADDRESS, tls["tls_key"])
    environment(monkeypatch, cluster=str(file), **tls)
    assert check_executor_options().address == ADDRESS
    file.write_text('{"address": "tcp://10.0.0.7:8786"}')
    assert "--insecure" in refusal(cluster=str(file))


@pytest.mark.parametrize("text", ["", '{"address": "tls', "[]", "{}", "\xff"])
def test_a_file_without_the_address_of_a_scheduler(tmp_path, text):
    file = tmp_path / "scheduler.json"
    assert "No such file" in refusal(cluster=str(file))
    file.write_text(text, encoding="latin-1")
    assert f"{file} contains no address" in refusal(cluster=str(file))


@pytest.mark.parametrize("cluster", ["tls://user:secret@host:1", "u:secret@h", "tcp://h:1?secret"])
def test_an_address_with_a_secret_is_not_shown(cluster, monkeypatch):
    message = refusal(cluster=cluster, insecure=True)
    assert message.startswith("--cluster: an address has the form tls://HOST:PORT")
    assert "secret" not in message
    environment(monkeypatch, cluster=cluster)
    assert "secret" not in refusal()


@pytest.mark.parametrize(
    "where",
    [
        {"name": "threads", "cluster": "local"},
        {"name": "serial", "tls_ca": "ca.pem"},
        {"name": "threads", "worker_memory": "1GiB"},
        {"worker_memory": "1GiB"},
        {"worker_timeout": 9},
        {"worker_timeout": 0, "workers": 2},
        {"worker_memory": "much", "workers": 2},
        {"worker_memory": "1e400GB", "workers": 2},
        {"worker_memory": "4", "workers": 2},
        {"worker_memory": "500TiB", "workers": 2},
        {"worker_timeout": 10**20, "workers": 2},
        {"cluster": "local", "tls_ca": "ca.pem"},
        {"cluster": "tcp://127.0.0.1:1", "tls_key": "key.pem"},
    ],
    ids=str,
)
def test_settings_that_cannot_be(where):
    assert "--" in refusal(**where)


@pytest.mark.parametrize("where", [{"name": "threads"}, {"name": "dask"}, {"cluster": "local"}])
def test_more_workers_than_a_machine_can_run_are_refused(monkeypatch, where):
    text = refusal(workers=99_999, **where)
    assert text.startswith(f"--workers is 99,999, but {CPU_COUNT} CPUs and")
    most = int(text.partition("enough for ")[2].split()[0])
    assert 0 < most <= 16 * CPU_COUNT
    check_executor_options(workers=most, **where)
    refusal(workers=most + 1, **where)
    environment(monkeypatch, cluster=ADDRESS)
    assert "--tls-ca" in refusal(workers=99_999)  # elsewhere, so many may exist


@pytest.mark.parametrize("workers", ["0", "many", "2.5", "-1", "9" * 5000, "99999"])
def test_a_variable_that_cannot_be_is_named(monkeypatch, workers):
    environment(monkeypatch, workers=workers)
    assert "LATENTBITS_WORKERS" in refusal()


@pytest.mark.parametrize("missing", ["tls_ca", "tls_cert", "tls_key"])
def test_tls_needs_three_files(tls, missing):
    assert f"LATENTBITS_{missing.upper()}" in refusal(cluster=ADDRESS, **{**tls, missing: None})


@pytest.mark.parametrize("setting", ["tls_ca", "tls_cert", "tls_key"])
@pytest.mark.parametrize(
    ("file", "trouble"),
    [("nowhere", "No such file"), (".", "Is a directory"), ("text", "in PEM")],
)
def test_a_file_that_cannot_be_used_is_named(tls, tmp_path, setting, file, trouble):
    (tmp_path / "text").write_text("no PEM")
    path = str(tmp_path / file)
    message = refusal(cluster=ADDRESS, **{**tls, setting: path})
    assert path in message
    assert trouble in message
    assert message.startswith(f"--{setting.replace('_', '-')}: ")


def test_a_certificate_that_has_expired(tmp_path):
    old = write_certificates(tmp_path / "old", age=timedelta(days=31))
    files = {"tls_ca": "ca.pem", "tls_cert": "node.pem", "tls_key": "node-key.pem"}
    message = refusal(cluster=ADDRESS, **{name: str(old / file) for name, file in files.items()})
    assert "valid from" in message


def test_the_key_of_another_certificate(tls, tmp_path):
    other = write_certificates(tmp_path / "other")
    message = refusal(cluster=ADDRESS, **{**tls, "tls_key": str(other / "node-key.pem")})
    assert "--tls-key" in message
