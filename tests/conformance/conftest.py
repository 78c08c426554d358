"""What laws are given: the facts of the model whose file they are in, and an artifact of it."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.data.features import join_values
from pipeline.models import registry
from storage.artifacts.artifacts import Artifact, load_artifact
from tests.conformance.facts import Facts, list_facts, widen
from tests.conformance.rows import N_VARIED_FEATURES, varied
from tests.support.data import write_arrays
from tests.support.fits import write_fit


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Check laws for each kind of features that the model explains."""
    if "facts" not in metafunc.fixturenames:
        return
    with pytest.MonkeyPatch.context() as patch:  # no model of the tests stays registered
        patch.setattr(registry, "_imported_models", {})
        kinds = [*list_facts(metafunc.module.FACTS)]
    metafunc.parametrize("facts", kinds, indirect=True, scope="module")


@pytest.fixture(scope="module")
def facts(request: pytest.FixtureRequest) -> Facts:
    """`FACTS` of the model's file, for a kind of features."""
    return list_facts(request.module.FACTS)[request.param]


@pytest.fixture(scope="module")
def stored(facts: Facts, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The artifact of a fit to `varied`."""
    facts = widen(facts, N_VARIED_FEATURES)
    folder, data = tmp_path_factory.mktemp("stored"), varied(facts)
    dataset = write_arrays(
        folder / "rows.zarr",
        join_values(data.X, None, facts.features)[0],
        segments=[f"s{k}" for k in data.labels],
        columns={"label": (data.X.mean(axis=1) > 0.5).astype(np.int64)},
        feature_levels={f.name: f.levels for f in facts.features if f.kind != "binary"},
        numbers=data.numbers,
    )
    return load_artifact(write_fit(folder / "fit", facts.make(**facts.consistent), dataset))
