"""Trees of latent-trait models, against sums over a grid of both traits."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

import latentbits as lb
from flows.report.figures.marks import PointMarks
from flows.report.page import build_report_from_artifact
from pipeline.data.blocks import pack_block
from pipeline.errors import FitError
from pipeline.executors.base import SerialExecutor, ThreadsExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.latent_trait.tree import TraitTree, TraitTreeParams
from pipeline.models.state import FitState
from pipeline.random import RowRandom
from tests.support.data import make_test_row_source, write_arrays

RNG = RowRandom(0)


def draw_groups(n_rows: int, seed: int = 1) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Draw rows of two latent-trait models, and which of them each row is from."""
    rng = np.random.default_rng(seed)
    weights, offsets = rng.normal(0, 1.5, (2, 12, 2)), rng.normal(0, 1.5, (2, 12))
    group, x = rng.integers(0, 2, n_rows), rng.normal(size=(n_rows, 2))
    logits = np.einsum("nk,nik->ni", x, weights[group]) + offsets[group]
    return (rng.random(logits.shape) < expit(logits)).astype(np.uint8), group


def integrate_on_grid(
    weights: Any, offsets: Any, X: NDArray[np.uint8], observed: Any = 1, n_points: int = 141
) -> tuple[Any, Any]:
    """log P of each row, (n_rows,), and posterior means of x, by a Riemann sum."""
    axis = np.linspace(-6, 6, n_points)
    x = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    logits = (x @ weights.T + offsets).T
    log_joint = (observed * X) @ -np.logaddexp(0, -logits)
    log_joint = log_joint + (observed * (1 - X)) @ -np.logaddexp(0, logits)
    log_joint = log_joint - 0.5 * (x**2).sum(axis=1) - np.log(2 * np.pi)
    nats = logsumexp(log_joint, axis=1)
    means = np.exp(log_joint - nats[:, None]) @ x
    return nats + 2 * np.log(axis[1] - axis[0]), means


@pytest.fixture(scope="module")
def tiny() -> TraitTreeParams:
    """A tree of two children, the first of which has three, and the second two."""
    rng = np.random.default_rng(0)
    return TraitTreeParams(
        rng.normal(size=(4, 2)),
        rng.normal(size=4),
        np.array([0, 0, 1, 1, 1, 2, 2]),
        np.array([0.3, 0.7, 0.2, 0.5, 0.3, 0.6, 0.4]),
        rng.normal(0, 1.5, (7, 4, 2)),
        rng.normal(size=(7, 4)),
    )


def test_rows_are_those_of_sums_over_a_grid(tiny: TraitTreeParams) -> None:
    X = np.array([*product((0, 1), repeat=4)], np.uint8)
    observed = np.ones_like(X)
    observed[3, 1], observed[5, :] = 0, 0
    block, model = pack_block(X * observed, observed), TraitTree()
    grid = [integrate_on_grid(own[:, :2], own[:, 2], X, observed) for own in tiny.forms]
    P = [np.exp(nats) for nats, _ in grid]
    first, second = 0.3 * P[1], 0.7 * P[2]
    r = first / (first + second)
    joint = np.stack([0.2 * P[3], 0.5 * P[4], 0.3 * P[5]])
    other = np.stack([0.6 * P[6], 0.4 * P[7]])
    expected = np.vstack(
        [r, 1 - r, r * joint / joint.sum(axis=0), (1 - r) * other / other.sum(axis=0)]
    )
    codes = model.transform(tiny, block, RNG)
    np.testing.assert_allclose(codes["responsibility"], expected.T, atol=1e-4)
    positions = np.stack([mean for _, mean in grid], axis=1)
    np.testing.assert_allclose(codes["mean"], positions[:, 0], atol=1e-4)
    np.testing.assert_allclose(codes["position"], positions[:, 1:], atol=1e-4)
    mixture = np.log(0.3 * joint.sum(axis=0) + 0.7 * other.sum(axis=0))
    nats = model.log_likelihood(tiny, block, RNG).nats
    np.testing.assert_allclose(nats, mixture, atol=1e-4)
    whole = model.log_likelihood(tiny, pack_block(X), RNG).nats
    assert np.exp(whole).sum() == pytest.approx(1, abs=1e-4)
    # The sums of a pass are on other quadrature nodes.
    sums = model.summarize(tiny, {}, block, RNG).values
    assert sums["nats"] == pytest.approx(mixture.sum(), abs=0.01)
    split = r @ np.log(joint.sum(axis=0)), (1 - r) @ np.log(other.sum(axis=0))
    np.testing.assert_allclose(sums["split_nats"], split, atol=0.01)
    drawn = model.sample(tiny, 40_000, np.random.default_rng(1))
    found = np.bincount(drawn @ [8, 4, 2, 1], minlength=16) / len(drawn)
    np.testing.assert_allclose(found, np.exp(whole), atol=5 * np.sqrt(0.25 / len(drawn)))


