"""Every registered model has a file here, and its file takes every law."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module
from itertools import chain
from pathlib import Path
from pkgutil import walk_packages

import pytest

from pipeline import models
from pipeline.models.base import Model
from pipeline.models.registry import find_models, list_model_names
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


def test_the_list_names_every_model_of_the_package() -> None:
    modules = walk_packages(models.__path__, "pipeline.models.")
    classes = chain.from_iterable(vars(import_module(one.name)).values() for one in modules)
    own = {one for one in classes if isinstance(one, type) and Model in one.__mro__}
    named = {one.name for one in own if hasattr(one, "name")}
    assert named <= {*find_models()} == {*list_model_names()}


@pytest.mark.parametrize("name", sorted(find_models()))
def test_a_file_takes_every_law(name: str) -> None:
    module = import_module(module_of(name))
    assert name == module.FACTS.name
    assert [
        law for law in laws.__all__ if getattr(module, law, None) is not getattr(laws, law)
    ] == []


def test_no_law_is_forgotten() -> None:
    modules = [path.stem for path in LAWS.glob("*.py") if path.stem != "__init__"]
    found = [
        law for module in modules for law in import_module(f"{laws.__name__}.{module}").__all__
    ]
    assert sorted(found) == sorted(laws.__all__)
    assert len(found) > 30
