"""What a fit says of rows that were appended since the one before."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events import Event
from prefect.events.filters import EventFilter, EventNameFilter, EventResourceFilter

from flows import fit
from flows.cli.summary import format_drift
from flows.report.flow import format_markdown
from flows.report.tables import describe_drift
from pipeline.numerics.metrics import mean_cosine_similarity
from storage import load_artifact
from storage.dataset.writer import append_dataset
from tests.support.data import ArrayBatch, draw_probit_rows, write_arrays

N_ROWS, N_NEW, N_FEATURES = 10_000, 800, 10
NAMES = [f"f{i}" for i in range(N_FEATURES)]
SAME, LOADINGS = draw_probit_rows(N_ROWS + N_NEW, N_FEATURES, 2, seed=3)
SERIAL = ("--executor", "serial", "--no-report", "--json")


def append(path: Path, X: np.ndarray, segments: list[str] | None = None, **columns: Any) -> None:
    with append_dataset(path, NAMES) as writer:
        writer.add(ArrayBatch(X, columns=columns), None if segments is None else np.array(segments))


def fit_twice(cli, new: np.ndarray, *options: str) -> dict[str, Any]:
    """Fit; append; fit again: the manifest of that."""
    write_arrays(Path("d.zarr"), SAME[:N_ROWS], words_per_chunk=100)
    command = ("fit", "--dataset", "d.zarr", *options, *SERIAL)
    first = cli(*command)
    assert first.code == 0, first.err
    assert first.json["drift"] is None
    append(Path("d.zarr"), new)
    second = cli(*command)
    assert second.code == 0, second.err
    manifest = load_artifact(second.json["artifact"]).manifest
    assert manifest["drift"] == second.json["drift"]
    assert manifest["drift"]["path"] == str(Path(first.json["artifact"]).resolve())
    return dict(manifest)


def changed() -> np.ndarray:
    """Rows in which f5 has changed its sign, and so has every pair with it."""
    new = SAME[N_ROWS:].copy()
    new[:, 5] = 1 - new[:, 5]
    return new


SETTINGS = {
    "clipped-pca": ("loadings", "thresholds", "nll_per_bit"),
    "latent-trait": ("weights", "offsets", "log_likelihood"),
}


@pytest.mark.parametrize(
    "name", ["clipped-pca", pytest.param("latent-trait", marks=pytest.mark.matrix)]
)
def test_rows_of_the_same_model_move_by_chance(cli, name: str) -> None:
    array, margins, measure = SETTINGS[name]
    drift = fit_twice(cli, SAME[N_ROWS:], "--model", name, "--components", "2")["drift"]
    assert (drift["rows_then"], drift["rows_new"]) == (N_ROWS, N_NEW)
    assert drift["new_segments"] == drift["settings_changed"] == []
    assert drift["parameters"]["array"] == array
    assert 0.99 < drift["parameters"]["similarity"] <= 1
    moved = drift["parameters"]["largest_move"]
    assert moved["array"] == margins
    assert abs(moved["now"] - moved["before"]) < 0.05
    pairs = drift["correlations"]
    assert pairs["rms"] == pytest.approx(pairs["rms_by_chance"], rel=0.25)
    assert max(abs(pair["z"]) for pair in pairs["largest"]) < 3.5
    assert drift["likelihood"]["measure"] == measure
    assert drift["likelihood"]["rows"] == N_NEW
    assert abs(drift["likelihood"]["difference"]) < 0.02


def test_rows_of_another_model_are_seen(cli) -> None:
    drift = fit_twice(cli, changed(), "--components", "2")["drift"]
    pairs = drift["correlations"]
    assert pairs["rms"] > 3 * pairs["rms_by_chance"]
    assert all("f5" in pair["features"] and abs(pair["z"]) > 8 for pair in pairs["largest"])
    for pair in pairs["largest"]:
        i, j = (NAMES.index(name) for name in pair["features"])
        true = LOADINGS[i] @ LOADINGS[j]
        assert pair["before"] == pytest.approx(true, abs=0.06)
        assert pair["new"] == pytest.approx(-true, abs=0.2)
    assert drift["parameters"]["largest_move"]["feature"] == "f5"
    assert drift["likelihood"]["difference"] < 0  # fewer nats are lost


@pytest.mark.matrix
def test_drift_of_weighted_rows_is_that_of_repeated_rows(cli) -> None:
    times = np.arange(N_ROWS + N_NEW) % 3
    old, new = slice(N_ROWS), slice(N_ROWS, None)
    X = np.concatenate([SAME[old], changed()])
    columns = {"times": times[old]}
    write_arrays(Path("weighted.zarr"), X[old], words_per_chunk=100, columns=columns)
    write_arrays(Path("repeated.zarr"), np.repeat(X[old], times[old], axis=0), words_per_chunk=100)
    command = ("fit", "--components", "2", *SERIAL, "--dataset")
    by_times = (*command, "weighted.zarr", "--weight", "times")
    assert cli(*by_times).code == cli(*command, "repeated.zarr").code == 0
    append(Path("weighted.zarr"), X[new], times=times[new])
    append(Path("repeated.zarr"), np.repeat(X[new], times[new], axis=0))
    found, expected = cli(*by_times).json["drift"], cli(*command, "repeated.zarr").json["drift"]
    assert found["rows_new"] == np.count_nonzero(times[new])
    assert found["correlations"] == expected["correlations"]
    assert found["parameters"] == expected["parameters"]
    assert found["likelihood"] == {"note": "left out: the rows have weights"}
    append(Path("weighted.zarr"), X[new], times=times[new])
    unweighted = cli(*command, "weighted.zarr").json["drift"]
    assert unweighted["note"].endswith(" had other weights")


def test_new_segments_are_named_and_have_no_likelihood_of_their_own(cli) -> None:
    labels = np.array(["a", "b", "c"])[np.arange(N_ROWS) % 3]
    write_arrays(Path("d.zarr"), SAME[:N_ROWS], segments=labels.tolist(), words_per_chunk=100)
    blica = ("--model", "blica", "--components", "2", "--set", "regularization=20")
    command = ("fit", "--dataset", "d.zarr", *blica, *SERIAL)
    assert cli(*command).code == 0
    append(Path("d.zarr"), SAME[N_ROWS:], ["d", "c"] * (N_NEW // 2))
    done = cli(*command[:-1])
    assert "new segments 1" in " ".join(done.out.split())
    drift = load_artifact("runs/d").manifest["drift"]
    assert drift["new_segments"] == ["d"]
    assert drift["parameters"]["array"] == "mixing"
    assert drift["likelihood"]["measure"] == "composite_log_likelihood"
    pairs = drift["correlations"]
    assert pairs["rms"] == pytest.approx(pairs["rms_by_chance"], rel=0.25)


def test_only_a_fit_to_leading_rows_is_compared_with(cli) -> None:
    split = np.array(["train", "test"])[np.arange(N_ROWS) % 2]
    path = write_arrays(
        Path("d.zarr"), SAME[:N_ROWS], words_per_chunk=100, columns={"split": split}
    ).path
    command = ("fit", "--dataset", path, *SERIAL)
    assert cli(*command).json["drift"] is None
    assert cli(*command).json["drift"] is None  # the same rows
    assert cli(*command, "--split", "all").json["drift"] is None
    append(path, SAME[N_ROWS:], split=np.repeat("train", N_NEW))
    said = cli(*command, "--drift-limit", 0.1)
    note = said.json["drift"]["note"]
    assert note.startswith("not measured: the latest fit, ")
    assert note.endswith(" had another split")
    assert (said.code, said.json["alert"]) == (0, None)
    assert f"warning: Drift {note}." in said.err
    assert load_artifact(said.json["artifact"]).manifest["drift"] == {"note": note}
    assert note in format_markdown(
        load_artifact(said.json["artifact"]).manifest, [], Path("report.html")
    )
    mixture = ("--model", "bernoulli-mixture", "--components", "1")
    append(path, SAME[N_ROWS:], split=np.repeat("test", N_NEW))
    assert cli(*command, *mixture).json["drift"]["note"].endswith(" is of clipped-pca")
    write_arrays(Path("other/d.zarr"), 1 - SAME, words_per_chunk=100)
    other = cli("fit", "--dataset", "other/d.zarr", *SERIAL, *mixture, "--split", "all")
    assert other.json["drift"]["note"].endswith("had another split")
    new_names = [f"g{i}" for i in range(N_FEATURES)]
    write_arrays(Path("new/d.zarr"), SAME, words_per_chunk=100, names=new_names)
    other = cli("fit", "--dataset", "new/d.zarr", *SERIAL, *mixture).json["drift"]
    assert other["note"].endswith("has no feature with the same name and levels")


def test_features_that_both_fits_have_are_compared_by_name(cli) -> None:
    """The correlations are those of data that never had the other features."""
    command = ("fit", "--components", "2", *SERIAL, "--drift-limit", 0.05, "--dataset")
    for name in ("grown.zarr", "same.zarr"):
        write_arrays(Path(name), SAME[:N_ROWS, :8], words_per_chunk=100, names=NAMES[:8])
    first = cli(*command, "grown.zarr")
    assert cli(*command, "same.zarr").code == 0
    with append_dataset("grown.zarr", NAMES, "missing") as writer:
        writer.add(ArrayBatch(changed()))
    with append_dataset("same.zarr", NAMES[:8]) as writer:
        writer.add(ArrayBatch(changed()[:, :8]))
    grown, same = cli(*command, "grown.zarr"), cli(*command, "same.zarr")
    assert (grown.code, same.code) == (3, 3)
    drift = grown.json["drift"]
    assert (drift["new_features"], drift["absent_features"]) == (["f8", "f9"], [])
    assert drift["correlations"] == same.json["drift"]["correlations"]
    assert drift["parameters"]["largest_move"]["feature"] == "f5"
    assert "note" in drift["likelihood"]
    assert "new features 2" in format_drift(drift)
    assert ("new_features", "f8, f9") in describe_drift({"drift": drift})
    old, new = (load_artifact(done.json["artifact"]) for done in (first, grown))
    alike = mean_cosine_similarity(new["loadings"][:8], old["loadings"])
    assert drift["parameters"]["similarity"] == pytest.approx(alike, abs=1e-12)

    append(Path("grown.zarr"), SAME[N_ROWS:])
    chosen = ["f9", "f5", "f1", "f0"]
    again = cli(*command, "grown.zarr", "--features", ",".join(chosen))
    drift, last = again.json["drift"], load_artifact(again.json["artifact"])
    fitted = last.manifest["feature_names"]
    assert {*fitted} == {*chosen}
    assert drift["new_features"] == []
    assert drift["absent_features"] == [name for name in NAMES if name not in chosen]
    places = [NAMES.index(name) for name in fitted]
    moves = np.abs(last["thresholds"] - new["thresholds"][places])
    move = drift["parameters"]["largest_move"]
    assert move["feature"] == fitted[int(moves.argmax())]
    assert abs(move["now"] - move["before"]) == pytest.approx(moves.max(), abs=1e-12)
    alike = mean_cosine_similarity(last["loadings"], new["loadings"][places])
    assert drift["parameters"]["similarity"] == pytest.approx(alike, abs=1e-12)


def test_without_new_rows_of_the_split_parameters_alone_are_compared(cli) -> None:
    split = np.array(["train", "test"])[np.arange(N_ROWS) % 2]
    path = write_arrays(
        Path("d.zarr"), SAME[:N_ROWS], words_per_chunk=100, columns={"split": split}
    ).path
    command = ("fit", "--dataset", path, *SERIAL)
    cli(*command)
    append(path, SAME[N_ROWS:], split=np.repeat("test", N_NEW))
    drift = cli(*command, "--components", "3").json["drift"]
    assert drift["rows_new"] == 0
    assert drift["settings_changed"] == ["n_components"]
    assert drift["parameters"]["similarity"] == pytest.approx(2 / 3)
    assert not {"correlations", "likelihood"} & drift.keys()


def test_what_cannot_be_computed_does_not_lose_the_fit(cli, monkeypatch, warn_after_fits) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("too much moved")

    monkeypatch.setattr("flows.fitting.drift.compare_correlations", refuse)
    write_arrays(Path("d.zarr"), SAME[:N_ROWS], words_per_chunk=100)
    cli("fit", "--dataset", "d.zarr", *SERIAL)
    append(Path("d.zarr"), SAME[N_ROWS:])
    done = cli("fit", "--dataset", "d.zarr", *SERIAL)
    assert done.code == 0
    assert "ValueError: too much moved" in done.err
    assert load_artifact(done.json["artifact"]).manifest["drift"] is None


@pytest.mark.matrix
def test_what_would_cost_too_much_or_say_nothing_is_left_out(cli, monkeypatch) -> None:
    drift = fit_twice(cli, SAME[N_ROWS : N_ROWS + 3])["drift"]
    assert "too few" in drift["correlations"]["note"]
    monkeypatch.setattr("flows.fitting.drift._MAX_FEATURES", 9)
    monkeypatch.setattr("flows.fitting.drift._MAX_SCORED_ROWS", 100)
    append(Path("d.zarr"), SAME[:400])
    drift = cli("fit", "--dataset", "d.zarr", *SERIAL).json["drift"]
    assert "more than 9 features" in drift["correlations"]["note"]
    assert 60 < drift["likelihood"]["rows"] < 140
    monkeypatch.setattr("flows.fitting.drift._MAX_PARAMS_BYTES", 0)
    append(Path("d.zarr"), SAME[:100])
    drift = cli("fit", "--dataset", "d.zarr", *SERIAL).json["drift"]
    assert "left out" in drift["likelihood"]["note"]
    assert format_drift(drift).startswith("similarity ")
    told = dict(describe_drift({"drift": drift}))
    assert {"correlations", "likelihood of new rows"} <= told.keys()


@pytest.mark.matrix
def test_the_report_and_the_server_show_what_changed(cli) -> None:
    write_arrays(Path("d.zarr"), SAME[:N_ROWS], words_per_chunk=100)
    command = ("fit", "--dataset", "d.zarr", "--components", "2")
    first = cli(*command)
    assert "drift" not in first.out.replace("drift 0.", "")
    append(Path("d.zarr"), changed())
    done = cli(*command, "--report")
    told = " ".join(done.out.split())
    assert "drift similarity " in told
    assert " by chance), new rows " in told
    artifact = load_artifact("runs/d")
    page = (artifact.path / "report.html").read_text()
    text = format_markdown(artifact.manifest, [], Path("report.html"))
    for shown in (page, text):
        assert "Since the last fit" in shown
        assert "10,000 then, 800 new" in shown
        assert shown.count("moved most") == 5
        assert "f5" in shown
    del artifact.manifest["drift"]
    assert "Since the last fit" not in format_markdown(artifact.manifest, [], Path("report.html"))


def test_drift_above_the_limit_has_its_own_exit_code(cli) -> None:
    write_arrays(Path("d.zarr"), SAME[:N_ROWS], words_per_chunk=100)
    command = ("fit", "--dataset", "d.zarr", "--components", "2", "--drift-limit")
    assert cli(*command, 0.05).code == 0  # there is nothing to compare with
    append(Path("d.zarr"), changed())
    done = cli(*command, 0.05)
    assert done.code == 3, done.err
    assert "warning: Drift: correlations of the new rows moved by 0." in done.out
    assert "beyond chance; the limit is 0.05." in done.out
    shift = load_artifact("runs/d").manifest["drift"]["correlations"]
    assert shift["rms"] - shift["rms_by_chance"] > 0.05
    append(Path("d.zarr"), SAME[N_ROWS:])
    done = cli(*command, 0.05, "--json")
    assert (done.code, done.json["alert"]) == (0, None)


def test_a_feature_that_became_constant_is_drift(cli) -> None:
    write_arrays(Path("d.zarr"), SAME[:N_ROWS], words_per_chunk=100)
    command = ("fit", "--dataset", "d.zarr", "--components", "2", "--drift-limit", 0.5)
    assert cli(*command).code == 0
    new = SAME[N_ROWS:].copy()
    new[:, 5] = 1
    append(Path("d.zarr"), new)
    done = cli(*command)
    assert done.code == 3, done.err
    assert "warning: Drift: features that became constant in the new rows: f5." in done.out
    assert "became constant: f5" in " ".join(done.out.split())
    shift = load_artifact("runs/d").manifest["drift"]["correlations"]
    assert shift["became_constant"] == ["f5"]
    assert shift["pairs"] + shift["pairs_left_out"] == 45


def test_a_drift_limit_that_can_alert_nobody_is_refused_or_reported(cli, monkeypatch) -> None:
    write_arrays(Path("d.zarr"), SAME[:N_ROWS], words_per_chunk=100)
    command = ("fit", "--dataset", "d.zarr", "--drift-limit")
    for limit in ("-1", "2", "nan"):
        assert f"--drift-limit is {float(limit)}." in cli(*command, limit).check_refused()
    assert cli(*command, 0.1).code == 0
    append(Path("d.zarr"), SAME[N_ROWS : N_ROWS + 3])
    done = cli(*command, 0.1)
    assert done.code == 0
    assert "warning: Drift is not compared with the limit: left out: there are too" in done.err
    monkeypatch.setattr("flows.fitting.drift._MAX_FEATURES", 9)
    message = cli(*command, 0.1).check_refused()
    assert "compared for up to 9 features, but there are 10." in message


def test_drift_above_the_limit_is_an_event_on_the_server(cli, prefect_server, monkeypatch) -> None:
    write_arrays(Path("drifted.zarr"), SAME[:N_ROWS], words_per_chunk=100)
    options = {"dataset": "drifted.zarr", "report": False, "where": {"name": "serial"}}
    fit.fit(**options, drift_limit=0.05)
    append(Path("drifted.zarr"), changed())
    state = fit.fit(**options, drift_limit=0.05, return_state=True)
    assert (state.type, state.name) == (StateType.COMPLETED, "Completed")
    assert state.message.startswith("Drift: correlations of the new rows moved by 0.")
    artifact = state.result()["artifact"]
    event = _wait_for_event("latentbits.fit.drifted.clipped-pca")
    assert event.event == "latentbits.drift"
    assert event.payload["message"] == state.message
    assert event.payload["artifact"] == artifact
    assert load_artifact(artifact).manifest["drift"] == event.payload["drift"]
    run = f"prefect.flow-run.{state.state_details.flow_run_id}"
    assert run in [related.id for related in event.related]
    with get_client(sync_client=True) as client:
        (stored,) = client.read_flow_run_states(state.state_details.flow_run_id)[-1:]
    assert stored.message == state.message
    fit.fit(**options, drift_limit=0.05, model="bernoulli-mixture", components=1)
    append(Path("drifted.zarr"), SAME[N_ROWS:])
    state = fit.fit(**options, drift_limit=0.05, return_state=True)
    assert state.name == "Completed"
    event = _wait_for_event("latentbits.fit.drifted.clipped-pca", "latentbits.drift-not-measured")
    assert event.payload["message"].endswith(" is of bernoulli-mixture.")


def _wait_for_event(resource: str, name: str = "latentbits.drift") -> Event:
    deadline = time.monotonic() + 600
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            wanted = EventFilter(
                resource=EventResourceFilter(id=[resource]), event=EventNameFilter(name=[name])
            )
            page = client.read_events(wanted, limit=1)
            if page.events:
                return page.events[0]
            time.sleep(0.1)
    raise AssertionError(f"no event of {resource}")
