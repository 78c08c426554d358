"""Data that know what they were made with, and fits compared with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.cli.summary import print_fit
from flows.data import datasets
from flows.data.datasets import open_dataset_or_example, read_true_mixing
from storage.dataset.dataset import open_dataset
from storage.dataset.writer import create_dataset
from storage.errors import DataError
from storage.examples import draw_nonstationary_truth, open_example
from tests.support.data import ArrayBatch, draw_probit_rows, write_arrays

SMALL = "example:nonstationary:features=4,components=2,segments=3,rows_per_segment=50"


@pytest.fixture(autouse=True)
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of examples that holds none from earlier."""
    monkeypatch.setattr(datasets, "find_examples_folder", lambda: tmp_path / "examples")
    return tmp_path / "examples"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A dataset of unknown origin."""
    return write_arrays(tmp_path / "plain.zarr", draw_probit_rows(300, 4, 2, seed=2)[0]).path


def test_an_example_becomes_a_dataset_that_knows_its_truth(examples):
    dataset = open_dataset_or_example(f"{SMALL},seed=7")
    assert dataset.path.parent.parent == examples
    assert dataset.segment_names == ("0", "1", "2")
    assert np.bincount(dataset.blocks[:, 1], dataset.blocks[:, 3]).tolist() == [50, 50, 50]
    for name, drawn in draw_nonstationary_truth(4, 2, 3, seed=7)._asdict().items():
        np.testing.assert_array_equal(dataset.attributes["truth"][name], drawn)
    np.testing.assert_array_equal(
        read_true_mixing(dataset), draw_nonstationary_truth(4, 2, 3, 7).mixing
    )


def test_an_example_drawn_from_known_cases_keeps_their_labels_and_its_entropy(examples):
    dataset = open_dataset_or_example("example:shifter:rows=90,seed=7")
    (batch,) = open_example("example:shifter:rows=90,seed=7").iter_batches()
    np.testing.assert_array_equal(dataset.dense(0)[0], batch.X)
    assert dataset.column("shift").tolist() == batch.columns["shift"].tolist()
    assert (dataset.attributes, dataset.n_segments) == ({"entropy_bits": 9 - 1 / 64}, 1)


def test_an_example_that_other_code_made_is_made_again(monkeypatch):
    before = open_dataset_or_example(SMALL)
    assert open_dataset_or_example(SMALL).path == before.path
    monkeypatch.setattr(datasets, "compute_examples_digest", lambda: "another")
    assert open_dataset_or_example(SMALL).path != before.path


def test_the_truth_survives_further_rows(cli):
    assert cli("ingest", SMALL, "--dataset", "d.zarr").code == 0
    before = open_dataset("d.zarr").attributes
    Path("x.csv").write_text("f0,f1,f2,f3,segment\n" + "0,1,0,1,9\n" * 3)
    assert cli("ingest", "x.csv", "--dataset", "d.zarr", "--append").code == 0
    assert cli("ingest", SMALL, "--dataset", "d.zarr", "--append").code == 0
    after = open_dataset("d.zarr")
    assert (after.n_rows, after.n_segments) == (303, 4)
    assert after.attributes == before != {}


@pytest.mark.parametrize("append", [False, True])
def test_rows_of_two_truths_have_none(cli, append):
    other = f"{SMALL},seed=1"
    if append:
        assert cli("ingest", SMALL, "--dataset", "d.zarr").code == 0
        done = cli("ingest", other, "--dataset", "d.zarr", "--append")
        assert open_dataset("d.zarr").n_rows == 150
    else:
        done = cli("ingest", SMALL, other, "--dataset", "d.zarr")
        assert not Path("d.zarr").exists()
    assert done.code == 2
    assert done.message == (
        f"error: {other}: its attributes (truth) differ from earlier rows. "
        "Write this source to a separate dataset."
    )


def test_an_example_that_cannot_be_made_leaves_nothing(cli, examples):
    done = cli("fit", "--dataset", "example:nonstationary:features=3")
    assert done.code == 2
    assert "components is 10, but features is only 3" in done.message
    assert not list(examples.rglob("*.zarr"))


def test_a_dataset_without_truth_is_refused(cli, plain):
    done = cli("fit", "--dataset", plain, "--truth")
    assert done.code == 2
    assert done.message == (
        f"error: {plain} does not contain its true mixing matrix, as "
        "example:nonstationary does. Leave out --truth."
    )
    assert not Path("runs").exists()


def test_a_model_without_mixing_is_refused(cli):
    done = cli("fit", "--dataset", SMALL, "--model", "clipped-pca", "--truth")
    assert done.code == 2
    assert done.message == "error: clipped-pca has no mixing matrix. Leave out --truth."
    assert not Path("runs").exists()


@pytest.mark.parametrize("mixing", [[[1.0], [2.0]], [1.0, 2.0, 3.0], []], ids=str)
def test_a_truth_of_other_features_is_refused(tmp_path, mixing):
    attributes = {"truth": {"mixing": mixing}}
    with create_dataset(tmp_path / "d.zarr", ["a", "b", "c"], attributes=attributes) as writer:
        writer.add(ArrayBatch(np.eye(3, dtype=np.uint8)))
    with pytest.raises(
        DataError,
        match=r"d.zarr: the true mixing matrix .* does not match the 3 features. Leave out truth",
    ):
        read_true_mixing(open_dataset(tmp_path / "d.zarr"))


def test_the_table_shows_the_similarity(cli, plain, capsys):
    summary = cli("fit", "--dataset", plain, "--components", 2, "--json").json
    assert "mcs" not in summary
    print_fit(summary)
    assert "truth" not in capsys.readouterr().out
    print_fit({**summary, "mcs": 0.99567})
    shown = capsys.readouterr().out.splitlines()
    assert ["truth", "mean", "cosine", "similarity", "0.9957"] in [line.split() for line in shown]


def test_a_fit_is_compared_with_the_truth(cli):
    made = "example:nonstationary:features=6,components=2,segments=10,rows_per_segment=200"
    options = ("--dataset", made, "--model", "blica", "--components", 2, "--truth")
    options += ("--set", "regularization=20", "--set", "starts=1")
    done = cli("fit", *options, "--json")
    assert done.code == 0, done.err
    assert 0.9 < done.json["mcs"] <= 1
    table = cli("fit", *options)
    assert f"mean cosine similarity {done.json['mcs']:.4f}" in table.out
