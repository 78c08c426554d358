"""Laws are checked for every registered model, and every model is registered."""

from __future__ import annotations

from importlib import import_module
from itertools import chain
from pkgutil import walk_packages

from pipeline import models
from pipeline.models.base import Model
from pipeline.models.registry import find_models, list_model_names
from tests.conformance.models import FACTS, REPRESENTATIVE


def test_laws_know_every_model() -> None:
    assert {*FACTS} >= {*find_models()} >= {*REPRESENTATIVE}


def test_the_list_names_every_model_of_the_package() -> None:
    modules = walk_packages(models.__path__, "pipeline.models.")
    classes = chain.from_iterable(vars(import_module(one.name)).values() for one in modules)
    own = {one for one in classes if isinstance(one, type) and Model in one.__mro__}
    named = {one.name for one in own if hasattr(one, "name")}
    assert named <= {*find_models()} == {*list_model_names()}
