"""The transform command: whose code each row has, the same bytes everywhere, kills and refusals."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from flows.data.datasets import load_fitted_model
from pipeline.data.blocks import pack_block
from pipeline.data.matching import UNKNOWN_SEGMENT
from pipeline.errors import FitError
from pipeline.models.capabilities import CanReconstruct
from pipeline.models.registry import find_model_class, find_models
from pipeline.random import RowRandom
from storage import load_artifact, open_codes, open_dataset
from storage.artifacts.artifacts import NamedArray, write_artifact
from storage.codes.codes import (
    CodeArraySpec,
    ResumableResults,
    UnfinishedCodes,
    create_codes,
    seal_codes,
)
from tests.conformance.models import FACTS
from tests.storage.conftest import files_of, write_dataset
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.fits import mark_models, write_fit

N_FITTED, N_ROWS, APPENDED, RUN = 300, 400, 70, 30


def rows() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Values, mask, segments and splits; the last rows have a segment of their own."""
    rng = np.random.default_rng(0)
    X, _ = draw_probit_rows(N_ROWS, 6, 2, seed=1)
    observed = (rng.random(X.shape) < 0.9).astype(np.uint8)
    segments = rng.choice(["night", "day", "dusk"], N_ROWS)
    segments[:3], segments[-APPENDED:] = ["day", "night", "dusk"], "new"
    return X * observed, observed, segments, np.where(rng.random(N_ROWS) < 0.3, "test", "train")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`d.zarr` with chunks of 256 slots, some appended, and what was fitted to rows of it."""
    folder = tmp_path_factory.mktemp("transform")
    X, observed, segments, split = rows()
    first, rest = slice(N_ROWS - APPENDED), slice(N_ROWS - APPENDED, None)
    for part, append in ((first, False), (rest, True)):
        columns = {"split": split[part]}
        write_dataset(
            folder / "d.zarr", X[part], observed[part], segments[part], columns,
            words_per_chunk=4, append=append,
        )  # fmt: skip
    # These segments appear in another order.
    part = slice(None, N_FITTED)
    backwards = [values[part][::-1] for values in (X, observed, segments)]
    write_dataset(folder / "fitted.zarr", *backwards, words_per_chunk=16)
    return folder


@pytest.fixture(scope="module")
def artifact(folder: Path) -> Any:
    """Path of the fit of a model."""
    dataset = open_dataset(folder / "fitted.zarr")
    return lru_cache(lambda name: write_fit(folder / name, FACTS[name].make_brief(10), dataset))


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    monkeypatch.setattr("pipeline.passes.row_ranges._MIN_ROWS", RUN)


@pytest.fixture
def transformed(cli, folder, artifact):
    """Call the command; return its summary."""

    def call(name: str, *options: object) -> dict[str, Any]:
        given = ("--dataset", folder / "d.zarr", "--artifact", artifact(name))
        done = cli("transform", *given, "--output", "z.zarr", *options, "--json")
        assert done.code == 0, done.err
        return done.json

    return call


def row_by_row(path: Path) -> dict[str, np.ndarray]:
    """Codes by the model itself, of each original row alone."""
    fitted = load_fitted_model(path)
    X, observed, segments, _ = rows()
    blocks = (
        pack_block(
            X[n : n + 1],
            observed[n : n + 1],
            fitted.segments.get(segments[n], UNKNOWN_SEGMENT),
            first_row=n,
        )
        for n in range(N_ROWS)
    )
    codes = [fitted.model.transform(fitted.params, block, RowRandom(0)) for block in blocks]
    return {name: np.concatenate([code[name] for code in codes]) for name in codes[0]}


@pytest.mark.parametrize(
    "name",
    mark_models(
        sorted(find_models()),
        "blica latent-trait",
        "autoencoder bottleneck laplacian-eigenmap noisy-or tree-mixture",
    ),
)
def test_every_row_has_its_own_code(transformed, artifact, name):
    summary = transformed(name)
    codes, expected = open_codes("z.zarr"), row_by_row(artifact(name))
    assert codes.n_chunks == -(-N_ROWS // RUN)
    assert set(codes) == set(expected)
    assert codes.dims("mean") == ("row", "component")
    for key, values in expected.items():
        stored = values.astype(np.float32) if values.dtype == np.float64 else values
        np.testing.assert_array_equal(codes[key], stored, err_msg=key)
    has_segments = bool(load_fitted_model(artifact(name)).segments)
    assert [warning.endswith(": 'new'") for warning in summary["warnings"]] == [True] * has_segments


def test_a_split_has_the_codes_of_its_rows(transformed, artifact):
    summary = transformed("blica", "--split", "test", "--dtype", "float64")
    codes, test = open_codes("z.zarr"), np.flatnonzero(rows()[3] == "test")
    assert summary["n_rows"] == codes.n_rows == len(test)
    np.testing.assert_array_equal(codes["row"], test)
    for key, values in row_by_row(artifact("blica")).items():
        np.testing.assert_array_equal(codes[key], values[test])


@pytest.mark.matrix
def test_every_executor_gives_the_same_bytes(transformed, cluster):
    made = ("--reconstruct", "probabilities")
    transformed("blica", "--executor", "serial", *made)
    serial = files_of(Path("z.zarr"))
    for options in (("--executor", "threads"), ("--cluster", cluster)):
        transformed("blica", *options, *made, "--overwrite")
        assert files_of(Path("z.zarr")) == serial, options


def test_the_table_ends_with_the_codes(cli, folder, artifact):
    given = ("--dataset", folder / "d.zarr", "--artifact", artifact("clipped-pca"))
    done = cli("transform", *given, "--output", "z.zarr")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[-1] == "codes: z.zarr"
    assert any(line.split() == ["mean", "400", "x", "2"] for line in lines)


# What codes are turned back into


def reconstructed(path: Path, codes: dict[str, np.ndarray]) -> np.ndarray:
    """P(x = 1) of each row, by the model itself."""
    fitted, (*_, segments, _) = load_fitted_model(path), rows()
    indices = np.array([fitted.segments.get(name, UNKNOWN_SEGMENT) for name in segments])
    return fitted.model.reconstruct(fitted.params, codes["mean"], indices)


@pytest.mark.parametrize(
    "name",
    mark_models(
        [name for name in sorted(find_models()) if isinstance(FACTS[name].make(), CanReconstruct)],
        "blica rbm",
        "latent-trait tree-mixture",
    ),
)
def test_rows_are_made_of_codes_again(transformed, artifact, name):
    made = artifact(name)
    codes = row_by_row(made)
    expected = reconstructed(made, codes)
    transformed(name, "--reconstruct", "probabilities")
    found = open_codes("z.zarr")
    assert set(found) == {*codes, "probabilities"}
    assert found.dims("probabilities") == ("row", "feature")
    assert found["probabilities"].dtype == np.float32
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-6)
    transformed(name, "--reconstruct", "bits", "--split", "test", "--overwrite")
    found, test = open_codes("z.zarr"), np.flatnonzero(rows()[3] == "test")
    assert found["bits"].dtype == np.uint8
    np.testing.assert_array_equal(found["bits"], expected[test] > 0.5)


def test_bits_made_of_codes_are_data_again(cli, transformed, folder):
    transformed("blica", "--reconstruct", "bits")
    found, names = open_codes("z.zarr"), open_dataset(folder / "d.zarr").feature_names
    assert cli("ingest", "z.zarr", "--dataset", "again.zarr").code == 0
    again = open_dataset("again.zarr")
    assert again.feature_names == names
    np.testing.assert_array_equal(again.dense(0)[0], found["bits"])
    refusal = cli("ingest", "z.zarr", "--dataset", "t.zarr", "--threshold", 0.3).check_refused()
    said = "the codes have mean, variance, converged, bits, but not the probabilities of all"
    assert said in refusal
    assert "--reconstruct probabilities" in refusal
    Path("z.zarr/bits/c/3/0").write_bytes(b"")
    assert (
        "bits: chunk 3 is damaged" in cli("ingest", "z.zarr", "--dataset", "o.zarr").check_refused()
    )


def test_probabilities_are_data_by_a_threshold(cli, transformed):
    transformed("clipped-pca", "--reconstruct", "probabilities")
    assert cli("ingest", "z.zarr", "--dataset", "again.zarr", "--threshold", 0.3).code == 0
    expected = open_codes("z.zarr")["probabilities"] > np.float32(0.3)
    np.testing.assert_array_equal(open_dataset("again.zarr").dense(0)[0], expected)


def test_what_is_reconstructed_resumes_to_the_same_bytes(cli, folder, artifact, transformed):
    note = ResumableResults.record_finished

    def interrupted(self: ResumableResults, checksums: list[list[int]]) -> None:
        note(self, checksums)
        if len(checksums) == 5:
            signal.raise_signal(signal.SIGINT)

    given = ("--dataset", folder / "d.zarr", "--artifact", artifact("clipped-pca"))
    made = ("--reconstruct", "bits")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ResumableResults, "record_finished", interrupted)
        assert cli("transform", *given, "--output", "z.zarr", *made).code == 130
    kept = Path(".z.zarr.unfinished/codes/bits/c/0/0")
    assert (inode := kept.stat().st_ino)
    transformed("clipped-pca", *made, "--resume")
    assert Path("z.zarr/bits/c/0/0").stat().st_ino == inode
    resumed = files_of(Path("z.zarr"))
    transformed("clipped-pca", *made, "--overwrite")
    assert files_of(Path("z.zarr")) == resumed


# Rows whose missing values are predicted


@pytest.mark.matrix
def test_missing_values_have_exact_probabilities(transformed, artifact, folder):
    """By the likelihoods of a row with either value; observed values are kept."""
    transformed("tree-mixture", "--impute", "probabilities", "--executor", "serial")
    codes, fitted = open_codes("z.zarr"), load_fitted_model(artifact("tree-mixture"))
    found = codes["imputed_probabilities"]
    assert codes.dims("imputed_probabilities") == ("row", "feature")
    assert found.dtype == np.float32
    X, observed, *_ = rows()
    np.testing.assert_array_equal(found[observed == 1], X[observed == 1])
    missing = np.argwhere(observed == 0)
    assert len(missing) > 100
    for row, feature in missing.tolist():
        both, mask = np.stack([X[row]] * 2), np.stack([observed[row]] * 2)
        both[:, feature], mask[:, feature] = [0, 1], 1
        block = pack_block(both, mask)
        nats = fitted.model.log_likelihood(fitted.params, block, RowRandom(0)).nats
        assert found[row, feature] == pytest.approx(1 / (1 + np.exp(nats[0] - nats[1])), rel=1e-6)
    serial = files_of(Path("z.zarr"))
    transformed("tree-mixture", "--impute", "probabilities", "--executor", "threads", "--overwrite")
    assert files_of(Path("z.zarr")) == serial


def test_imputed_bits_are_data_without_missing_values(cli, transformed):
    transformed("bernoulli-mixture", "--impute", "probabilities", "--split", "test")
    probabilities = open_codes("z.zarr")["imputed_probabilities"]
    transformed("bernoulli-mixture", "--impute", "bits", "--split", "test", "--overwrite")
    assert cli("ingest", "z.zarr", "--dataset", "complete.zarr").code == 0
    found, mask = open_dataset("complete.zarr").dense(0)
    assert mask.all()
    X, observed, _, split = rows()
    X, observed = X[split == "test"], observed[split == "test"]
    np.testing.assert_array_equal(found, np.where(observed == 1, X, probabilities > 0.5))


def test_rows_that_are_both_reconstructed_and_imputed_are_refused_as_data(cli, transformed):
    transformed("bernoulli-mixture", "--impute", "bits", "--reconstruct", "bits")
    refusal = cli("ingest", "z.zarr", "--dataset", "again.zarr").check_refused()
    assert "have both bits and imputed_bits. Transform again with only one of" in refusal


def test_imputed_probabilities_that_are_no_data_name_a_remedy(cli, tmp_path):
    levels = pd.Categorical.from_codes(np.arange(30) % 3, ["a", "b", "c"], ordered=True)
    frame = pd.DataFrame({"x": levels, "y": np.arange(30) % 2})
    lb.TreeMixture(n_components=1).fit(frame).fitted_.save(tmp_path / "fit")
    lb.from_dataframe(frame, path=tmp_path / "d.zarr")
    command = ("--dataset", tmp_path / "d.zarr", "--artifact", tmp_path / "fit")
    cli("transform", *command, "--impute", "probabilities", "--output", "z.zarr")
    ingest = ("ingest", "z.zarr", "--dataset", "again.zarr")
    refusal = cli(*ingest).check_refused()
    assert "not the levels of all features. Transform again with --impute levels." in refusal
    refusal = cli(*ingest, "--threshold", 0.5).check_refused()
    assert "Transform with --impute levels, and leave out --threshold." in refusal


def test_a_model_that_cannot_impute_is_refused(refused, artifact):
    message = refused("--impute", "bits", artifact=artifact("latent-trait"), output="new/z.zarr")
    assert "error: The model latent-trait cannot compute exact probabilities of missing" in message
    assert message.endswith("Fit another model, such as tree-mixture or hidden-tree.")
    assert not Path("new").exists()


# What interruptions leave

KILLED_AFTER_FIVE_RUNS = """
import os, signal, sys
import pipeline.passes.row_ranges
from flows import transform
from flows.cli.app import run_app
from storage.codes.codes import ResumableResults

