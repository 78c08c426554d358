"""Trees of features in the report: their layout, their figures and the table of edges."""

from __future__ import annotations

from html import unescape
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from flows.data.datasets import load_fitted_model
from flows.report.figures.colours import NEGATIVE, POSITIVE
from flows.report.figures.images import find_image_layout
from flows.report.figures.marks import Figure, LineMarks, PointMarks, TextMarks
from flows.report.figures.trees import (
    draw_curve,
    find_edges,
    make_edge_table,
    place_nodes,
    plot_trees,
)
from flows.report.inputs import REPORT_FILE
from flows.report.page import build_report_from_artifact, write_report
from flows.report.pictures import render_picture
from pipeline.inference.edges import TreeEdges
from storage.dataset.dataset import open_dataset
from tests.support.data import write_arrays
from tests.support.fits import build_model, write_fit

Indices = NDArray[np.int64]
ITEMS = ("milk", "yogurt", "beer", "<b>chips</b>")


def draw_tree(rng: np.random.Generator, n: int, reach: int) -> Indices:
    """Edges of a random tree; the smaller the reach, the longer its paths."""
    names = rng.permutation(n)
    pairs = [(names[i], names[rng.integers(max(0, i - reach), i)]) for i in range(1, n)]
    return np.array(pairs, np.int64).reshape(-1, 2)


def draw_edges(n: int, seed: int = 0, n_trees: int = 1, reach: int = 20) -> TreeEdges:
    rng = np.random.default_rng(seed)
    trees = []
    for k in range(n_trees):
        feature, parent = draw_tree(rng, n, reach).T
        nats = np.sort(rng.exponential(0.1, n - 1))[::-1]
        size = np.full(n - 1, 1)
        trees.append((k * size, size / n_trees, feature, parent, nats, rng.uniform(-1, 1, n - 1)))
    return TreeEdges(*map(np.concatenate, zip(*trees, strict=True)))


