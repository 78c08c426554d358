"""The edges of fitted trees: `flows.export --what edges`, and `Fitted.get_edges`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import latentbits as lb
from tests.support.data import draw_probit_rows, write_arrays

NAMES = ["a", "=1+1", "c", "d", "e"]
FIT = ("fit", "--model", "tree-mixture", "--executor", "serial", "--no-report", "--json")


def draw_chain(n_rows: int) -> np.ndarray:
    """Features that each repeat the one before, but for ever more errors; the last is reversed."""
    rng, columns = np.random.default_rng(4), [np.random.default_rng(3).random(n_rows) < 0.5]
    for share in (0.05, 0.1, 0.2, 0.3):
        columns.append(columns[-1] ^ (rng.random(n_rows) < share))
    columns[-1] = ~columns[-1]
    return np.stack(columns, axis=1).astype(np.uint8)


def test_edges_of_a_chain_have_the_information_of_its_errors(cli) -> None:
    X = draw_chain(4000)
    write_arrays(Path("d.zarr"), X, names=NAMES)
    artifact = cli(*FIT, "--dataset", "d.zarr", "--components", 1).json["artifact"]
    export = ("export", "--artifact", artifact, "--what", "edges", "--output")
    done = cli(*export, "t.csv", "--json")
    table = pd.read_csv("t.csv")
    assert (done.json["n_rows"], done.json["columns"]) == (4, [*table.columns])
    pairs = zip(table["feature"], table["parent"], strict=True)
    assert [{*pair} for pair in pairs] == [{"a", "'=1+1"}, {"'=1+1", "c"}, {"c", "d"}, {"d", "e"}]
    assert table["tree"].eq(1).all()
    assert table["weight"].eq(1).all()
    phi = [np.corrcoef(X[:, i], X[:, i + 1])[0, 1] for i in range(4)]
    np.testing.assert_allclose(table["correlation"], phi, atol=1e-3)
    assert phi[3] < -0.3
    joint = [np.histogram2d(X[:, i], X[:, i + 1], bins=2)[0] / len(X) for i in range(4)]
    nats = [(p * np.log(p / np.outer(p.sum(1), p.sum(0)))).sum() for p in joint]
    np.testing.assert_allclose(table["mutual_information"], nats, atol=1e-3)

    assert cli(*export, "t.parquet").code == 0
    edges = lb.load(artifact).get_edges()
    pd.testing.assert_frame_equal(pd.DataFrame(edges), pd.read_parquet("t.parquet"))
    assert edges["parent"][0] in ("a", "=1+1")
    assert f"strongest of tree 1  {edges['feature'][0]}, {edges['parent'][0]}" in repr(edges)

    items = ("export", "--artifact", artifact, "--what", "items", "--output", "i.parquet")
    assert cli(*items).code == 0
    parents = pd.read_parquet("i.parquet").set_index("feature")["parents_1"]
    assert parents.isna().sum() == 1
    assert parents.dropna().to_dict() == dict(zip(edges["feature"], edges["parent"], strict=True))


@pytest.mark.matrix
def test_edges_of_several_trees_of_levels(cli) -> None:
    rng = np.random.default_rng(1)
    answers = rng.normal(size=(400, 1)) + rng.normal(size=(400, 4))
    pd.DataFrame(np.digitize(answers, [-1, 1]), columns=[*"abcd"]).to_csv("x.csv", index=False)
    assert cli("ingest", "x.csv", "--dataset", "x.zarr", "--ordinal", "*:0-2").code == 0
    artifact = cli(*FIT, "--dataset", "x.zarr", "--components", 2).json["artifact"]
    export = ("export", "--artifact", artifact, "--what", "edges", "--output", "t.csv")
    assert cli(*export).code == 0
    table = pd.read_csv("t.csv")
    assert table["tree"].tolist() == [1, 1, 1, 2, 2, 2]
    assert table["weight"].unique().tolist() == lb.load(artifact).params.weights.tolist()
    for _, own in table.groupby("tree"):
        assert own["mutual_information"].is_monotonic_decreasing
        assert own["mutual_information"].min() >= 0
        assert own["correlation"].between(-1, 1).all()


def test_a_fit_without_trees_is_refused(cli) -> None:
    X, _ = draw_probit_rows(200, 4, 1, seed=2)
    write_arrays(Path("d.zarr"), X)
    artifact = cli("fit", "--dataset", "d.zarr", "--no-report", "--json").json["artifact"]
    line = ("export", "--what", "edges", "--output", "t.csv")
    refused = cli(*line, "--artifact", artifact).check_refused()
    assert (
        "is of clipped-pca, which has no edges. Fit hidden-tree or ising or tree-mixture" in refused
    )
    assert not Path("t.csv").exists()
    with pytest.raises(ValueError, match="The fit is of clipped-pca, which has no edges"):
        lb.load(artifact).get_edges()


def test_networks_of_groups_are_compared(cli) -> None:
    X = np.vstack([draw_chain(600), draw_chain(600)[:, [1, 0, 2, 4, 3]]])
    X[600:, 4] = 1
    table = pd.DataFrame(X, columns=NAMES)
    table["school"] = np.repeat(["NA", "None"], 600)
    table.sample(frac=1, random_state=0).to_csv("x.csv", index=False)
    assert cli("ingest", "x.csv", "--dataset", "x.zarr", "--keep", "school").code == 0
    fit = ("fit", "--model", "ising", "--executor", "serial", "--json", "--group", "school")
    settings = ("--set", "path=10", "--set", "permutations=19", "--no-report")
    found = cli(*fit, "--dataset", "x.zarr", *settings).json
    assert "constant in some groups, where they have no edges: 'e' (in 'None')" in str(found)
    artifact = found["artifact"]
    assert (
        cli("export", "--artifact", artifact, "--what", "edges", "--output", "t.parquet").code == 0
    )
    table = pd.read_parquet("t.parquet")
    fitted = lb.load(artifact)
    pd.testing.assert_frame_equal(pd.DataFrame(fitted.get_edges()), table)
    assert {*table["group_a"], *table["group_b"]} == {"NA", "None"}
    np.testing.assert_allclose(table["coupling_a"] - table["coupling_b"], table["difference"])
    is_constant = (table["feature"] == "e") | (table["neighbour"] == "e")
    assert table["p"].isna().tolist() == is_constant.tolist()
    assert table["p"].min() == pytest.approx(1 / 20)
    (tests,) = fitted.statistics["network_tests"]
    assert {*tests["groups"]} == {"NA", "None"}
    assert cli("report", "--artifact", artifact, "--output", "r.html").code == 0
    page = Path("r.html").read_text(encoding="utf-8")
    assert "Network of features: group None" in page
    assert "Largest differences between groups" in page
    assert f"writes all {len(table)} lines" in page


def test_edges_of_a_network_are_drawn_and_listed(cli) -> None:
    X = draw_chain(1000)
    write_arrays(Path("d.zarr"), X, names=NAMES)
    fit = ("fit", "--model", "ising", "--executor", "serial", "--json", "--set", "refit=pseudo")
    artifact = cli(*fit, "--dataset", "d.zarr", "--set", "path=20", "--no-report").json["artifact"]
    export = ("export", "--artifact", artifact, "--what", "edges", "--output", "t.parquet")
    assert cli(*export).code == 0
    table = pd.read_parquet("t.parquet")
    pairs = [*map(set, zip(table["feature"], table["neighbour"], strict=True))]
    assert pairs[:4] == [{"a", "=1+1"}, {"=1+1", "c"}, {"c", "d"}, {"d", "e"}]
    assert (np.diff(table["coupling"].abs()) <= 0).all()
    assert table["standard_error"].between(0.05, 1).all()
    edges = lb.load(artifact).get_edges()
    pd.testing.assert_frame_equal(pd.DataFrame(edges), table)
    assert "strongest  a, =1+1: " in repr(edges)
    assert cli("report", "--artifact", artifact, "--output", "r.html").code == 0
    page = Path("r.html").read_text(encoding="utf-8")
    assert "Network of features" in page
    assert "Heat capacity" in page
    assert f"writes all {len(table)} edges" in page