def fit_tree(path: Path, X: Any, **settings: Any) -> FitState:
    rows = make_test_row_source(write_arrays(path, X))
    return fit_model(TraitTree(**settings), rows, SerialExecutor())


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> FitState:
    X, _ = draw_groups(600)
    return fit_tree(tmp_path_factory.mktemp("tree") / "data.zarr", X, tree=(2,), tol=1e-7)


def test_children_find_the_groups(fitted: FitState) -> None:
    X, group = draw_groups(600)
    codes = TraitTree().transform(fitted.params, pack_block(X), RNG)
    is_first = codes["responsibility"][:, 0] > 0.5
    assert max(np.mean(is_first == (group == k)) for k in (0, 1)) > 0.9
    found = fitted.diagnostics
    assert found["leaf_log_likelihood"] > found["top_log_likelihood"] + 0.3
    assert found["node_names"] == ["1", "2"]
    assert fitted.converged


def test_the_fit_is_at_a_maximum(fitted: FitState) -> None:
    """Of the objective by sums over a grid, along random directions of forms and shares."""
    X, _ = draw_groups(600)
    params = fitted.params

    def score(forms: Any, log_odds: float) -> float:
        shares = np.log([expit(log_odds), expit(-log_odds)])
        nats = [integrate_on_grid(own[:, :2], own[:, 2], X, n_points=49)[0] for own in forms]
        total = logsumexp(np.column_stack(nats) + shares, axis=1).sum()
        return float(total - 0.5 * TraitTree().prior_precision * (forms**2).sum())

    rng, forms = np.random.default_rng(3), params.forms[1:]
    log_odds = float(np.log(params.node_shares[0] / params.node_shares[1]))
    for _ in range(2):
        along, own = rng.normal(size=forms.shape), rng.normal()
        ends = [score(forms + h * along, log_odds + h * own) for h in (-0.02, 0.0, 0.02)]
        curvature = (ends[0] - 2 * ends[1] + ends[2]) / 0.02**2
        slope = (ends[2] - ends[0]) / 0.04
        assert curvature < 0
        assert slope**2 / (2 * -curvature) < 0.02  # nats that a step would gain


def test_chunks_executors_and_interruptions_do_not_matter(tmp_path: Path) -> None:
    X, _ = draw_groups(130)
    settings: Any = {"tree": (2, 2), "tol": 1e-2, "max_iter": 5}
    dataset = write_arrays(tmp_path / "data.zarr", X, words_per_chunk=1)
    rows, model, states = make_test_row_source(dataset), TraitTree(**settings), []
    whole = fit_model(model, rows, SerialExecutor(), checkpoint=states.append)
    threaded = fit_model(model, rows, ThreadsExecutor(2))
    later = [state for state in states if state.starts][-1]
    resumed = fit_model(model, rows, SerialExecutor(), state=later)
    for own in (threaded, resumed):
        assert own.params.forms.tobytes() == whole.params.forms.tobytes()
        assert own.params.shares.tobytes() == whole.params.shares.tobytes()
    joined = fit_tree(tmp_path / "joined.zarr", X, **settings)
    np.testing.assert_allclose(joined.params.forms, whole.params.forms, rtol=1e-6, atol=1e-8)
    assert (np.diff(whole.params.node_shares.reshape(-1, 2), axis=1) <= 0).all()


