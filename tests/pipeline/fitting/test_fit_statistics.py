"""Statistics of fits, against poLCA, mirt, enumeration and ranks of derivatives."""

from __future__ import annotations

import csv
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

import latentbits as lb
from pipeline.models.state import FitState
from pipeline.models.trees.hidden_tree import HiddenTree, HiddenTreeParams
from pipeline.random import RowRandom
from tests.support.data import find_reference
from tests.support.strategies import DenseData, make_memory_blocks

Levels = NDArray[np.int64]


def read_table(name: str) -> Levels:
    """Read levels from 0, and -1 for missing values."""
    text = find_reference(f"data/{name}.csv").read_text().splitlines()[1:]
    rows = [[-1 if v == "NA" else int(v.strip('"')) for v in line.split(",")] for line in text]
    table = np.array(rows)
    return np.where(table < 0, -1, table - table[table >= 0].min())


def read_case(folder: str, case: str) -> dict[str, float]:
    text = find_reference(f"{folder}/summary.csv").read_text()
    lines = [line for line in csv.DictReader(text.splitlines()) if line["case"] == case]
    return {line["quantity"]: float(line["value"]) for line in lines}


def from_levels(table: Levels, **more: Any) -> Any:
    """Make a dataset of features with the levels that the table has, or might have."""
    names = [f"q{k}" for k in range(table.shape[1])]
    levels = {
        name: range(max(int(own.max()) + 1, 2)) for name, own in zip(names, table.T, strict=True)
    }
    own = {name: given for name, given in levels.items() if len(given) > 2}
    X = np.where(table < 0, np.nan, table)
    return lb.from_numpy(X, feature_names=names, levels=own or None, **more)


@pytest.mark.parametrize(("name", "n_classes"), [("carcinoma", 2), ("carcinoma", 3), ("gss82", 2)])
def test_latent_classes_have_the_statistics_of_polca(name: str, n_classes: int) -> None:
    expected = read_case("10_latent_classes", f"{name} K={n_classes}")
    table = read_table(name)
    settings = {"smoothing": 1e-6, "starts": 10, "tol": 1e-10, "max_iter": 2000}
    found = lb.fit(
        from_levels(table), "bernoulli-mixture", components=n_classes, errors="none", **settings
    ).statistics
    assert found["log_likelihood"] == pytest.approx(expected["llik"], abs=1e-4)
    assert (found["n_parameters"], found["n_rows"]) == (expected["npar"], expected["N"])
    assert found["aic"] == pytest.approx(expected["aic"], abs=2e-4)
    assert found["bic"] == pytest.approx(expected["bic"], abs=2e-4)
    entropy = expected["relative entropy (1 - sum -p ln p / (N ln K))"]
    assert found["relative_entropy"] == pytest.approx(entropy, abs=1e-4)
    assert found["g2"] == pytest.approx(expected["Gsq"], abs=1e-4)
    assert found["pearson"] == pytest.approx(expected["Chisq"], abs=1e-3)
    assert found["pattern_df"] == expected["resid.df"]
    assert ("g2_p" in found) == (name == "gss82")  # 118 rows are too few for 128 patterns


def test_items_have_the_statistics_of_mirt() -> None:
    expected = read_case("07_graded", "Science graded")
    fits = {
        errors: lb.fit(
            from_levels(read_table("Science")),
            "latent-trait",
            components=1,
            tol=1e-9,
            errors=errors,
        ).statistics
        for errors in ("louis", "none")
    }
    for found in fits.values():
        assert found["log_likelihood"] == pytest.approx(expected["loglik"], abs=1e-3)
        assert found["n_parameters"] == expected["npar"]
    assert fits["none"]["bic"] == pytest.approx(fits["louis"]["bic"], abs=1e-3)


def draw_table(sizes: tuple[int, ...] = (2, 3, 2, 4, 2), n: int = 300) -> Levels:
    rng = np.random.default_rng(4)
    kinds = rng.random(n) < 0.4
    columns = [rng.binomial(size - 1, np.where(kinds, 0.25, 0.7)) for size in sizes]
    return np.stack(columns, axis=1)


MODELS: dict[str, dict[str, Any]] = {
    "bernoulli-mixture": {"components": 2, "errors": "none"},
    "tree-mixture": {"components": 2, "starts": 1},
    "hidden-tree": {"states": 2, "starts": 1},
    "noisy-or": {"components": 2, "starts": 2},
    "chow-liu": {},
}


