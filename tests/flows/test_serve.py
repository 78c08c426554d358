"""`flows.serve` takes the deployments of prefect.yaml, all of them and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import prefect
import pytest
import yaml
from prefect.client.orchestration import get_client

from flows import serve
from flows.cli.app import run_app
from storage.errors import DataError

FILE = Path(__file__).parents[2] / "deploy" / "prefect.yaml"
PLACES = {"LATENTBITS_INCOMING": "s3://b/in", "LATENTBITS_DATA": "/data"}


@pytest.fixture
def places(monkeypatch):
    for name, value in PLACES.items():
        monkeypatch.setenv(name, value)


def test_every_deployment_is_served_as_the_file_says(places):
    text = FILE.read_text(encoding="utf-8")
    for name, value in PLACES.items():
        text = text.replace("{{ $" + name + " }}", value)
    told = yaml.safe_load(text)["deployments"]
    served = serve.load_deployments(FILE)
    assert [one.name for one in served] == [one["name"] for one in told]
    for one, said in zip(served, told, strict=True):
        assert one.entrypoint == said["entrypoint"]
        assert one.parameters == said["parameters"]
        assert (one.tags, one.description) == (said["tags"], said["description"])
        crons = [schedule.schedule.cron for schedule in one.schedules or []]
        assert crons == [schedule["cron"] for schedule in said.get("schedules", [])]
        assert len(one.triggers) == len(said.get("triggers", []))
        for trigger in one.triggers:
            assert trigger.expect == {"prefect.flow-run.Completed"}
            assert trigger.match_related["prefect.resource.name"] == ["votes-fit"]
        assert one.concurrency_limit == 1
        assert one.concurrency_options.collision_strategy == "ENQUEUE"


def test_intervals_are_seconds_as_prefect_reads_them(tmp_path):
    file = tmp_path / "prefect.yaml"
    one = {"name": "n", "entrypoint": "flows.fit.fit", "schedules": [{"interval": 30}]}
    file.write_text(yaml.safe_dump({"deployments": [one]}))
    (served,) = serve.load_deployments(file)
    assert served.schedules[0].schedule.interval == timedelta(seconds=30)


def test_a_variable_that_is_not_set_is_named(monkeypatch):
    monkeypatch.setenv("LATENTBITS_DATA", "/data")
    monkeypatch.delenv("LATENTBITS_INCOMING", raising=False)
    with pytest.raises(DataError, match="variables LATENTBITS_INCOMING are not set"):
        serve.load_deployments(FILE)


@pytest.mark.parametrize("text", ["", "deployments", "deployments: [", "other: 1"])
def test_what_is_no_prefect_yaml_is_refused(tmp_path, text):
    file = tmp_path / "prefect.yaml"
    file.write_text(text)
    with pytest.raises(DataError, match=r"is not a prefect\.yaml with deployments"):
        serve.load_deployments(file)


def write_deployments(tmp_path: Path, **changes: object) -> Path:
    """Write a file with a good deployment, and a second one with changes."""
    good = {"name": "n", "entrypoint": "flows.fit.fit", "parameters": {"dataset": "d"}}
    entries = [good, {**good, "name": "m", **changes}]
    file = tmp_path / "prefect.yaml"
    file.write_text(yaml.safe_dump({"deployments": entries}), encoding="utf-8")
    return file


@pytest.mark.parametrize("components", [20, "20", "auto"])
def test_components_may_be_a_number(tmp_path, components):
    file = write_deployments(tmp_path, parameters={"dataset": "d", "components": components})
    assert serve.load_deployments(file)[1].parameters["components"] == components


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"parameters": {"seed": "x"}}, "the parameter seed is 'x', which fit refuses."),
        ({"parameters": {"sed": 1}}, "fit has no parameter 'sed'. Choose among dataset, "),
        ({"entrypoint": "flows.fit.none"}, "'none' not found in 'flows.fit'"),
        ({"schedules": [{"often": True}]}, "often"),
        ({"schedules": [{"cron": "0 2 * *x"}]}, 'Invalid cron string: "0 2 * *x"'),
        ({"schedules": [{"cron": "0 2 * * *", "timezone": "UTX"}]}, "timezone"),
        ({"concurrency_limit": {"limit": "x"}}, "limit: Input should be a valid integer"),
    ],
)
def test_a_deployment_that_cannot_be_made_is_named(tmp_path, changes, reason):
    file = write_deployments(tmp_path, **changes)
    with pytest.raises(DataError) as refused:
        serve.load_deployments(file)
    message = str(refused.value)
    assert message.startswith(f"{file}: deployment 'm': ")
    assert reason in message
    assert "\n" not in message


def test_a_file_is_checked_without_a_server(tmp_path, capsys, places):
    with pytest.raises(SystemExit) as leaving:
        run_app(serve.app, ["--file", str(FILE), "--check"])
    assert not leaving.value.code
    assert capsys.readouterr().out == f"{FILE}: 4 deployments\n"
    wrong = write_deployments(tmp_path, parameters={"resum": True})
    with pytest.raises(SystemExit) as leaving:
        run_app(serve.app, ["--file", str(wrong), "--check"])
    assert leaving.value.code == 2
    assert "deployment 'm': fit has no parameter 'resum'." in capsys.readouterr().err


@pytest.mark.matrix
def test_prefect_deploys_all_or_nothing_as_often_as_wanted(places, prefect_server, tmp_path):
    text = FILE.read_text(encoding="utf-8").replace("components: auto", "components: 20")
    file, scripts = tmp_path / "prefect.yaml", Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}

    def deploy(content: str) -> subprocess.CompletedProcess[str]:
        file.write_text(content, encoding="utf-8")
        command = ["sh", FILE.parent / "setup.sh", file]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    with get_client(sync_client=True) as client:
        refused = deploy(text.replace("resume: true", "resum: true"))
        assert refused.returncode == 2
        assert f"{file}: deployment 'votes-fit': fit has no parameter 'resum'." in refused.stderr
        assert "Traceback" not in refused.stderr
        assert client.read_deployments() == []
        try:
            for _ in range(2):
                done = deploy(text)
                assert done.returncode == 0, done.stderr
                found = {one.name: one for one in client.read_deployments()}
                assert {*found} == {f"votes-{x}" for x in ("ingest", "fit", "transform", "report")}
                assert found["votes-fit"].parameters["components"] == 20
                assert client.request("POST", "/automations/count").json() == 4
        finally:
            for one in client.read_deployments():
                client.delete_deployment(one.id)


def test_a_server_is_needed(monkeypatch, tmp_path, capsys):
    for name in ("PREFECT_API_URL", "PREFECT_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as leaving:
        run_app(serve.app, ["--file", str(FILE)])
    assert leaving.value.code == 2
    assert "PREFECT_API_URL: schedules need a Prefect server" in capsys.readouterr().err


def test_one_run_at_a_time(places, prefect_server, monkeypatch):
    given = {}
    monkeypatch.setattr(prefect, "serve", lambda *served, **more: given.update(more, n=len(served)))
    with pytest.raises(SystemExit) as leaving:
        run_app(serve.app, ["--file", str(FILE)])
    assert not leaving.value.code
    assert given == {"limit": 1, "n": 4}
