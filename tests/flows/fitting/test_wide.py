"""Clipped PCA of wide data from the command line: strips on disk, resumed, damaged, exported."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.csv
import pytest

from flows import fit
from pipeline.evaluation import records
from pipeline.fitting import pair_work as pairs
from pipeline.models.clipped_pca import ClippedPCA, model, strips
from storage.artifacts.artifacts import load_artifact
from storage.dataset.dataset import open_dataset
from storage.dataset.writer import append_dataset, create_dataset
from storage.errors import DataError
from tests.support.data import ArrayBatch, draw_probit_rows, write_arrays
from tests.support.faults import flip_middle_bit

N_FEATURES, HEIGHT = 150, 40

IN_STRIPS = f"""
from pipeline.fitting import pair_work as pairs
from pipeline.models.clipped_pca import model
model.MAX_SQUARE_FEATURES = 100
pairs.choose_strip_height = lambda *of: {HEIGHT}
"""
KILLED = f"""
import os, signal, sys
from flows import fit
from flows.cli.app import run_app
from flows.fitting import stages
from storage.codes.codes import ResumableResults
{IN_STRIPS}

def kill(*given):
    os.kill(os.getpid(), signal.SIGKILL)

note = ResumableResults.record_finished
def deadly(self, checksums):
    note(self, checksums)
    if len(self.read_finished()) == 2:
        kill()

replaced = stages.replace_folder
def deadly_move(new, target):
    if new.name == "artifact":
        kill()
    replaced(new, target)

if __name__ == "__main__":
    if sys.argv[1] == "strip":
        ResumableResults.record_finished = deadly
    else:
        stages.replace_folder = deadly_move
    run_app(fit.app, sys.argv[2:])
"""


@pytest.fixture(autouse=True)
def in_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_SQUARE_FEATURES", 100)
    monkeypatch.setattr(pairs, "choose_strip_height", lambda *of: HEIGHT)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    X, _ = draw_probit_rows(900, N_FEATURES, 2, seed=1)
    observed = (np.random.default_rng(1).random(X.shape) < 0.98).astype(np.uint8)
    return write_arrays(tmp_path / "d.zarr", X * observed, observed, words_per_chunk=4).path


@pytest.fixture
def fitted(cli: Any, data: Path) -> Callable[..., dict[str, bytes]]:
    def call(*more: Any) -> dict[str, bytes]:
        done = cli("fit", "--dataset", data, "--components", 2, "--json", *more)
        assert done.code == 0, done.err
        artifact = load_artifact(done.json["artifact"])
        assert artifact.pairs is not None
        assert not Path("runs/d/.unfinished").exists()
        arrays = {name: a.tobytes() for name, a in artifact.items()}
        return arrays | {name: a.tobytes() for name, a in artifact.pairs.items()}

    return call


@pytest.fixture
def tabulated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first feature of every strip that was counted."""
    found, tabulate = [], ClippedPCA.tabulate

    def noting(self: Any, params: Any, working: Any, features: slice, *more: Any) -> Any:
        if features.start < features.stop:
            found.append(features.start)
        return tabulate(self, params, working, features, *more)

    monkeypatch.setattr(ClippedPCA, "tabulate", noting)
    return found