@pytest.mark.parametrize("model", MODELS)
def test_log_likelihood_is_that_of_the_rows_without_priors(model: str) -> None:
    table = draw_table((2,) * 5)
    table[::7, 1] = -1
    table[3] = -1
    fitted = lb.fit(from_levels(table), model, **MODELS[model])
    (block,) = make_memory_blocks(DenseData(np.maximum(table, 0).astype(np.uint8), table >= 0))
    likelihood: Any = fitted.model
    nats = likelihood.log_likelihood(fitted.params, block, RowRandom(0)).nats.sum()
    found = fitted.statistics
    assert found["log_likelihood"] == pytest.approx(nats, rel=1e-10)
    assert found["n_rows"] == 300
    assert ("entropy_r2" in found) == (model not in ("noisy-or", "chow-liu"))


@pytest.mark.parametrize("model", ["bernoulli-mixture", "hidden-tree"])
def test_frequencies_are_repeated_rows(model: str) -> None:
    table = draw_table()
    patterns, counts = np.unique(table, axis=0, return_counts=True)
    weighted = from_levels(patterns, keep={"times": counts})
    by_row = lb.fit(from_levels(table), model, tol=1e-8, **MODELS[model]).statistics
    by_pattern = lb.fit(weighted, model, weight="times", tol=1e-8, **MODELS[model]).statistics
    assert by_pattern["n_rows"] == by_row["n_rows"] == 300
    assert by_pattern["n_parameters"] == by_row["n_parameters"]
    for name in ("log_likelihood", "bic", "entropy_r2", "g2"):
        assert by_pattern[name] == pytest.approx(by_row[name], rel=1e-3), name


def test_parameters_of_levels_without_rows_do_not_count() -> None:
    table = draw_table((2, 3, 2, 4))
    constant = np.column_stack([table, np.ones(300, np.int64)])
    names = [f"q{k}" for k in range(5)]
    levels = {"q1": range(5), "q3": range(4)}
    fuller = lb.from_numpy(constant.astype(float), feature_names=names, levels=levels)
    for model, n_expected in {
        "bernoulli-mixture": 2 * (1 + 2 + 1 + 3) + 1,
        "chow-liu": None,
        "hidden-tree": None,
    }.items():
        own = lb.fit(from_levels(table), model, **MODELS[model]).statistics["n_parameters"]
        found = lb.fit(fuller, model, **MODELS[model]).statistics["n_parameters"]
        assert found == own
        assert own == n_expected or n_expected is None


def test_groups_have_class_sizes_of_their_own() -> None:
    table = draw_table((2,) * 5)
    groups = np.where(np.arange(300) % 3 == 0, "north", "south")
    data = from_levels(table, keep={"site": groups})
    plain, grouped = (
        lb.fit(data, "bernoulli-mixture", components=3, **own).statistics
        for own in ({}, {"group": "site"})
    )
    assert plain["n_parameters"] == 3 * 5 + 2
    assert grouped["n_parameters"] == 3 * 5 + 2 * 2
    assert grouped["n_rows"] == 300


def test_patterns_of_groups_are_compared_with_all_that_are_possible() -> None:
    table = draw_table((2, 3, 2))
    groups = np.where(np.arange(300) % 3 == 0, "north", "south")
    levels = {"q1": range(5)}  # nobody chose the last two
    names = ["q0", "q1", "q2"]
    data = lb.from_numpy(
        table.astype(float), feature_names=names, levels=levels, keep={"site": groups}
    )
    fitted = lb.fit(data, "bernoulli-mixture", components=2, errors="none", group="site")
    params, found = fitted.params, fitted.statistics
    patterns = np.stack(np.meshgrid([0, 1], [0, 1, 2], [0, 1], indexing="ij"), -1).reshape(-1, 3)
    planes = np.column_stack(
        [patterns[:, 0], *(patterns[:, 1] > k for k in range(4)), patterns[:, 2]]
    )
    g2 = pearson = 0.0
    for site in ("north", "south"):
        (block,) = make_memory_blocks(DenseData(planes.astype(np.uint8)))
        block = replace(block, segment=fitted.model.structure.groups.index(site))
        likelihood: Any = fitted.model
        nats = likelihood.log_likelihood(params, block, RowRandom(0)).nats
        own = table[groups == site]
        observed = (own[:, None] == patterns).all(axis=2).sum(axis=0)
        expected = len(own) * np.exp(nats)
        pearson += ((observed - expected) ** 2 / expected).sum()
        pearson += len(own) - expected.sum()  # of levels that no row has
        g2 += 2 * scipy.special.xlogy(observed, observed / expected).sum()
    assert found["n_patterns"] == 2 * 12
    assert found["pattern_df"] == 2 * 11 - found["n_parameters"]
    assert found["g2"] == pytest.approx(g2, rel=1e-6)
    assert found["pearson"] == pytest.approx(pearson, rel=1e-6)


