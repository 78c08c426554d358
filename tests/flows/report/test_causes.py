"""What the report says of hidden units that turn on what is below them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.data.datasets import load_fitted_model
from flows.report.figures.causes import find_causes, make_unit_table, plot_causes
from flows.report.figures.images import find_image_layout
from flows.report.inputs import REPORT_FILE
from flows.report.page import build_report_from_artifact, write_report
from flows.report.pictures import render_picture
from pipeline.inference.sample import feature_probabilities_by_unit
from pipeline.models.capabilities import HiddenCauses
from storage.dataset.dataset import open_dataset
from tests.support.data import write_arrays
from tests.support.fits import build_model, write_fit

ITEMS = ("milk", "yogurt", "beer", "<b>chips</b>")
TWO = HiddenCauses(
    (np.array([[0.9, 0.0], [0.5, 0.0], [0.0, 1.0], [0.05, 0.25]]), np.array([[0.5], [1.0]])),
    np.array([0.2, 0.3, 0.125]),
)


def test_the_table_names_what_units_turn_on_and_are_turned_on_by() -> None:
    told = make_unit_table(TWO, ITEMS)
    assert told.columns == ("unit", "on in", "turns on", "by units below", "turned on by")
    assert told.rows == (
        ("1.1", "20.0%", "milk 0.90, yogurt 0.50", "–", "2.1 0.50"),
        ("1.2", "30.0%", "beer 1.00, <b>chips</b> 0.25", "–", "2.1 1.00"),
        (
            "2.1",
            "12.5%",
            "beer 1.00, milk 0.45, <b>chips</b> 0.27, yogurt 0.25",
            "1.2 1.00, 1.1 0.50",
            "–",
        ),
    )
    exclusive = TWO._replace(exclusive_groups=np.array([1, 1, 0]))
    told = make_unit_table(exclusive, ITEMS)
    assert told.columns[-1] == "never on with"
    assert [row[-1] for row in told.rows] == ["1.2", "1.1", "–"]
    many = HiddenCauses((np.full((12, 1), 0.5),), None)
    ((unit, share, named),) = make_unit_table(many, [f"f{i}" for i in range(12)]).rows
    assert (unit, share) == ("1.1", "–")
    assert named.startswith("f0 0.50, f1 0.50")
    assert named.endswith("f7 0.50 and 4 more")


def test_what_upper_units_turn_on_is_the_share_of_features_that_they_do() -> None:
    rng = np.random.default_rng(0)
    middle = (rng.random((200_000, 2)) < TWO.strengths[1].T).astype(float)
    on = 1 - np.prod(1 - TWO.strengths[0] * middle[:, None, :], axis=2)
    np.testing.assert_allclose(
        feature_probabilities_by_unit(TWO.strengths)[1][:, 0], on.mean(axis=0), atol=0.005
    )


def test_pixels_are_drawn_as_images_and_units_below_as_a_map() -> None:
    layout = find_image_layout(ITEMS, "2x2")
    lower, pixels, units = plot_causes(TWO, ITEMS, layout)
    assert [image.caption for image in lower.images] == ["1.1: 20.0%", "1.2: 30.0%"]
    assert [image.caption for image in pixels.images] == ["2.1: 12.5%"]
    assert units.title == "Units of layer 1 that units of layer 2 turn on"
    features, _ = plot_causes(TWO, ITEMS, None)
    (cells,) = features.plot.marks
    np.testing.assert_array_equal(cells.values, TWO.strengths[0])
    assert all(
        render_picture(figure).startswith(b"\x89PNG") for figure in (lower, pixels, units, features)
    )


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network of items that are bought together."""
    folder, rng = tmp_path_factory.mktemp("causes"), np.random.default_rng(1)
    X = (rng.random((400, 2)) < 0.3).astype(np.uint8).repeat(2, axis=1)
    dataset = write_arrays(folder / "items.zarr", X, names=ITEMS)
    model = build_model("noisy-or", None, ["layers=2", "starts=2", "epochs=5"])
    return write_fit(folder / "artifact", model, open_dataset(dataset.path))


def test_the_report_of_a_fit_has_the_table(fitted: Path, tmp_path: Path) -> None:
    model = load_fitted_model(fitted)
    rows = make_unit_table(find_causes(model), model.feature_names).rows
    assert {tuple(word.split()[0] for word in row[2].split(", ")) for row in rows} == {
        ("milk", "yogurt"),
        ("beer", "<b>chips</b>"),
    }
    report = build_report_from_artifact(fitted)
    assert "2 components, as set." in report.findings
    write_report(report, tmp_path / REPORT_FILE)
    page = (tmp_path / REPORT_FILE).read_text(encoding="utf-8")
    assert f"<td>{rows[0][1]}</td>" in page
    assert "<b>chips" not in page
    assert "&lt;b&gt;chips" in page
    assert "Features that units of layer 1 turn on" in page
    assert "Weights of the first layer" not in page
