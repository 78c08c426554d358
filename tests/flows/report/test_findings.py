"""What a report opens with: what leads, what is not to be read, and words that are explained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.exporting.columns import find_unbounded_weights
from flows.report.page import Report, build_report_from_artifact
from flows.report.tables import explain_columns, explain_facts, make_parameter_table
from pipeline.errors import format_share
from pipeline.models.registry import find_models
from pipeline.models.vocabulary import PLAIN, make_plural
from tests.support.data import draw_probit_rows, write_arrays
from tests.support.fits import write_fit


def drawn(folder: Path, model: str, X: np.ndarray, **settings: Any) -> Report:
    dataset = write_arrays(folder / "d.zarr", X)
    return build_report_from_artifact(
        write_fit(folder / "f", find_models()[model](**settings), dataset)
    )


def test_items_without_bound_do_not_lead(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(600, 5, 1, seed=1)
    twice = np.column_stack([X, X[:, 0]])  # the data separate f0 and f5
    report = drawn(tmp_path, "latent-trait", twice, n_components=1)
    assert np.flatnonzero(find_unbounded_weights(report.fitted.artifact)).tolist() == [0, 5]
    told = " ".join(report.findings)
    assert "is led by" in told
    assert "f0 (" not in told
    assert "f5 (" not in told
    table = make_parameter_table(report.fitted.artifact, report.correlations)
    assert table is not None
    assert "D = 1" in table.note
    untold = [name for name, cells in table.rows if cells[0].uncertainty == "(unknown)"]
    assert untold == ["f0", "f5"]


def test_the_fit_of_pairs_is_judged_by_the_numbers_of_its_figure(tmp_path: Path) -> None:
    """Two traits are needed: one or none leave joint frequencies that differ beyond chance."""
    X, _ = draw_probit_rows(3000, 12, 2, seed=1)
    cases = {0: "differ more than by chance", 2: "differ no more than by chance"}
    for n_components, text in cases.items():
        model = ("latent-trait", n_components) if n_components else ("bernoulli-mixture", 1)
        folder = tmp_path / str(n_components)
        report = drawn(folder, model[0], X, n_components=model[1])
        (sentence,) = (one for one in report.findings if "Joint frequencies" in one)
        assert text in sentence
        note = next(f.note for f in report.figures if f.title == "Calibration of pairs")
        rmse, chance = re.findall(r"(?:is|about) (0\.\d+)", note)
        assert f"root mean square {rmse}, by chance about {chance}" in sentence


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("model", "component"),
    [
        ("kernel-pca", "component"),
        ("laplacian-eigenmap", "component"),
        ("tree-mixture", "class"),
        ("hidden-tree", "state"),
    ],
)
def test_models_without_parameters_of_features_tell_correlations(
    tmp_path: Path, model: str, component: str
) -> None:
    X, _ = draw_probit_rows(300, 6, 2, seed=2)
    report = drawn(tmp_path, model, X, n_components=2)
    assert report.correlations is not None
    assert f"{component.capitalize()} 1 correlates most with f" in " ".join(report.findings)
    table = make_parameter_table(report.fitted.artifact, report.correlations)
    assert table is not None
    assert table.title == f"Correlations of features with {make_plural(component)}"
    values = [[cell.value for cell in cells] for _, cells in table.rows]
    np.testing.assert_allclose(values, report.correlations)


def test_words_are_explained_where_they_stand() -> None:
    facts = [("stability of halves", "0.9"), ("objective", "−4.2 nats per row")]
    assert "unit of natural logarithms" in explain_facts(facts)
    assert "two halves of the rows" in explain_facts(facts)
    assert explain_facts([("rows", "10")]) == ""
    assert explain_columns(["weights_1", "difficulty"], PLAIN).startswith("Slopes a and")


def test_reversed_items_are_named_first(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(900, 8, 1, seed=3)
    direction = np.sign(np.corrcoef(X, rowvar=False)[:, 0])
    X = np.where(direction > 0, X, 1 - X).astype(np.uint8)  # all items point the same way
    X[:, 4] = 1 - X[:, 4]
    report = drawn(tmp_path, "latent-trait", X, n_components=1)
    assert next(iter(report.topics)) == "Items to check"
    assert report.findings[0] == "f4 points the other way than most."
    right = np.where(np.arange(8) == 4, 1 - X, X)
    assert (
        drawn(tmp_path / "right", "latent-trait", right, n_components=1)
        .findings[0]
        .startswith("None: no item points the other way")
    )


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.998, "99.8%"), (0.99996, "99.996%"), (0.997, "99.7%"), (1.0, "100%"), (0.99, "99%"),
     (0.001, "0.1%"), (0.0, "0%"), (1 - 1e-15, "100%"), (0.004, "0.4%"), (0.5, "50%")],
)  # fmt: skip
def test_only_all_is_100_percent(share: float, text: str) -> None:
    assert format_share(share) == text


def test_every_model_names_what_no_data_determine() -> None:
    assert all(model.indeterminacy for model in find_models().values())


def test_factors_have_the_words_of_factor_analysis(tmp_path: Path) -> None:
    X, _ = draw_probit_rows(500, 6, 1, seed=4)
    report = drawn(tmp_path, "clipped-pca", X, n_components=1, estimator="minres")
    assert [*report.topics][-4:] == ["Factors", "Not determined", "Fit", "Data"]
    assert report.findings[-1].startswith("clipped-pca was fitted with 1 factor to 500 rows of 6")
    (figure,) = (f for f in report.figures if f.title == "Rows in latent space")
    assert figure.heading == "Persons in latent space"
    table = make_parameter_table(report.fitted.artifact, report.correlations)
    assert table is not None
    assert table.kind == "item"