@pytest.mark.matrix
def test_strips_in_the_artifact_are_the_squares_of_a_narrow_fit(
    cli: Any, data: Path, fitted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted("--output", "strips")
    monkeypatch.setattr(model, "MAX_SQUARE_FEATURES", N_FEATURES)
    assert cli("fit", "--dataset", data, "--components", 2, "--output", "square").code == 0
    wide, narrow = load_artifact("strips"), load_artifact("square")
    assert narrow.pairs is None
    assert "correlation" not in wide
    for name in ("correlation", "status"):
        square = np.triu(wide.pairs[name])
        np.testing.assert_allclose(square, np.triu(narrow[name]), atol=1e-7)
    np.testing.assert_allclose(wide["loadings"], narrow["loadings"], atol=1e-5)
    for path in ("strips", "square"):
        given = ("--artifact", path, "--what", "correlations", "--output", f"{path}.csv")
        assert cli("export", *given).code == 0
    one, other = (pyarrow.csv.read_csv(f"{path}.csv").to_pydict() for path in ("strips", "square"))
    assert len(one["feature_1"]) == N_FEATURES * (N_FEATURES - 1) // 2
    for name in ("feature_1", "feature_2", "status"):
        assert one[name] == other[name]
    np.testing.assert_allclose(one["correlation"], other["correlation"], atol=1e-7)


@pytest.mark.matrix
def test_the_same_bytes_everywhere(fitted: Any, cluster: str) -> None:
    expected = fitted()
    for where in (("--executor", "threads"), ("--cluster", cluster)):
        assert fitted(*where) == expected


@pytest.mark.matrix
def test_an_object_store_holds_what_a_disk_holds(fitted: Any, s3: str) -> None:
    expected = fitted()
    assert fitted("--output", f"{s3}/runs", "--executor", "threads") == expected


def killed_at(where: str, data: Path) -> Path:
    given = ("--dataset", data, "--components", 2, "--executor", "serial", "--no-report")
    program = [sys.executable, "-c", KILLED, where, *map(str, given)]
    assert subprocess.run(program, timeout=600).returncode == -signal.SIGKILL
    (work,) = Path("runs/d/.unfinished").glob("clipped-pca-*")
    return work


@pytest.mark.matrix
def test_strips_that_a_killed_fit_counted_are_not_counted_again(
    fitted: Any, data: Path, tabulated: list[int]
) -> None:
    expected = fitted()
    tabulated.clear()
    flip_middle_bit(killed_at("strip", data) / "pairs/codes/correlation/c/0/0")  # by the disk
    assert fitted("--resume") == expected
    assert tabulated == [0, 80, 120]


@pytest.mark.matrix
def test_a_fit_killed_before_its_artifact_was_in_place_loses_no_strip(
    fitted: Any, data: Path, tabulated: list[int]
) -> None:
    expected = fitted()
    work = killed_at("artifact", data)
    assert (work / "artifact/pairs").is_dir()
    tabulated.clear()
    assert fitted("--resume") == expected
    assert tabulated == []


def test_a_strip_damaged_or_lost_mid_way_is_told(
    cli: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = ClippedPCA.update_from_pairs

    def harm(how: Callable[[Path], Any]) -> None:
        def harmed(self: Any, *given: Any) -> Any:
            (work,) = Path("runs/d/.unfinished").glob("clipped-pca-*")
            how(work / "pairs/codes/correlation/c/1/0")
            return compared(self, *given)

        monkeypatch.setattr(ClippedPCA, "update_from_pairs", harmed)

    for how in (flip_middle_bit, Path.unlink):
        harm(how)
        done = cli("fit", "--dataset", data, "--components", 2)
        assert done.code == 2
        assert "correlation: chunk 1 is damaged" in done.message
        assert done.message.endswith("Fit again.")
        assert not Path("runs/d/latest").exists()


def test_strips_of_another_fit_are_refused(fitted: Any) -> None:
    fitted()
    artifact = load_artifact("runs/d")
    manifest = artifact.path / "pairs/manifest.json"
    flip_middle_bit(artifact.path / "pairs/correlation/c/2/0")
    with pytest.raises(DataError, match="correlation: chunk 2 is damaged"):
        artifact.pairs.verify()
    manifest.unlink()
    with pytest.raises(DataError, match="interrupted"):
        _ = load_artifact("runs/d").pairs


@pytest.mark.matrix
def test_damaged_chunks_are_left_out_of_strips(fitted: Any, data: Path) -> None:
    whole = fitted()
    flip_middle_bit(data / "bits/c/0/1")
    found = fitted("--skip-corrupt")
    left_out = int(open_dataset(data).chunks[1, 1])
    assert 0 < left_out < 900
    rows = np.frombuffer(found["pair_rows"], np.uint16).max()
    assert rows <= 900 - left_out < np.frombuffer(whole["pair_rows"], np.uint16).max()


def test_no_room_for_strips_is_told(cli: Any, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **more: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("storage.codes.codes.open_array", full)
    done = cli("fit", "--dataset", data, "--components", 2)
    assert done.code == 2
    assert "No space left" in done.message
    assert not Path("runs/d/latest").exists()


def test_memory_that_no_strips_fit_into_is_refused_with_the_least(cli: Any, data: Path) -> None:
    message = cli("fit", "--dataset", data, "--memory", "1kB").check_refused()
    assert "but --memory allows 0.001 MB. Allow more" in message
    message = cli("fit", "--dataset", data, "--memory", "much").check_refused()
    assert message == "error: --memory is 'much', which is not a size such as 4GB."
    assert not Path("runs").exists()


def test_a_report_of_wide_data_is_drawn(cli: Any, data: Path) -> None:
    assert cli("fit", "--dataset", data, "--components", 2, "--report").code == 0
    page = (load_artifact("runs/d").path / "report.html").read_text(encoding="utf-8")
    assert "150" in page


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[int]]:
    """The chunks that were counted, by the first feature of the strip."""
    found: dict[int, list[int]] = {}
    count = strips.count_strip

    def noting(features: slice, n: int, rows: int, masked: bool, chunks: Any, *more: Any) -> Any:
        read = [*chunks]
        if features.start < features.stop:
            found[features.start] = [chunk.key for chunk in read]
        return count(features, n, rows, masked, iter(read), *more)

    monkeypatch.setattr(strips, "count_strip", noting)
    return found


@pytest.fixture
def n_counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of stored rows that each strip counted."""
    found: list[int] = []
    count = strips.count_strip

    def noting(features: slice, n: int, total: int, masked: bool, chunks: Any, *more: Any) -> Any:
        read = [*chunks]
        if features.start < features.stop:
            found.append(sum(len(chunk.rows) for chunk in read))
        return count(features, n, total, masked, iter(read), *more)

    monkeypatch.setattr(strips, "count_strip", noting)
    return found


def append_rows(data: Path, n_rows: int, missing: float = 0.0) -> None:
    dataset, rng = open_dataset(data), np.random.default_rng(n_rows)
    shape = (n_rows, dataset.n_features)
    X = (rng.random(shape) < 0.4).astype(np.uint8)
    observed = (rng.random(shape) >= missing).astype(np.uint8) if missing else None
    columns = {name: np.array(["even"] * n_rows) for name in dataset.column_names}
    with append_dataset(data, dataset.feature_names) as writer:
        writer.add(ArrayBatch(X if observed is None else X * observed, observed, columns))


STRIPS = range(0, N_FEATURES, HEIGHT)


def test_a_refit_counts_appended_rows_and_gives_the_same_bytes(
    fitted: Any, data: Path, counted: dict[int, list[int]]
) -> None:
    fitted()
    for n_rows, missing in ((9, 0.1), (300, 0.0)):
        before = open_dataset(data).n_chunks
        append_rows(data, n_rows, missing)
        refit = fitted()
        n_chunks = open_dataset(data).n_chunks
        assert counted == {strip: [*range(before, n_chunks)] for strip in STRIPS}
        assert refit == fitted("--output", f"alone-{n_rows}")
        assert counted == {strip: [*range(n_chunks)] for strip in STRIPS}
    other = ("--set", "correlation=arcsine")
    refit = fitted(*other)
    assert counted == {strip: [] for strip in STRIPS}
    assert refit == fitted(*other, "--output", "arcsine")


def write_weighted_rows(path: Path, weights: np.ndarray, **columns: np.ndarray) -> Path:
    """Rows with missing values and columns of weights, which are texts as in a file of texts."""
    rng = np.random.default_rng(3)
    X, _ = draw_probit_rows(len(weights), N_FEATURES, 2, seed=1)
    observed = (rng.random(X.shape) < 0.98).astype(np.uint8)
    texts = {"times": np.array([*map(str, weights)], object), **columns}
    return write_arrays(path, X * observed, observed, words_per_chunk=4, columns=texts).path


def list_bytes(artifact: str) -> dict[str, bytes]:
    fitted = load_artifact(artifact)
    assert fitted.pairs is not None
    arrays = {name: a.tobytes() for name, a in fitted.items()}
    return arrays | {name: a.tobytes() for name, a in fitted.pairs.items()}


@pytest.mark.parametrize("components", ["2", "auto"])
def test_strips_of_weighted_rows_are_those_of_repeated_rows(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, components: str
) -> None:
    monkeypatch.setattr(model, "N_LEADING", 5)
    weights = np.random.default_rng(4).integers(0, 4, 500)
    weighted = write_weighted_rows(tmp_path / "w.zarr", weights)
    dataset = open_dataset(weighted)
    X, observed = (
        np.concatenate([dataset.dense(key)[part] for key in range(dataset.n_chunks)])
        for part in (0, 1)
    )
    rows = np.repeat(np.arange(500), weights)
    repeated = write_arrays(tmp_path / "r.zarr", X[rows], observed[rows], words_per_chunk=4).path
    command = ("fit", "--components", components, "--no-report", "--json", "--dataset")
    one, other = cli(*command, weighted, "--weight", "times"), cli(*command, repeated)
    assert (one.code, other.code) == (0, 0), one.err
    assert list_bytes(one.json["artifact"]) == list_bytes(other.json["artifact"])


@pytest.mark.matrix
def test_a_refit_of_weighted_rows_counts_appended_ones_and_gives_the_same_bytes(
    cli: Any, tmp_path: Path, n_counted: list[int]
) -> None:
    weights = np.random.default_rng(4).integers(0, 4, 500)
    data = write_weighted_rows(tmp_path / "d.zarr", weights, other=1 + weights)
    command = ("fit", "--dataset", data, "--components", 2, "--no-report", "--json")
    by_times, by_other = (*command, "--weight", "times"), (*command, "--weight", "other")

    def fit_and_count(*given: Any) -> tuple[dict[str, bytes], int]:
        n_counted.clear()
        done = cli(*given)
        assert done.code == 0, done.err
        (n_rows,) = set(n_counted)
        return list_bytes(done.json["artifact"]), n_rows

    assert fit_and_count(*by_times)[1] == 500
    X, _ = draw_probit_rows(50, N_FEATURES, 2, seed=2)
    columns = {"times": np.array(["7"] * 50, object), "other": np.full(50, 5)}
    with append_dataset(data, open_dataset(data).feature_names) as writer:
        writer.add(ArrayBatch(X, columns=columns))
    refit, n_rows = fit_and_count(*by_times)
    assert n_rows == 50
    assert fit_and_count(*by_times, "--output", "alone") == (refit, 550)
    assert fit_and_count(*command)[1] == 550  # the latest fit has weights
    assert fit_and_count(*by_times)[1] == 550  # the latest fit has none
    assert fit_and_count(*by_other)[1] == 550


def test_counts_with_other_weights_behind_the_same_codes_are_not_used(
    cli: Any, tmp_path: Path, n_counted: list[int]
) -> None:
    weights = np.arange(500) % 3
    data = write_weighted_rows(tmp_path / "d.zarr", weights)
    command = ("fit", "--dataset", data, "--components", 2, "--no-report", "--json")
    assert cli(*command, "--weight", "times").code == 0
    leading = open_dataset(data).digest_leading_chunks(1)
    shutil.rmtree(data)
    write_weighted_rows(data, weights + 3)
    assert open_dataset(data).digest_leading_chunks(1) == leading  # the texts are not part of it
    n_counted.clear()
    done = cli(*command, "--weight", "times")
    assert "used other rows or weights" in done.err
    assert n_counted == [500] * len(STRIPS)


@pytest.mark.parametrize(
    "where",
    [
        *(
            pytest.param(where, marks=pytest.mark.matrix)
            for where in ("cluster", "store", "skipped")
        ),
        *(pytest.param(where, marks=pytest.mark.slow) for where in ("threads", "split")),
    ],
)
def test_counts_of_the_latest_fit_are_used_everywhere(
    fitted: Any, data: Path, counted: Any, cluster: str, s3: str, where: str
) -> None:
    given = {
        "threads": ("--executor", "threads"),
        "cluster": ("--cluster", cluster),
        "store": ("--output", f"{s3}/runs"),
        "split": ("--split", "all"),
        "skipped": ("--skip-corrupt",),
    }[where]
    if where == "skipped":
        flip_middle_bit(data / "bits/c/0/1")
    fitted(*given)
    append_rows(data, 50)
    counted.clear()
    refit = fitted(*given)
    new = [*range(open_dataset(data).n_chunks)][-1:]
    assert counted == ({} if where == "cluster" else dict.fromkeys(STRIPS, new))
    (alone := Path("alone")).mkdir()
    assert refit == fitted("--split", "all", "--skip-corrupt", "--output", alone / where)


def damage_strip(artifact: Path) -> None:
    flip_middle_bit(artifact / "pairs/joint/c/1/0")


def lose_strip(artifact: Path) -> None:
    (artifact / "pairs/ones_left/c/1/0").unlink()


def damage_manifest(artifact: Path) -> None:
    flip_middle_bit(artifact / "pairs/manifest.json")


def lose_manifest(artifact: Path) -> None:
    (artifact / "pairs/manifest.json").unlink()


def lose_artifact(artifact: Path) -> None:
    shutil.rmtree(artifact)


def take_foreign_pairs(artifact: Path) -> None:
    """Replace the pairs by those of other rows with the same shape."""
    X, _ = draw_probit_rows(900, N_FEATURES, 2, seed=2)
    observed = (np.random.default_rng(2).random(X.shape) < 0.98).astype(np.uint8)
    write_arrays(Path("other.zarr"), X * observed, observed, words_per_chunk=4)
    given = ("--components", "2", "--executor", "serial", "--no-report", "--output", "foreign")
    assert fit.app(["--dataset", "other.zarr", *given], exit_on_error=False) is None
    shutil.rmtree(artifact / "pairs")
    shutil.copytree(load_artifact("foreign").path / "pairs", artifact / "pairs")


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("harm", "reason", "n_strips"),
    [
        (damage_strip, "joint: chunk 1 is damaged", 1),
        pytest.param(lose_strip, "ones_left: chunk 1 is damaged", 1, marks=pytest.mark.matrix),
        pytest.param(damage_manifest, "manifest", 4, marks=pytest.mark.slow),
        pytest.param(lose_manifest, "interrupted", 4, marks=pytest.mark.slow),
        pytest.param(lose_artifact, "no such", 4, marks=pytest.mark.matrix),
        (take_foreign_pairs, "the pairs belong to another fit", 4),
    ],
)
def test_damaged_or_foreign_counts_are_not_used(
    cli: Any, fitted: Any, data: Path, counted: Any, harm: Any, reason: str, n_strips: int
) -> None:
    fitted()
    append_rows(data, 50)
    harm(load_artifact("runs/d").path)
    counted.clear()
    done = cli("fit", "--dataset", data, "--components", 2, "--json")
    assert done.code == 0
    assert reason in done.err
    whole = [*range(open_dataset(data).n_chunks)]
    assert [*counted.values()].count(whole) == n_strips
    assert fitted() == fitted("--output", "alone")


@pytest.mark.parametrize("change", ["split", "rows", "code", "height", "missing"])
def test_counts_of_other_rows_or_code_are_not_used(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counted: Any, change: str
) -> None:
    X, _ = draw_probit_rows(900, N_FEATURES, 2, seed=1)
    split = np.array(["even", "odd"])[np.arange(900) % 2]
    data = write_arrays(tmp_path / "d.zarr", X, words_per_chunk=4, columns={"split": split}).path
    given = ("fit", "--dataset", data, "--components", 2, "--json", "--split")
    assert cli(*given, "even").code == 0
    if change == "rows":
        with append_dataset(data, open_dataset(data).feature_names) as writer:
            writer.update([FirstFeature(np.arange(300))], "last", str)
    elif change == "code":
        monkeypatch.setattr(records, "digest_modules", lambda *modules: "other")
    elif change == "height":
        monkeypatch.setattr(pairs, "choose_strip_height", lambda *of: 50)
    elif change == "missing":
        append_rows(data, 50, missing=0.1)
    done = cli(*given, "odd" if change == "split" else "even")
    assert done.code == 0, done.err
    reasons = {
        "split": "used other rows",
        "rows": "used other rows",
        "code": "ran other code",
        "height": "had strips of another height",
        "missing": "had no missing values",
    }
    assert reasons[change] in done.err
    assert [*counted.values()] == [[*range(open_dataset(data).n_chunks)]] * len(counted)


class FirstFeature(NamedTuple):
    """A one in the first feature of some rows, whatever it was."""

    rows: np.ndarray

    @property
    def X(self) -> np.ndarray:
        return np.eye(1, N_FEATURES, dtype=np.uint8).repeat(len(self.rows), axis=0)

    observed = property(lambda self: self.X)
    missing = property(lambda self: np.zeros_like(self.X))


@pytest.mark.few(1)
@pytest.mark.parametrize("n_continuous", [0, 20])
def test_other_wide_data_are_fitted_exported_and_fitted_again(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_continuous: int
) -> None:
    names = [f"q{i}" for i in range(N_FEATURES)]
    X = sum(draw_probit_rows(500, N_FEATURES, 2, seed=seed)[0] for seed in (1, 1, 2))
    levels = dict.fromkeys(names[::2], ("never", "once", "twice", "often"))
    levels |= dict.fromkeys(names[:n_continuous], ())
    numbers = X[:, :n_continuous] + np.random.default_rng(0).standard_normal((500, n_continuous))
    X[:, 1::2] = X[:, 1::2] > 1
    X[:, :n_continuous] = 0
    with create_dataset(tmp_path / "l.zarr", names, feature_levels=levels) as writer:
        writer.add(ArrayBatch(X[:400], numbers=numbers[:400].astype(np.float32)))

    def fit(*options: Any) -> dict[str, bytes]:
        done = cli("fit", "--dataset", "l.zarr", "--components", 2, "--json", *options)
        assert done.code == 0, done.err
        return list_bytes(done.json["artifact"])

    before = fit("--report")
    with append_dataset("l.zarr", names) as writer:
        writer.add(ArrayBatch(X[400:], numbers=numbers[400:].astype(np.float32)))
    after = fit("--no-report")
    assert before.keys() == after.keys() >= {"correlation", "status", "n_levels"}
    assert before["correlation"] != after["correlation"]
    assert after == fit("--no-report", "--output", "alone", "--executor", "threads")
    monkeypatch.setattr(model, "MAX_SQUARE_FEATURES", 10 * N_FEATURES)
    done = cli("fit", "--dataset", "l.zarr", "--components", 2, "--output", "square")
    assert done.code == 0, done.err
    for path in ("alone", "square"):
        given = ("--artifact", path, "--what", "correlations", "--output", f"{path}.csv")
        assert cli("export", *given).code == 0
    one, other = (pyarrow.csv.read_csv(f"{path}.csv").to_pydict() for path in ("alone", "square"))
    for name in ("feature_1", "feature_2", "status"):
        assert one[name] == other[name]
    np.testing.assert_allclose(one["correlation"], other["correlation"], atol=1e-7)
