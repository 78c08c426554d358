"""Every registered model has a file here, and its file takes every law."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from pathlib import Path

import pytest

from pipeline.models.registry import find_models
from tests.conformance import laws
from tests.conformance.facts import module_of

LAWS = Path(laws.__file__).parent


def without_file(names: Collection[str]) -> list[str]:
    """Models whose laws nobody checks."""
    files = {path.stem for path in Path(__file__).parent.glob("test_*.py")}
    return [name for name in names if module_of(name).rpartition(".")[2] not in files]


def test_every_model_has_a_file() -> None:
    assert without_file(find_models()) == []
    assert without_file([*find_models(), "no-such-model"]) == ["no-such-model"]


@pytest.mark.parametrize("name", sorted(find_models()))
def test_a_file_takes_every_law(name: str) -> None:
    module = importlib.import_module(module_of(name))
    assert name == module.FACTS.name
    assert [
        law for law in laws.__all__ if getattr(module, law, None) is not getattr(laws, law)
    ] == []


def test_no_law_is_forgotten() -> None:
    modules = [path.stem for path in LAWS.glob("*.py") if path.stem != "__init__"]
    found = [
        law
        for module in modules
        for law in importlib.import_module(f"{laws.__name__}.{module}").__all__
    ]
    assert sorted(found) == sorted(laws.__all__)
    assert len(found) > 30
