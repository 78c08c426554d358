"""BLICA from its command line: the same bytes everywhere, what it refuses and what it tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.cli.errors import format_warnings
from pipeline.numerics.metrics import mean_cosine_similarity
from storage.artifacts.artifacts import load_artifact
from storage.codes.codes import open_codes
from storage.examples import draw_nonstationary_rows, draw_nonstationary_truth
from tests.pipeline.models.binary_ica import draw_hidden
from tests.support.data import write_arrays

BLICA = ("--model", "blica")
# Where it matters not what is chosen.
GIVEN = ("--components", 2, "--set", "regularization=20", "--set", "starts=1")
NAMES = ["bread", "milk", "eggs", "tea", "rice", "salt"]


def drawn(
    n_features: int, n_segments: int, rows_per_segment: int = 300
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of two sources, and the name of the segment of each."""
    truth = draw_nonstationary_truth(n_features, 2, n_segments, seed=3)
    (batch,) = draw_nonstationary_rows(truth, rows_per_segment, seed=3)
    return batch.X, np.char.add("year ", batch.columns["segment"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blica")


@pytest.fixture(scope="module")
def whole(folder: Path) -> Path:
    """More chunks than one task reads."""
    X, segments = drawn(6, 10)
    return write_arrays(
        folder / "w.zarr", X, segments=segments, words_per_chunk=4, names=NAMES
    ).path


@pytest.fixture(scope="module")
def gaps(folder: Path) -> Path:
    """A tenth of the values is missing, in some of the chunks."""
    X, segments = drawn(6, 10)
    observed = np.ones_like(X)
    observed[1000:] = np.random.default_rng(0).random((len(X) - 1000, 6)) < 0.9
    path = folder / "g.zarr"
    return write_arrays(path, X, observed, segments=segments, words_per_chunk=4, names=NAMES).path


@pytest.fixture(scope="module", params=[pytest.param("whole", marks=pytest.mark.matrix), "gaps"])
def dataset(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.mark.matrix
def test_every_executor_gives_the_same_bytes(cli, dataset, cluster):
    """The ridge is chosen, of whole values the components, too; a bootstrap has missing ones."""
    given = ("--components", 2, "--set", "bootstrap=20")
    more = given if dataset.name == "g.zarr" else ()
    command = ("fit", "--dataset", dataset, *BLICA, *more, *GIVEN[-2:], "--json")
    serial = cli(*command, "--executor", "serial")
    assert serial.code == 0, serial.err
    expected = load_artifact(serial.json["artifact"])
    assert expected["mixing"].shape == (6, 2)
    assert expected["mixing_interval"].shape == ((2, 6, 2) if more is given else (0, 6, 2))
    for options in (("--executor", "threads"), ("--cluster", cluster)):
        other = cli(*command, *options)
        assert other.code == 0, other.err
        got = load_artifact(other.json["artifact"])
        assert set(got) == set(expected)
        for name in expected:
            assert got[name].tobytes() == expected[name].tobytes(), (options, name)
        assert other.json["diagnostics"] == serial.json["diagnostics"]
        assert other.json["warnings"] == serial.json["warnings"] == []


def test_missing_values_change_little(cli, whole, gaps):
    commands = (("fit", "--dataset", path, *BLICA, *GIVEN) for path in (whole, gaps))
    all_values, some = (load_artifact(cli(*c, "--json").json["artifact"]) for c in commands)
    assert mean_cosine_similarity(some["mixing"], all_values["mixing"]) > 0.98


@pytest.mark.matrix
def test_auto_is_the_default(cli, tmp_path):
    X, segments = drawn(4, 3)
    write_arrays(tmp_path / "d.zarr", X, segments=segments)
    given = ("--components", "auto", "--set", "regularization=auto")
    command = ("fit", "--dataset", "d.zarr", *BLICA, *GIVEN[-2:], "--json")
    commands = [(*command, *more) for more in ((), given)]
    plain, spelled = (load_artifact(cli(*command).json["artifact"]) for command in commands)
    assert spelled.manifest["hyperparameters"] == plain.manifest["hyperparameters"]
    assert spelled["mixing"].tobytes() == plain["mixing"].tobytes()


def test_the_table_tells_what_was_chosen(cli, whole):
    done = cli("fit", "--dataset", whole, *BLICA, "--components", 2)
    assert done.code == 0, done.err
    assert "blica, 2 components" in done.out
    lines = {line.split()[0]: line.split()[1:] for line in done.out.splitlines()}
    found = load_artifact(done.out.strip().splitlines()[-1].removeprefix("artifact: "))
    assert float(lines["regularization"][0]) == found.manifest["diagnostics"]["regularization"]


# What it refuses


@pytest.fixture
def refused(cli):
    """Fit what must be refused before an artifact is written; return the message."""

    def call(*arguments: object) -> str:
        done = cli("fit", *BLICA, *arguments)
        assert done.code == 2, (done.code, done.out, done.err)
        assert done.message.startswith("error: ")
        assert "Traceback" not in done.err
        assert done.out == ""
        assert not list(Path("runs").glob("*/*"))
        return done.message.removeprefix("error: ")

    return call


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "regularization=0.5"), "regularization must be above 1"),
        (
            ("--set", "regularization=strong"),
            "--set regularization is 'strong', but should be a number",
        ),
        (("--set", "bootstrap=3"), "bootstrap must be 0, or at least 20, but is 3."),
        (("--set", "starts=0"), "starts must be at least 1, but is 0."),
        (("--set", "min_rows=0"), "min_rows must be at least 1, but is 0."),
        (
            ("--set", "ridge=2"),
            "'ridge' is not a setting of this model. Choose one of: regularization, min_rows",
        ),
        (("--components", 0), "--components must be at least 1, but is 0."),
        (("--components", 7), "--components is 7, but there are only 6 features."),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_bad_settings(refused, whole, options, message):
    assert message in refused("--dataset", whole, *options)


@pytest.mark.parametrize("n_segments", [1, 2])
def test_fewer_than_three_segments(refused, tmp_path, n_segments):
    X, segments = drawn(6, n_segments)
    write_arrays(tmp_path / "d.zarr", X, segments=segments)
    assert refused("--dataset", "d.zarr") == (
        f"BLICA needs at least 3 segments, but there are {n_segments}. "
        "Give the segment of each row by ingest --segment-by COLUMN or --segments N, or fit "
        "another model."
    )


def test_segments_with_too_few_rows_are_named(refused, tmp_path):
    X, segments = drawn(6, 3)
    few = np.r_[0:310, 600:900]
    write_arrays(tmp_path / "d.zarr", X[few], segments=segments[few])
    message = refused("--dataset", "d.zarr")
    assert "BLICA needs at least 3 usable segments, but there are 2" in message
    assert "'year 1'" in message
    assert "'year 0'" not in message
    assert "min_rows=20" in message


def test_a_feature_that_varies_nowhere_is_named(refused, tmp_path):
    X, segments = drawn(6, 4)
    X[:, 3] = segments == "year 0"
    write_arrays(tmp_path / "d.zarr", X, segments=segments, names=NAMES)
    message = refused("--dataset", "d.zarr")
    assert "'tea'" in message
    assert "'milk'" not in message


# What it tells


@pytest.fixture
def warned(cli):
    """Fit what is in doubt; return the warning with these words."""

    def call(words: str, *arguments: object) -> str:
        done = cli("fit", *BLICA, *arguments, "--json")
        assert done.code == 0, done.err
        recorded = load_artifact(done.json["artifact"]).manifest["warnings"]
        assert format_warnings(recorded) == done.json["warnings"]
        (warning,) = [warning for warning in done.json["warnings"] if words in warning]
        return warning

    return call


def test_what_cannot_be_identified(warned, tmp_path):
    """Three segments of 6 correlations each, for 4 variances a segment and a mixing of 16."""
    X, segments = drawn(4, 3)
    write_arrays(tmp_path / "d.zarr", X, segments=segments)
    warning = warned(
        "more unknowns than correlations", "--dataset", "d.zarr", *GIVEN[2:], "--components", 4
    )
    assert "10 more unknowns than correlations" in warning


def test_a_feature_constant_within_a_segment(warned, tmp_path):
    X, segments = drawn(6, 5)
    X[segments == "year 2", 4] = 1
    write_arrays(tmp_path / "d.zarr", X, segments=segments, names=NAMES)
    warning = warned("out of segments where they never vary", "--dataset", "d.zarr", *GIVEN)
    assert "'rice'" in warning
    assert "'year 2'" in warning
    assert "'bread'" not in warning
    assert "'year 1'" not in warning


@pytest.mark.matrix
def test_a_segment_with_few_rows(cli, warned, tmp_path):
    X, segments = drawn(6, 5)
    write_arrays(tmp_path / "d.zarr", X[:1215], segments=segments[:1215], names=NAMES)
    command = ("--dataset", "d.zarr", *GIVEN)
    assert "'year 4'" in warned("fewer than 20 rows", *command)
    assert "'year 4'" in warned("fewer than 16 rows", *command, "--set", "min_rows=16")
    kept = cli("fit", *BLICA, *command, "--set", "min_rows=15", "--json")
    assert not any("rows" in warning for warning in kept.json["warnings"])


def test_a_pair_that_is_never_observed_together(warned, tmp_path):
    X, segments = drawn(6, 5)
    observed = np.ones_like(X)
    third = segments == "year 3"
    observed[third & (np.arange(len(X)) % 2 == 0), 0] = 0
    observed[third & (np.arange(len(X)) % 2 == 1), 1] = 0
    write_arrays(tmp_path / "d.zarr", X * observed, observed, segments=segments, names=NAMES)
    warning = warned("pairs without a correlation", "--dataset", "d.zarr", *GIVEN)
    assert "'bread', 'milk'" in warning
    assert "'year 3'" in warning


@pytest.mark.parametrize(
    "model", ["blica", pytest.param("binary-ica-likelihood", marks=pytest.mark.matrix)]
)
def test_hidden_segments_are_found_and_told(cli, folder, model):
    _, data = draw_hidden(3000, 3, seed=1)
    path = write_arrays(folder / f"hidden-{model}.zarr", data.X, words_per_chunk=20).path
    hidden = ("--segments", "auto", "--set", "n_segments=3", "--no-report", "--json")
    settings = GIVEN if model == "blica" else ("--components", 2, "--set", "likelihood=ep")
    fitted = cli("fit", "--dataset", path, "--model", model, *settings, *hidden)
    assert fitted.code == 0, fitted.err
    artifact = load_artifact(fitted.json["artifact"])
    assert artifact.manifest["segment_names"] == ["1", "2", "3"]
    np.testing.assert_allclose(artifact["transition"].sum(axis=1), 1)
    command = ("transform", "--dataset", path, "--artifact", artifact.path)
    codes = cli(*command, "--output", folder / f"{model}.codes", "--json")
    assert codes.code == 0, codes.err
    assert codes.json["warnings"] == []
    stored = open_codes(folder / f"{model}.codes")
    likeliest, probability = stored["likeliest_segment"][:], stored["segment_probability"][:]
    assert {*np.unique(likeliest).tolist()} == {1, 2, 3}
    assert ((probability > 1 / 3) & (probability <= 1)).all()


def test_models_without_hidden_segments_say_so(cli, whole):
    refused = cli("fit", "--dataset", whole, "--model", "clipped-pca", "--segments", "auto")
    assert "clipped-pca finds no segments, unlike blica" in refused.check_refused()
