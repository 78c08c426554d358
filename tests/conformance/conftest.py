"""What laws are given: the facts of the model whose file they are in, and an artifact of it."""

from __future__ import annotations

import numpy as np
import pytest

from storage.artifacts.artifacts import Artifact, load_artifact
from tests.conformance.facts import Facts
from tests.conformance.rows import varied
from tests.support.data import write_arrays
from tests.support.fits import write_fit


@pytest.fixture(scope="module")
def facts(request: pytest.FixtureRequest) -> Facts:
    """`FACTS` of the model's file."""
    found: Facts = request.module.FACTS
    return found


@pytest.fixture(scope="module")
def stored(facts: Facts, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The artifact of a fit to `varied`."""
    folder, data = tmp_path_factory.mktemp("stored"), varied(facts.n_varied)
    named = [f"s{k}" for k in data.labels]
    label = (data.X.sum(axis=1) > 5).astype(np.int64)
    dataset = write_arrays(folder / "rows.zarr", data.X, segments=named, columns={"label": label})
    return load_artifact(write_fit(folder / "fit", facts.make(**facts.consistent), dataset))
