"""Flows whose parameters are the fields of the options, as Prefect's form shows them."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing, nullcontext
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.sorting import FlowRunSort
from prefect.flows import load_flow_from_entrypoint
from prefect.settings import get_current_settings
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import validate

from flows import evaluate, export, fit, ingest, neighbours, sample, transform
from flows.cli.errors import format_error
from flows.data.columns import parse_roles
from flows.evaluating.stages import EvaluateOptions
from flows.fitting.options import FitOptions
from flows.report.flow import report
from flows.report.inputs import ReportOptions
from flows.running.flow import run_stages
from pipeline.errors import ClusterLost
from pipeline.executors.base import SerialExecutor
from pipeline.models.registry import ALIASES, find_models
from storage.artifacts.artifacts import load_artifact
from storage.dataset.dataset import open_dataset
from storage.errors import DataError
from tests.support.data import draw_probit_rows, write_arrays

FILE = Path(__file__).parents[3] / "deploy" / "prefect.yaml"
FLOWS = {
    ingest.ingest: ingest.IngestOptions,
    fit.fit: FitOptions,
    transform.transform: transform.TransformOptions,
    evaluate.evaluate: EvaluateOptions,
    sample.sample: sample.SampleOptions,
    export.export: export.ExportOptions,
    neighbours.neighbours: neighbours.NeighboursOptions,
    report: ReportOptions,
}


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
def test_parameters_are_the_options_each_with_a_description_and_an_example(flow):
    schema = parameter_schema(flow).model_dump()
    assert list(schema["properties"]) == [one.name for one in fields(FLOWS[flow])]
    parts = schema["definitions"]
    parameters = [schema["properties"], *(part["properties"] for part in parts.values())]
    for group in parameters:
        assert {name for name, told in group.items() if not told.get("description")} == set()
        examples = {name: told.get("examples", [None])[0] for name, told in group.items()}
        assert {name for name, example in examples.items() if example is None} == set()
        own = {"properties": group, "definitions": parts}
        assert validate(examples, own, ignore_required=True) == []
    if "where" in schema["properties"]:
        assert {"name", "workers", "cluster", "tls_key"} <= parts["ExecutorOptions"][
            "properties"
        ].keys()


def test_the_form_of_an_ingest_lists_what_columns_and_values_are():
    roles = parameter_schema(ingest.ingest).model_dump()["definitions"]["RoleOptions"]
    assert {"long", "keep", "map", "yes", "no", "drop_constant"} <= roles["properties"].keys()
    assert roles["properties"]["duplicates"]["enum"] == ["last", "any"]


@pytest.mark.parametrize(
    ("long", "text"),
    [
        ({"row": "user", "feature": "item"}, "row=user,feature=item"),
        ({"row": ["a", "b"], "feature": "f", "value": "v"}, "row=a,row=b,feature=f,value=v"),
        ({"row": "a,b", "feature": "{x=1}", "value": None}, 'row="a,b",feature="{x=1}"'),
    ],
)
def test_long_tables_are_a_text_or_a_mapping(long, text):
    schema = parameter_schema(ingest.ingest).model_dump()
    given = {"sources": ["a.csv"], "dataset": "d.zarr", "roles": {"long": long}}
    assert validate(given, schema) == []
    assert parse_roles({"long": long}) == parse_roles({"long": text})
    assert parse_roles({"long": long}).long == text


def test_roles_that_nothing_reads_are_refused(tmp_path):
    options = ingest.IngestOptions(["a.csv"], str(tmp_path / "d.zarr"), {"maps": ["a=1,b=0"]})
    with pytest.raises(DataError, match=r"^roles: 'maps' is not a role\. Choose among "):
        ingest.prepare_ingest(options)


def test_the_form_lists_the_models_and_takes_others():
    listed, other = parameter_schema(fit.fit).model_dump()["properties"]["model"]["anyOf"]
    assert listed["enum"] == [*sorted(find_models()), *ALIASES]
    assert other == {"type": "string"}


def test_deployments_give_parameters_that_the_flows_take():
    deployments = yaml.safe_load(FILE.read_text(encoding="utf-8"))["deployments"]
    for one in deployments:
        flow = load_flow_from_entrypoint(one["entrypoint"], use_placeholder_flow=False)
        assert validate(one["parameters"], parameter_schema(flow).model_dump()) == []
    assert len(deployments) == 4


def test_the_embedded_server_asks_for_no_heartbeats(prefect_server):
    """A run ends when their thread does, which looks once a second whether to end."""
    assert get_current_settings().flows.heartbeat_frequency is None


def test_runs_by_hand_are_recorded_with_their_options(cli, prefect_server, tmp_path):
    np.save(tmp_path / "x.npy", draw_probit_rows(300, 6, 2, seed=1)[0])
    fitted = ("--dataset", "d.zarr", "--artifact", "f")
    commands = (
        ("ingest", "x.npy", "--dataset", "d.zarr"),
        ("fit", "--dataset", "d.zarr", "--set", "correlation=arcsine", "--output", "f"),
        ("transform", *fitted, "--output", "codes.zarr"),
        ("neighbours", "--dataset", "d.zarr", "--output", "nearest.zarr"),
        ("evaluate", *fitted),
        ("sample", "--artifact", "f", "--rows", 100, "--output", "sample.zarr"),
    )
    for command in commands:
        done = cli(*command)
        assert done.code == 0, done.err
    with get_client(sync_client=True) as client:
        runs = client.read_flow_runs(sort=FlowRunSort.START_TIME_DESC, limit=len(commands))
        data, fitted = (_read_artifact(client, run) for run in runs[:-3:-1])
    names = ["ingest d", "fit d", "transform d", "neighbours d", "evaluate d", "sample f"]
    assert [run.name for run in reversed(runs)] == names
    assert all(run.state.is_completed() for run in runs)
    parameters = runs[-2].parameters
    expected = {"dataset": "d.zarr", "settings": ["correlation=arcsine"], "report": False}
    assert parameters.items() >= expected.items()
    assert parameters["where"] == {"name": "serial"}
    assert parameters.keys() == {one.name for one in fields(FitOptions)}
    dataset = open_dataset(tmp_path / "d.zarr")
    assert (data.key, data.description) == ("d-dataset", "300 rows, 300 of them new")
    assert (fitted.key, dataset.digest in fitted.data) == ("d-clipped-pca-fit", True)
    for text in (str(tmp_path / "d.zarr"), dataset.digest, f"[Run](/runs/flow-run/{runs[-1].id})"):
        assert text in data.data
    assert f"[Data](/artifacts/artifact/{data.id}): `` d ``" in fitted.data
    link = f"- [Fit](/artifacts/artifact/{fitted.id}): `` {load_artifact('f').path.name} ``"
    assert f"{link}. [Run](/runs/flow-run/{runs[-2].id})" in data.data.splitlines()[-1]


def _read_artifact(client, run):
    """Read the artifact that a run with a single one has left on the server."""
    own = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
    (artifact,) = client.read_artifacts(flow_run_filter=own)
    return artifact


def test_a_command_without_prefect_writes_the_same_bytes(cli, prefect_server, tmp_path):
    """Block the import, as if Prefect were not installed."""
    write_arrays(tmp_path / "d.zarr", draw_probit_rows(300, 6, 2, seed=1)[0])
    options = ("--dataset", "d.zarr", "--executor", "serial", "--json")
    assert (recorded := cli("fit", *options, "--output", "recorded")).code == 0, recorded.err
    script = "import sys, runpy; sys.modules['prefect'] = None; sys.argv = sys.argv[1:]\n"
    script += "runpy.run_module('flows.fit', run_name='__main__', alter_sys=True)"
    alone = subprocess.run(
        [sys.executable, "-c", script, "fit", *options, "--output", "alone"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert alone.returncode == 0, alone.stderr
    assert "report" in json.loads(alone.stdout)
    one, other = (load_artifact(tmp_path / name) for name in ("recorded", "alone"))
    assert {*one} == {*other}
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


@pytest.mark.matrix
def test_an_embedded_server_records_runs_in_the_database_of_the_user(tmp_path):
    write_arrays(tmp_path / "d.zarr", draw_probit_rows(300, 6, 2, seed=1)[0])
    kept = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    chosen = {"PREFECT_HOME": str(tmp_path / "a/b"), "PREFECT_SERVER_EPHEMERAL_ENABLED": "true"}
    subprocess.run(
        [sys.executable, "-m", "flows.fit", "--dataset", "d.zarr", "--no-report"],
        cwd=tmp_path,
        env={**kept, **chosen},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    with closing(sqlite3.connect(tmp_path / "a/b/prefect.db")) as database:
        runs = database.execute("select name, state_type from flow_run").fetchall()
    assert runs == [("fit d", "COMPLETED")]


@pytest.mark.matrix
def test_a_flow_that_refuses_its_data_logs_one_line(prefect_server, tmp_path):
    """Called by its parameters, as a schedule does."""
    script = (
        "from flows.fit import fit\n"
        "from storage.errors import DataError\n"
        "try:\n    fit(dataset='none.zarr')\n"
        "except DataError:\n    print('refused')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PREFECT_LOGGING_LEVEL": "INFO"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "refused\n"
    assert "none.zarr" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("claim", "remedy"),
    [(None, "repeat the command"), (nullcontext(), "continue with --resume")],
    ids=["from the start", "resumable"],
)
def test_a_lost_cluster_names_a_remedy_that_the_command_has(claim, remedy):
    def lose_cluster(stages, progress):
        raise ClusterLost("The cluster was lost.")

    with pytest.raises(ClusterLost) as lost:
        run_stages(lambda: nullcontext(SerialExecutor()), ((), ()), lose_cluster, claim)
    assert format_error(lost.value) == f"The cluster was lost. Then {remedy}."
