"""The report in a real browser: drawn, without errors, without a request, at any width."""

from __future__ import annotations

import json
import time
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flows.data.ingest import ingest_sources
from flows.report.figures.text import format_number
from flows.report.inputs import FigureOptions
from flows.report.page import build_report_from_artifact, write_report
from pipeline.models.registry import find_models
from storage import load_artifact
from storage.dataset.dataset import BinaryDataset, open_dataset
from tests.flows.hostile import HOSTILE
from tests.support.data import draw_probit_rows, find_shared_data, write_arrays
from tests.support.fits import build_model, mark_models, write_fit

WIDTHS = {"laptop": 1280, "phone": 390}

LOADED = """
return [...document.images].every(image => image.complete && image.naturalWidth > 0);
"""
OVERFLOWING = """
const scrolls = element => element.parentElement.closest(".scroll");
const wide = element => !scrolls(element) && element.getBoundingClientRect().right > innerWidth + 1;
return [...document.querySelectorAll("body *")].filter(wide).map(e => e.outerHTML.slice(0, 80));
"""
COLUMN = """
const rows = [...document.querySelectorAll(".numbers tbody tr")];
return rows.map(row => Number(row.cells[1].dataset.value));
"""
# Texts beside an axis that touch the one before.
OVERLAPPING = """
const boxes = [...document.querySelectorAll(".names")].map(names =>
  [...names.children].map(name => name.getBoundingClientRect()).filter(box => box.width > 0));
const touch = (a, b) => a.left < b.right && b.left < a.right && Math.abs(a.top - b.top) < 9;
return boxes.flatMap(found => found.filter((box, k) => k && touch(found[k - 1], box))).length;
"""
# Of the figure of a title: the labels of its axes, names on the left by place, and marks.
FIGURE = """
const figure = [...document.querySelectorAll("figure")].find(
  found => found.innerText.startsWith(arguments[0]));
const text = name => figure.querySelector(name).textContent;
const names = [...figure.querySelectorAll(".y.names span")].sort(
  (a, b) => parseFloat(a.style.top) - parseFloat(b.style.top));
const corner = figure.getBoundingClientRect();
const marks = [...figure.querySelectorAll("[data-mark] > *")].map(mark => {
  const { left, top } = mark.getBoundingClientRect();
  return [left - corner.left, top - corner.top];
});
return [text(".x.label"), text(".y.label"), names.map(name => name.textContent), marks];
"""
NAMES = "return [...document.querySelectorAll('[role=img], img')].map(e => e.ariaLabel || e.alt);"


def show(browser: Any, page: Path, width: int, scheme: str = "light") -> None:
    """Open a page as a screen of this width shows it, and wait until it is drawn."""
    browser.get("about:blank")
    for log in ("browser", "performance"):
        browser.get_log(log)
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get(page.resolve().as_uri())
    deadline = time.monotonic() + 600
    while not browser.execute_script(LOADED) and time.monotonic() < deadline:
        time.sleep(0.1)


