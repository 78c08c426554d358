"""The documentation covers every model and every command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flows.__main__ import list_commands
from pipeline.models.registry import find_models, list_model_names
from pipeline.models.support import tabulate_support

DOCS = Path(__file__).parents[1] / ".docs"
SECTIONS = [
    *("Formula", "When to use it", "One command", "Settings", "Measured", "Limits"),
    "Stored arrays",
]


def read_page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", list_model_names())
def test_every_model_has_a_page_with_all_sections(name: str) -> None:
    page = read_page(f"models/{name}")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == SECTIONS
    assert f"{{model-settings}} {name}\n" in page
    assert f"{{model-arrays}} {name}\n" in page
    assert re.findall(r"figures/([\w-]+)\.png", page) == [name]
    assert (DOCS / "figures" / f"{name}.png").exists()


@pytest.mark.parametrize("page", ["models/index", "models/choose"])
def test_every_model_is_listed(page: str) -> None:
    linked = set(re.findall(r"\]\(([\w-]+)\.md\)", read_page(page)))
    baselines = {"linear-ivae", "fastica", "autoencoder"} if page == "models/choose" else set()
    assert {*list_model_names()} - baselines <= linked


def test_every_command_is_explained() -> None:
    page = read_page("reference/commands")
    assert re.findall(r"^```\{command-help\} ([\w-]+)$", page, re.MULTILINE) == list_commands()


@pytest.mark.parametrize(
    ("page", "kind"), [("tasks/ordered-categories", "ordinal"), ("tasks/continuous", "continuous")]
)
def test_a_page_about_features_lists_the_models_that_take_them(page: str, kind: str) -> None:
    _, table = read_page(page).split("| `--model` |")
    cells = [line.split("|")[1] for line in table.split("\n\n")[0].splitlines()[2:]]
    listed = {name for cell in cells for name in re.findall(r"`([a-z-]+)`", cell)}
    assert listed == {n for n, model in find_models().items() if kind in model.support.features}


def test_the_table_of_models_shows_what_each_takes() -> None:
    assert "```{model-support}" in read_page("models/index")
    header, *rows = tabulate_support(find_models())
    assert ("rbm", "by plane", *[""] * (len(header) - 2)) in rows
    for name, model in find_models().items():
        cells = next((own[1:] for own in rows if own[0] == name), ())
        assert (
            len(list(filter(None, cells))) == len(model.support.features + model.support.parts) - 1
        )