@pytest.mark.parametrize("seed", range(6))
def test_rows_and_curves_of_random_trees_are_apart(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 40))
    edges = draw_tree(rng, n, int(rng.choice([1, 3, 60])))
    depths, rows = place_nodes(n, edges)
    assert sorted(rows) == list(range(n))
    assert (np.abs(depths[edges[:, 0]] - depths[edges[:, 1]]) == 1).all()
    # The root is in the middle of the longest path, whose length comes from powers of a matrix.
    steps = np.eye(n, dtype=np.int64)
    np.add.at(steps, (edges[:, 0], edges[:, 1]), 1)
    np.add.at(steps, (edges[:, 1], edges[:, 0]), 1)
    reached, length = np.eye(n, dtype=np.bool_), 0
    while not reached.all():
        reached, length = (reached @ steps) > 0, length + 1
    assert depths.max() == -(-length // 2)
    # No curve enters the place of a name, which is 0.8 rows high and begins at a node.
    nodes = np.stack([depths, rows], axis=1).astype(np.float64)
    curves = []
    for pair in edges.tolist():
        start, end = sorted(pair, key=lambda i: depths[i])
        curve = draw_curve(nodes[start], nodes[end])
        np.testing.assert_allclose(curve[[0, -1]], nodes[[start, end]])
        curves.append(curve)
        is_beside = np.abs(curve[:, 1] - rows[start]) < 0.4
        assert (curve[is_beside, 0] < depths[start] + 0.1).all()  # names have a distance
        for other in set(range(n)) - {start, end}:
            is_beside = np.abs(curve[:, 1] - rows[other]) < 0.4
            assert (curve[is_beside, 0] < depths[other]).all()
    for k, first in enumerate(curves):
        for second in curves[:k]:
            if not np.array_equal(first[0], second[0]):
                assert not do_cross(first, second)


def do_cross(first: NDArray[np.float64], second: NDArray[np.float64]) -> bool:
    """Whether two polylines that share no starting point cross between their ends."""

    def side(a: NDArray[np.float64], b: NDArray[np.float64], c: NDArray[np.float64]) -> float:
        return float((b[0] - a[0]) * (c[1] - a[1]) - (b[1] - a[1]) * (c[0] - a[0]))

    return any(
        side(a, b, c) * side(a, b, d) < -1e-12 and side(c, d, a) * side(c, d, b) < -1e-12
        for a, b in pairwise(first)
        for c, d in pairwise(second)
    )


def test_several_trees_are_one_below_the_other_the_largest_first() -> None:
    depths, rows = place_nodes(6, np.array([[0, 1], [2, 3], [3, 4], [4, 5]]))
    assert sorted(rows[2:]) == [0, 1, 2, 3]
    assert sorted(rows[:2]) == [4, 5]
    assert sorted(depths[:2]) == [0, 1]
    assert place_nodes(1, np.zeros((0, 2), np.int64)).rows.tolist() == [0]


def get_marks(figure: Figure) -> tuple[LineMarks, PointMarks, TextMarks]:
    assert figure.plot is not None
    lines, points, *texts = figure.plot.marks
    assert isinstance(lines, LineMarks)
    assert isinstance(points, PointMarks)
    return lines, points, texts[0] if texts else None


def test_lines_have_the_width_of_information_and_the_colour_of_the_sign() -> None:
    edges = draw_edges(30)
    names = [f"feature {i}" for i in range(30)]
    (figure,) = plot_trees(edges, names, None)
    lines, points, texts = get_marks(figure)
    assert (np.diff(lines.width) <= 0).all()
    assert lines.width[0] == 5
    half = int(np.searchsorted(-edges.mutual_information, -edges.mutual_information[0] / 2))
    assert lines.width[half] == pytest.approx(
        5 * edges.mutual_information[half] / edges.mutual_information[0]
    )
    expected = [POSITIVE if r > 0 else NEGATIVE for r in edges.correlation]
    assert lines.colours == expected
    assert sorted(texts.texts) == sorted(names)
    place = {text: (x, y) for text, x, y in zip(texts.texts, texts.x, texts.y, strict=True)}
    for k, line in enumerate(lines.points):
        ends = {place[names[i]] for i in (edges.feature[k], edges.parent[k])}
        assert ends == {tuple(line[0]), tuple(line[-1])}
    assert [name for name, _ in points.facts] == ["feature"]
    assert "shown" not in figure.note


def test_only_the_strongest_edges_of_the_heaviest_trees_are_drawn() -> None:
    edges = draw_edges(200, n_trees=6)
    names = [f"f{i}" for i in range(200)]
    figures = list(plot_trees(edges, names, None))
    assert [figure.title for figure in figures] == ["Tree 1", "Tree 2", "Tree 3", "Tree 4"]
    assert "4 of 6 trees are shown, the heaviest." in figures[0].note
    for k, figure in enumerate(figures):
        lines, points, _ = get_marks(figure)
        n = len(lines.points)
        assert 59 <= len(points.x) <= 60
        assert f"{n} of 199 edges are shown, the strongest." in figure.note
        shown = edges.feature[edges.tree == k][:n]
        assert lines.facts[0][1] == [names[i] for i in shown]
    assert {figure.width for figure in figures} == {520}
    (figure,) = plot_trees(edges.select(slice(0, 199)), names, None)
    assert figure.width == 1060
    assert 119 <= len(get_marks(figure)[1].x) <= 120


def test_pixels_stay_in_their_place() -> None:
    layout = find_image_layout([str(i) for i in range(6)], "2x3")
    edges = draw_edges(6)
    (figure,) = plot_trees(edges, "abcdef", layout)
    lines, points, texts = get_marks(figure)
    assert texts is None
    assert [*zip(points.x, points.y, strict=True)] == [(k % 3, k // 3) for k in range(6)]
    for k, line in enumerate(lines.points):
        i, j = edges.parent[k], edges.feature[k]
        np.testing.assert_allclose(line[[0, -1]], [(i % 3, i // 3), (j % 3, j // 3)])
    plot = figure.plot
    assert plot is not None
    assert plot.height is None
    ends = (plot.x.low, plot.x.high, plot.y.high, plot.y.low)
    assert ends == (-0.5, 2.5, -1, 2)
    assert render_picture(figure).startswith(b"\x89PNG")


def test_lines_between_distant_pixels_stay_within_the_image() -> None:
    names = [str(i) for i in range(12 * 20)]
    (figure,) = plot_trees(draw_edges(240, reach=240), names, find_image_layout(names, "12x20"))
    lines = get_marks(figure)[0].points
    for line in lines:
        assert (line >= -0.5).all()
        assert (line <= [19.5, 11.5]).all()
    straight = sum(np.allclose(line[16], (line[0] + line[-1]) / 2) for line in lines)
    assert straight < 20


def test_the_table_has_the_strongest_edges() -> None:
    edges = draw_edges(40)
    names = [f"f{i}" for i in range(40)]
    table = make_edge_table(edges, names)
    assert table.columns == ("feature", "parent", "mutual information, nats", "correlation")
    assert len(table.rows) == 20
    first = f"f{edges.feature[0]}", f"f{edges.parent[0]}", f"{edges.mutual_information[0]:.4f}"
    assert table.rows[0][:3] == first
    assert float(table.rows[0][3].replace("−", "-")) == pytest.approx(
        edges.correlation[0], abs=0.005
    )
    assert "latentbits export --what edges writes all 39 edges." in table.note
    several = make_edge_table(draw_edges(40, n_trees=3), names)
    assert several.columns[-1] == "tree"
    assert {row[-1] for row in several.rows} == {"1", "2", "3"}
    unknown = edges._replace(correlation=np.full(39, np.nan))
    assert make_edge_table(unknown, names).rows[0][3] == "–"
    tiny = edges._replace(correlation=np.full(39, -0.001))
    assert make_edge_table(tiny, names).rows[0][3] == "0.00"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pairs of items that are bought together."""
    folder, rng = tmp_path_factory.mktemp("trees"), np.random.default_rng(1)
    X = (rng.random((400, 2)) < 0.3).repeat(2, axis=1)
    X ^= rng.random(X.shape) < np.array([0.02, 0.02, 0.1, 0.1])
    dataset = write_arrays(folder / "items.zarr", X.astype(np.uint8), names=ITEMS)
    model = build_model("tree-mixture", "1", [])
    return write_fit(folder / "artifact", model, open_dataset(dataset.path))


def test_the_report_of_a_fit_has_its_tree(fitted: Path, tmp_path: Path) -> None:
    report = build_report_from_artifact(fitted)
    assert "The strongest edges join yogurt and milk" in " ".join(report.findings)
    titles = [figure.title for figure in report.figures]
    assert titles == ["Convergence", "Tree of features", "Calibration of pairs"]
    edges = find_edges(load_fitted_model(fitted))
    assert edges is not None
    write_report(report, tmp_path / REPORT_FILE)
    page = (tmp_path / REPORT_FILE).read_text(encoding="utf-8")
    assert "<b>chips" not in page
    assert page.count("&lt;b&gt;chips") >= 2
    (row,) = (row for row in page.split("<tr>") if ">yogurt</th><td>milk</td>" in row)
    assert f"<td>{edges.mutual_information[0]:.4f}</td>" in row
    assert "tables 1 1 1" not in unescape(page)
    assert "parents" not in page.split("Arrays of the artifact")[0]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["states=2"], "The components are the hidden states of ROOT, the root of the tree."),
        (
            ["states=2", "trees=3"],
            "The fit has 3 trees with the same edges. The components are the hidden states of "
            "ROOT, the root of all trees: 2 per tree, one tree after the other.",
        ),
    ],
)
def test_findings_say_which_states_the_components_are(
    fitted: Path, tmp_path: Path, settings: list[str], sentence: str
) -> None:
    dataset = open_dataset(fitted.parent / "items.zarr")
    model = build_model("hidden-tree", None, [*settings, "max_iter=3"])
    path = write_fit(tmp_path / "artifact", model, dataset)
    artifact = load_fitted_model(path).artifact
    root = dataset.feature_names[artifact["parents"].tolist().index(-1)]
    assert sentence.replace("ROOT", root) in build_report_from_artifact(path).findings


def test_names_are_drawn_in_print(fitted: Path) -> None:
    (figure,) = (
        f for f in build_report_from_artifact(fitted).figures if f.title.startswith("Tree")
    )
    svg = render_picture(figure, "svg").decode()
    assert "&lt;b&gt;chips" in svg
    assert "yogurt" in svg