def check(browser: Any, page: Path) -> None:
    """Check the page that is shown."""
    assert browser.execute_script(LOADED)
    figures = browser.find_elements("css selector", ".plot, .images")
    assert len(figures) > 1
    assert all(is_painted(figure) for figure in figures)
    assert [e for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")] == []
    assert requests(browser) - {page.resolve().as_uri()} == set()
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.execute_script(OVERFLOWING) == []
    assert browser.execute_script(OVERLAPPING) == 0
    names = browser.execute_script(NAMES)
    assert names
    assert all(names)


def is_painted(element: Any) -> bool:
    """Whether a picture of an element has pixels of a colour, which texts and axes have not."""
    element.parent.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    picture = Image.open(BytesIO(element.screenshot_as_png)).convert("HSV")
    return bool((np.asarray(picture)[..., 1] > 100).mean() > 2e-4)


def requests(browser: Any) -> set[str]:
    """The addresses that the page asked for, those within itself left out."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [m["params"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    addresses = {params["request"]["url"] for params in sent}
    return {url for url in addresses if not url.startswith(("data:", "about:", "chrome"))}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> BinaryDataset:
    X, _ = draw_probit_rows(900, 9, 2, seed=3)
    segments = np.array(["a", "b", "c"])[np.arange(900) * 3 // 900]
    group = np.where(X.sum(axis=1) > 4, "high", "low")
    path = tmp_path_factory.mktemp("browser") / "probit.zarr"
    return write_arrays(path, X, segments=segments, columns={"group": group})


def report(
    folder: Path, dataset: BinaryDataset, model: str, n: int, shape: str | None = None
) -> Path:
    """Write the report of a model with so many components."""
    artifact = write_fit(folder / "artifact", build_model(model, str(n), []), dataset)
    page = folder / "report.html"
    write_report(build_report_from_artifact(artifact, FigureOptions(image_shape=shape)), page)
    return page


@pytest.mark.parametrize(
    "model",
    mark_models(  # clipped PCA and latent traits are in the browser with other data
        sorted(find_models()),
        "autoencoder bernoulli-mixture binary-ica-likelihood blica",
        "hidden-tree laplacian-eigenmap noisy-or tree-mixture",
    ),
)
def test_every_model_is_drawn(browser, data, tmp_path, model):
    page = report(tmp_path, data, model, 2)
    for width in WIDTHS.values():
        show(browser, page, width)
        check(browser, page)


@pytest.mark.parametrize("n_components", [pytest.param(1, marks=pytest.mark.matrix), 2])
def test_hostile_names_do_no_harm(browser, tmp_path, n_components):
    X, _ = draw_probit_rows(400, len(HOSTILE), 1, seed=5)
    labels = np.array(HOSTILE, object)[np.arange(400) % len(HOSTILE)].astype(str)
    column = HOSTILE[0].replace("/", "")
    bad = write_arrays(tmp_path / "bad.zarr", X, names=HOSTILE, columns={column: labels})
    page = report(tmp_path, bad, "latent-trait", n_components)
    show(browser, page, WIDTHS["laptop"], "dark")
    point_everywhere(browser)
    check(browser, page)
    assert browser.execute_script("return window.harmed") is None


def point_everywhere(browser: Any) -> None:
    """Move the pointer over every plot, until it shows something."""
    from selenium.webdriver import ActionChains

    shown = []
    for plot in browser.find_elements("css selector", ".plot"):
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
        box = plot.rect
        for k in range(60):
            x = 60 + (37 * k) % max(1, box["width"] - 70) - box["width"] / 2
            y = 8 + (23 * k) % max(1, box["height"] - 60) - box["height"] / 2
            actions = ActionChains(browser, duration=0)
            actions.move_to_element_with_offset(plot, int(x), int(y)).perform()
            if text := browser.execute_script(TOOLTIPS):
                shown.append(text)
                break
    assert len(shown) > 1


TOOLTIPS = "return document.querySelector('.tip:not([hidden])')?.innerText ?? '';"


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("name", "model", "n_components", "shape"),
    [
        ("usps16_train", "clipped-pca", 25, "16x16"),
        ("verbal_aggression", "latent-trait", 2, None),
    ],
)
def test_real_data_are_drawn(browser, tmp_path, name, model, n_components, shape):
    ingest_sources([str(find_shared_data(f"{name}.npz"))], tmp_path / "real.zarr")
    dataset = open_dataset(tmp_path / "real.zarr")
    page = report(tmp_path, dataset, model, n_components, shape)
    for width in WIDTHS.values():
        show(browser, page, width, "dark")
        check(browser, page)


# Names of a tree that overlap, or that the plot cuts off.
CLASHING = """
const names = [...document.querySelectorAll("[data-mark].texts text")];
const boxes = names.map(name => name.getBoundingClientRect());
const plot = names[0].closest(".area").getBoundingClientRect();
const touch = (a, b) =>
  a.left < b.right && b.left < a.right && Math.abs(a.top + a.bottom - b.top - b.bottom) < 24;
return [names.length, boxes.filter((box, k) => box.left < plot.left || box.right > plot.right
  || box.top < plot.top || box.bottom > plot.bottom
  || boxes.some((other, j) => j < k && touch(box, other))).length];
"""


def test_names_of_a_tree_neither_overlap_nor_are_cut(browser: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    columns = [rng.random(600) < 0.5]
    for _ in range(29):
        near = columns[rng.integers(max(0, len(columns) - 6), len(columns))]
        columns.append(near ^ (rng.random(600) < 0.15))
    letters = (
        "Wide MEMBERS' LETTERS, with commas",
        "a name of many small letters in all",
        "東京" * 9,
        "MW" * 30,
    )
    names = [f"{i} {letters[i % 4]}" for i in range(30)]
    X = np.stack(columns, axis=1).astype(np.uint8)
    page = report(tmp_path, write_arrays(tmp_path / "d.zarr", X, names=names), "tree-mixture", 1)
    for width in WIDTHS.values():
        show(browser, page, width, "dark")
        assert browser.execute_script(CLASHING) == [30, 0]
        check(browser, page)


# Names of edges, and of these the names that are broken within a word that has room in a line.
BROKEN = """
const room = document.querySelector(".pairs").clientWidth;
const cells = [...document.querySelectorAll(".pairs tr > :nth-child(-n + 2)")];
const isBroken = cell => {
  const text = cell.firstChild, range = document.createRange();
  return [...text.data.matchAll(/[^ -]+/g)].some(word => {
    range.setStart(text, word.index);
    range.setEnd(text, word.index + word[0].length);
    const boxes = [...range.getClientRects()];
    return boxes.length > 1 && boxes.reduce((sum, box) => sum + box.width, 0) < 0.9 * room;
  });
};
return [cells.length, cells.filter(isBroken).map(cell => cell.innerText)];
"""


@pytest.mark.matrix
def test_long_names_of_edges_are_not_broken_within_words(browser: Any, tmp_path: Path) -> None:
    X, _ = draw_probit_rows(300, 6, 1, seed=6)
    names = [
        *("satisfaction_with_public_transport", "Bundesausbildungsförderungsgesetz", "q7"),
        *("Should the government do more for the environment?", "age_group", "W" * 90),
    ]
    page = report(tmp_path, write_arrays(tmp_path / "d.zarr", X, names=names), "tree-mixture", 2)
    for width in WIDTHS.values():
        show(browser, page, width)
        assert browser.execute_script(BROKEN) == [22, []]
        check(browser, page)


def test_the_first_screen_has_findings_and_a_table_that_sorts(
    browser: Any, data: BinaryDataset, tmp_path: Path
) -> None:
    page = report(tmp_path, data, "latent-trait", 1)
    show(browser, page, 1280)
    findings = browser.find_element("class name", "findings")
    assert findings.text.startswith("Items to check")
    assert "latent-trait was fitted with 1 trait to 900 rows" in findings.text
    assert "Trait 1 is led by" in findings.text
    table = browser.find_element("css selector", ".numbers table")
    assert table.rect["y"] + 100 < 900
    before = browser.execute_script(COLUMN)
    head = browser.find_elements("css selector", ".numbers thead button")[1]
    head.click()
    assert browser.execute_script(COLUMN) == sorted(before, reverse=True)
    head.click()
    assert browser.execute_script(COLUMN) == sorted(before) != before
    assert head.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"
    browser.find_element("class name", "copy").click()
    assert browser.find_element("class name", "copy").text == "Copied"


def test_a_reader_chooses_components_and_the_order_of_features(
    browser: Any, data: BinaryDataset, tmp_path: Path
) -> None:
    show(browser, report(tmp_path, data, "clipped-pca", 4), 1280)
    Select = pytest.importorskip("selenium.webdriver.support.select").Select
    rows, loadings = "Rows in latent space", "Loadings"
    *labels, _, before = browser.execute_script(FIGURE, rows)
    assert labels == ["component 1", "component 2"]
    across, up = (
        browser.find_element("xpath", f"//label[starts-with(., '{label}')]/select")
        for label in ("across", "up")
    )
    Select(across).select_by_visible_text("component 4")
    Select(up).select_by_visible_text("component 3")
    *labels, ticks, after = browser.execute_script(FIGURE, rows)
    assert labels == ["component 4", "component 3"]
    assert len(ticks) > 2
    assert np.abs(np.subtract(after, before)).mean(axis=0).min() > 10
    Select(across).select_by_visible_text("component 1")
    Select(up).select_by_visible_text("component 2")
    np.testing.assert_allclose(browser.execute_script(FIGURE, rows)[-1], before, atol=1)
    *_, given, before = browser.execute_script(FIGURE, loadings)
    assert given == list(data.feature_names)
    order = browser.find_element("xpath", "//label[starts-with(., 'feature order')]/select")
    Select(order).select_by_visible_text("by similarity")
    *_, similar, after = browser.execute_script(FIGURE, loadings)
    assert sorted(similar) == sorted(given) != similar
    tops = {name: top for name, (_, top) in zip(given, after, strict=True)}
    assert sorted(tops, key=tops.__getitem__) == similar
    Select(order).select_by_visible_text("as in the data")
    *_, again, marks = browser.execute_script(FIGURE, loadings)
    assert again == given
    np.testing.assert_allclose(marks, before, atol=1)


def test_pointing_at_a_mark_tells_what_it_is(
    browser: Any, data: BinaryDataset, tmp_path: Path
) -> None:
    show(browser, report(tmp_path, data, "clipped-pca", 2), 1280)
    loadings = load_artifact(tmp_path / "artifact")["loadings"]
    marks = {
        "Loadings": "image",
        "Spectrum": "rect",
        "Rows in latent space": "use",
        "Features in latent space": "path",
    }
    told = {}
    for title, tag in marks.items():
        figure = f"//figure[starts-with(normalize-space(.), '{title}')]"
        mark = browser.find_elements("xpath", f"{figure}//*[@data-mark]/*[local-name()='{tag}']")[0]
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
        told[title] = " ".join(point_at(browser, *browser.execute_script(MIDDLE, mark)).split())
    expected = f"feature {data.feature_names[0]} component 1 value {format_number(loadings[0, 0])}"
    assert told["Loadings"].startswith(expected)
    assert told["Spectrum"].startswith("rank 1 eigenvalue")
    assert told["Rows in latent space"].startswith("row ")
    assert "group " in told["Rows in latent space"]
    assert "feature f" in told["Features in latent space"]  # and perhaps rows at this place


# Of a mark: a quarter from its left, half way down; of a line, where it is half as long.
MIDDLE = """
const mark = arguments[0], { left, top, width, height } = mark.getBoundingClientRect();
if (!mark.getPointAtLength || mark.closest("g")) return [left + width / 4, top + height / 2];
const point = mark.getPointAtLength(mark.getTotalLength() / 2).matrixTransform(mark.getScreenCTM());
return [point.x, point.y];
"""


def point_at(browser: Any, x: float, y: float) -> str:
    """Move the pointer to a place in the window; what is shown there, once scrolling has ended."""
    from selenium.webdriver.common.actions.action_builder import ActionBuilder

    text = ""
    for k in range(400):
        actions = ActionBuilder(browser, duration=0)
        actions.pointer_action.move_to_location(round(x) + k % 2, round(y))
        actions.perform()
        time.sleep(0.05)
        if text := browser.execute_script(TOOLTIPS):
            break
    return text