MISSING: dict[str, tuple[str, dict[str, Any]]] = {
    "values": ("1 row has missing values", {}),
    "degrees": ("41 parameters leave no degree of freedom", {"components": 7}),
    "covariates": ("depend on its covariates", {"covariates": ["age"]}),
}


@pytest.mark.parametrize("case", MISSING)
def test_the_reason_for_a_missing_g2_is_given(case: str) -> None:
    reason, settings = MISSING[case]
    table = draw_table((2,) * 5)
    if case == "values":
        table[7, 2] = -1
    data = from_levels(table, keep={"age": np.arange(300.0)})
    found = lb.fit(
        data, "bernoulli-mixture", **{"components": 2, "errors": "none", "max_iter": 5, **settings}
    ).statistics
    assert reason in found["g2_missing"]
    assert "g2" not in found


def test_survey_weights_have_a_likelihood_only() -> None:
    data = from_levels(draw_table((2,) * 5), keep={"w": 0.5 + np.arange(300) % 4})
    found = lb.fit(
        data, "bernoulli-mixture", components=2, weight="w", weights="sampling"
    ).statistics
    assert np.isfinite(found["log_likelihood"])
    assert "bic" not in found
    assert "sampling weights" in found["aic_missing"]


@pytest.mark.parametrize("model", ["clipped-pca", "rbm", "autoencoder"])
def test_models_without_an_exact_likelihood_have_no_statistics(model: str) -> None:
    settings = {} if model == "clipped-pca" else {"max_iter": 2}
    fitted = lb.fit(from_levels(draw_table((2,) * 5)), model, components=2, **settings)
    assert "log_likelihood" not in fitted.statistics


@pytest.mark.parametrize("n_states", [2, 3])
@pytest.mark.parametrize("parents", [(-1, 0, 1, 2), (-1, 0, 0, 1), (-1, 0, 0, 0, 1)])
def test_parameters_of_hidden_trees_are_those_that_the_tables_determine(
    n_states: int, parents: tuple[int, ...]
) -> None:
    """The rank of the derivatives of the probabilities of all rows by the free entries.

    With more states than levels, the number is an upper bound.
    """
    n = len(parents)
    rng = np.random.default_rng(1)
    shapes = [(n_states,), (n - 1, n_states, n_states), (n, n_states, 2)]
    tables = [rng.dirichlet(np.ones(shape[-1]), shape[:-1]) for shape in shapes]
    rows = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    (block,) = make_memory_blocks(DenseData(rows.astype(np.uint8)))
    model = HiddenTree(states=n_states)

    def make_params(at: NDArray[np.float64]) -> HiddenTreeParams:
        parts = np.split(at, np.cumsum([np.prod(shape) for shape in shapes])[:-1])
        own = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]
        own = [part / part.sum(axis=-1, keepdims=True) for part in own]
        transitions = np.zeros((1, n, n_states, n_states))
        transitions[0, 1:] = own[1]
        return HiddenTreeParams(
            own[0], np.array(parents), transitions, own[2][None], np.full(2 * n, 0.5)
        )

    def probabilities(at: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.exp(model.log_likelihood(make_params(at), block, RowRandom(0)).nats)

    at = np.concatenate([table.ravel() for table in tables])
    steps = 1e-4 * np.eye(len(at))
    jacobian = np.stack([probabilities(at + s) - probabilities(at - s) for s in steps]) / 2e-4
    rank = int(np.linalg.matrix_rank(jacobian, tol=1e-7))
    state = FitState(make_params(at), auxiliary={"n_present": np.full(n, 2)})
    found = model.count_free_parameters(state)
    assert found == rank if n_states == 2 else rank <= found <= rank + 3