note = ResumableResults.record_finished
def deadly(self, checksums):
    note(self, checksums)
    if len(self.read_finished()) == 5:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    pipeline.passes.row_ranges._MIN_ROWS = 30
    ResumableResults.record_finished = deadly
    run_app(transform.app, sys.argv[1:])
"""


def write_codes(path: Path) -> Path:
    """Codes of a single row."""
    writer = create_codes(path, {"mean": CodeArraySpec((), (), "float32")}, 1, 1)
    seal_codes(writer, [writer(0, {"mean": np.ones(1, np.float32)})], {})
    return path


def inodes(folder: Path) -> list[int]:
    """Of the chunks of the first five runs: another one is another file."""
    return [(folder / "mean" / "c" / str(key) / "0").stat().st_ino for key in range(5)]


@pytest.mark.matrix
def test_a_killed_transform_resumes_to_the_same_bytes(transformed, folder, artifact, monkeypatch):
    before = files_of(write_codes(Path("z.zarr")))
    more = ("--split", "train", "--overwrite")
    given = ("--dataset", folder / "d.zarr", "--artifact", artifact("latent-trait"))
    command = [*given, "--output", "z.zarr", "--executor", "serial", *more]
    program = [sys.executable, "-c", KILLED_AFTER_FIVE_RUNS, *map(str, command)]
    assert subprocess.run(program, timeout=600).returncode == -signal.SIGKILL
    assert files_of(Path("z.zarr")) == before  # what is to be replaced is whole until then
    codes = Path(".z.zarr.unfinished/codes")
    (codes / "mean/c/1/0").write_bytes(b"")  # lost by the disk, though noted
    killed, resumed, publish = inodes(codes), [], UnfinishedCodes.publish

    def watched(self: UnfinishedCodes, overwrite: bool) -> None:
        resumed.extend(inodes(codes))
        assert len(self.results.read_finished()) == len([*(codes / "mean/c").iterdir()])
        publish(self, overwrite)

    monkeypatch.setattr(UnfinishedCodes, "publish", watched)
    transformed("latent-trait", *more, "--resume")
    assert [a == b for a, b in zip(killed, resumed, strict=True)] == [True, False, *[True] * 3]
    after = files_of(Path("z.zarr"))
    transformed("latent-trait", *more)
    assert files_of(Path("z.zarr")) == after != before
    assert not codes.parent.exists()


def test_ctrl_c_keeps_what_is_done(cli, folder, artifact, transformed, monkeypatch):
    given = ("--dataset", folder / "d.zarr", "--artifact", artifact("clipped-pca"))
    command = ("transform", *given, "--output", "z.zarr")
    with monkeypatch.context() as patch:
        patch.setattr(
            ResumableResults, "record_finished", lambda *_: signal.raise_signal(signal.SIGINT)
        )
        done = cli(*command)
    assert (done.code, done.message, done.out) == (130, "error: interrupted", "")
    assert "Traceback" not in done.err
    assert not [*Path().iterdir()]  # no run was done
    note = ResumableResults.record_finished

    def interrupted(self: ResumableResults, checksums: list[int]) -> None:
        note(self, checksums)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(ResumableResults, "record_finished", interrupted)
        assert cli(*command).code == 130
    assert [path.name for path in Path().iterdir()] == [".z.zarr.unfinished"]
    (mark := Path(".z.zarr.unfinished/codes/mark")).touch()
    transformed("clipped-pca")  # without --resume it is begun anew
    assert not mark.exists()
    assert not Path("z.zarr/mark").exists()
    open_codes("z.zarr").verify()


# What it refuses


@pytest.fixture
def refused(cli, folder, artifact, tmp_path):
    """Call the command, which must refuse and leave no new file; return its message."""

    def call(*options: object, **given: object) -> str:
        paths = {"dataset": folder / "d.zarr", "artifact": artifact("blica"), "output": "z.zarr"}
        before = set(tmp_path.rglob("*"))
        named = [word for name, path in {**paths, **given}.items() for word in (f"--{name}", path)]
        done = cli("transform", *named, *options)
        assert done.code == 2, (done.code, done.out, done.err)
        assert "Traceback" not in done.err
        assert not set(tmp_path.rglob("*")) - before
        return done.message

    return call


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["f0", "f1", "g", "f3", "f4", "f5"], "Feature 3 is 'g', but 'f2' in "),
        (["f0", "f1", "f2"], "Feature 4 is missing, but 'f3' in "),
        (["f0", "f1", "f2", "f3", "f4", "i5", "h"], "There is no feature 'f5', which is in "),
    ],
)
def test_other_features(refused, tmp_path, names, expected):
    X = np.random.default_rng(0).integers(0, 2, (20, len(names)), np.uint8)
    write_arrays(tmp_path / "o.zarr", X, names=names)
    assert f"o.zarr: {expected}" in refused(dataset="o.zarr")


def changed(artifact: Path, target: Path, **manifest: Any) -> Path:
    """A copy of an artifact that records something else."""
    found = load_artifact(artifact)
    arrays = {name: NamedArray(found.dims(name), found[name]) for name in found}
    return write_artifact(target, arrays, {**found.manifest, **manifest})


def test_an_artifact_of_an_unknown_model(refused, artifact, tmp_path):
    other = changed(artifact("blica"), tmp_path / "a", model="nobody")
    message = refused(artifact=other)
    assert "'nobody'" in message
    assert "Upgrade" in message


def test_an_artifact_with_a_setting_that_is_gone(refused, artifact, tmp_path):
    made = artifact("latent-trait")
    recorded = load_artifact(made).manifest["hyperparameters"]
    of_before = {**recorded, "estimator": "variational", "polish": "quadrature"}
    other = changed(made, tmp_path / "a", hyperparameters=of_before)
    message = refused(artifact=other)
    assert "another version of latent-trait, whose settings differ: polish. Fit again." in message


def test_an_artifact_with_unknown_settings_or_arrays(refused, artifact, tmp_path):
    other = changed(artifact("blica"), tmp_path / "a", hyperparameters={"speed": 3})
    assert "version of blica, whose settings differ" in (message := refused(artifact=other))
    assert "speed" in message
    other = changed(
        artifact("clipped-pca"), tmp_path / "b", model="latent-trait", hyperparameters={}
    )
    assert "version of latent-trait, whose arrays differ" in (message := refused(artifact=other))
    assert "eigenvalues" in message
    assert "weights" in message


def test_statistics_are_no_fit(refused, tmp_path):
    write_artifact(tmp_path / "s", {"ones": NamedArray(("feature",), np.ones(6))}, {})
    assert "This artifact is not from a fit" in refused(artifact=tmp_path / "s")


def test_a_newer_or_damaged_artifact(refused, artifact, tmp_path):
    newer = Path(shutil.copytree(artifact("blica"), tmp_path / "newer"))
    manifest = json.loads((newer / "manifest.json").read_text())
    (newer / "manifest.json").write_text(json.dumps({**manifest, "format_version": 99}))
    assert "Upgrade latentbits" in (message := refused(artifact=newer))
    assert "99" in message
    damaged = Path(shutil.copytree(artifact("blica"), tmp_path / "damaged"))
    (damaged / "mixing" / "c" / "0" / "0").unlink()
    assert "mixing is damaged or missing" in refused(artifact=damaged)


def test_a_place_that_is_taken(refused, folder, tmp_path):
    write_codes(tmp_path / "z.zarr")
    assert "z.zarr already exists" in (message := refused())
    assert "--overwrite" in message
    assert "z.zarr already exists" in refused("--resume")
    shutil.copytree(folder / "d.zarr", tmp_path / "d.zarr")
    assert "is not codes, so it is not replaced" in refused("--overwrite", output="d.zarr")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (("--split", "valid"), "'valid'"),
        (("--dtype", "int8"), "--dtype"),
        (("--seed", -1), "--seed"),
        (("--workers", 0), "--workers"),
        (("--reconstruct", "rows"), "--reconstruct"),
        (("--impute", "rows"), "--impute"),
        (("--cluster", "tcp://127.0.0.1:1"), "127.0.0.1:1"),
    ],
)
def test_options_that_cannot_be(refused, monkeypatch, options, word):
    monkeypatch.setattr("flows.running.tls.CONNECT_SECONDS", 0.5)
    assert word in refused(*options, output="new/z.zarr")


def test_a_model_that_turns_no_codes_back(refused, folder):
    model = find_model_class("tests.models.neighbours:Neighbours")(n_components=2)
    other = write_fit(folder / "neighbours", model, open_dataset(folder / "fitted.zarr"))
    message = refused("--reconstruct", "bits", artifact=other)
    assert "cannot reconstruct features from codes" in message
    assert "The model neighbours cannot reconstruct features from codes" in message


def test_a_damaged_chunk_of_the_dataset(refused, folder, tmp_path):
    other = Path(shutil.copytree(folder / "d.zarr", tmp_path / "o.zarr"))
    (other / "bits" / "c" / "0" / "0").unlink()
    assert "bits: chunk 0 is missing" in refused(dataset=other)


def test_scores_of_a_trait_are_chosen_and_rows_without_one_are_counted(
    cli: Any, tmp_path: Path
) -> None:
    """Rows of the same answers throughout, one with none, and a reversed item."""
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((300, 6)) + rng.standard_normal((300, 1)) > 0).astype(np.uint8)
    X[:, 5] = 1 - X[:, 5]
    X[0], X[1, :5], X[1, 5] = [1, 1, 1, 1, 1, 0], 0, 1
    observed = np.ones_like(X)
    observed[2], observed[3, 0] = [0, 0, 0, 0, 0, 1], 0
    dataset = write_arrays(tmp_path / "d.zarr", X * observed, observed).path
    fit = ("--dataset", dataset, "--model", "latent-trait", "--components", 1, "--no-report")
    assert (done := cli("fit", *fit, "--output", tmp_path / "r")).code == 0, done.err
    line = ("--dataset", dataset, "--artifact", tmp_path / "r", "--dtype", "float64")
    for kind in ("map", "ml", "wle", "sum"):
        done = cli("transform", *line, "--scores", kind, "--output", tmp_path / f"{kind}.csv")
        assert done.code == 0, done.err
        lines = (tmp_path / f"{kind}.csv").read_text().splitlines()
        suffix = "" if kind == "sum" else "_1"
        names = lines[0].replace('"', "").split(",")
        assert names[1:3] == [f"score{suffix}", f"standard_error{suffix}"]
        assert ("is_finite" in names) == (kind in ("ml", "wle"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = lb.transform(str(tmp_path / "r"), str(dataset), scores=kind)
        assert any("no ml score" in str(warning.message) for warning in caught) == (kind == "ml")
        expected = [float(np.ravel(found[name][3])[0]) for name in ("score", "standard_error")]
        assert [float(value) for value in lines[4].split(",")[1:3]] == pytest.approx(expected)
        if kind == "sum":
            assert [float(text.split(",")[1]) for text in lines[1:3]] == [6, 0]
        if kind == "ml":
            text = " ".join(done.out.split())
            n = sum(line.endswith("false") for line in lines)
            assert n >= 3
            assert f"{n} rows have no ml score" in text
            assert "wle or sum scores them too" in text
    refused = cli("transform", *line, "--scores", "ml", "--person-fit", "--output", tmp_path / "x")
    assert refused.code == 2
    assert "--scores ml cannot be combined with --person-fit" in " ".join(refused.err.split())


def test_models_without_traits_refuse_scores_by_name() -> None:
    X = np.random.default_rng(0).integers(0, 2, (50, 3))
    fitted = lb.fit(X, "bernoulli-mixture", components=2)
    with pytest.raises(FitError, match="bernoulli-mixture has no wle scores"):
        lb.transform(fitted, X, scores="wle")
    with pytest.raises(FitError, match="scores must be 'eap'"):
        lb.transform(fitted, X, scores="best")