@pytest.mark.matrix
def test_weights_count_rows() -> None:
    X, _ = draw_groups(120)
    counts = np.arange(120) % 3
    settings: Any = {"tree": (2,), "executor": "serial", "max_iter": 6}
    weighed = lb.fit(
        lb.from_numpy(X, keep={"n": counts}),
        "latent-trait",
        weight="n",
        weights="frequency",
        **settings,
    )
    repeated = lb.fit(lb.from_numpy(np.repeat(X, counts, axis=0)), "latent-trait", **settings)
    np.testing.assert_allclose(weighed.params.forms, repeated.params.forms, atol=1e-5)


def test_untidy_rows_have_finite_positions(tmp_path: Path) -> None:
    """Missing by design, an empty row, a feature constant in a group; the report has planes."""
    X, group = draw_groups(200)
    X[group == 0, 0] = 1
    answers = X.astype(float)
    answers[:100, 8:], answers[100:, :4], answers[7] = np.nan, np.nan, np.nan
    data = write_arrays(
        tmp_path / "data.zarr",
        np.nan_to_num(answers).astype(np.uint8),
        (~np.isnan(answers)).astype(np.uint8),
        columns={"label": np.array(["None", "NA"])[group]},
    )
    fitted = lb.fit(data.path, "latent-trait", tree=(2,), max_iter=8, executor="serial")
    codes = lb.transform(fitted, data.path)
    assert all(np.isfinite(codes[name]).all() for name in ("mean", "position", "responsibility"))
    np.testing.assert_allclose(codes["responsibility"].sum(axis=1), 1)
    np.testing.assert_allclose(codes["responsibility"][7], fitted.params.node_shares)
    assert fitted.manifest["diagnostics"]["rows_without_values"] == 1
    fitted.save(tmp_path / "fit")
    figures = {own.title: own for own in build_report_from_artifact(tmp_path / "fit").figures}
    figure = figures["Rows in node 2"]
    assert [key.name for key in figure.keys] == ["NA", "None"]
    is_shown = codes["responsibility"][:, 1] >= 0.05
    assert f"The ink of each of {is_shown.sum()} persons" in figure.note
    assert figure.plot is not None
    opacities = [mark.opacity for mark in figure.plot.marks if isinstance(mark, PointMarks)]
    assert opacities == sorted(opacities)


@pytest.mark.parametrize(
    ("settings", "n_rows", "text"),
    [
        ({"tree": (3, 2)}, 5, r"The tree has 6 leaves, but the dataset has only 5 rows"),
        ({"tree": (2,), "components": 3}, 50, r"Each node of tree has two traits"),
        ({"tree": (2,), "guessing": "item"}, 50, r"tree cannot be combined with guessing"),
        ({"tree": (1,)}, 50, r"tree must be at least 2"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], n_rows: int, text: str) -> None:
    data = lb.from_numpy(draw_groups(n_rows)[0])
    with pytest.raises(FitError, match=text):
        lb.fit(data, "latent-trait", executor="serial", **settings)


def test_children_without_rows_are_named() -> None:
    X, _ = draw_groups(16)
    X[:, 3] = 1
    data = lb.from_numpy(X)
    fitted = lb.fit(
        data, "latent-trait", tree=(4, 3), max_iter=6, constant_features="keep", executor="serial"
    )
    (text,) = [own for own in fitted.manifest["warnings"] if "less than one row" in own]
    assert not fitted.params.node_weights[:, 3].any()
    names, rows = (fitted.manifest["diagnostics"][own] for own in ("node_names", "node_rows"))
    for name, mass in zip(names, rows, strict=True):
        assert (f" {name}," in f"{text.partition(';')[0]},") == (mass < 1)
