"""What laws are given: facts about each model, and an artifact of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from pipeline.data.features import join_values
from pipeline.models import registry
from storage.artifacts.artifacts import Artifact, load_artifact
from tests.conformance.facts import Facts, list_facts, widen
from tests.conformance.models import FACTS, REPRESENTATIVE
from tests.conformance.rows import (
    N_VARIED_FEATURES,
    draw_probit_values,
    fitted,
    probit,
    varied,
)
from tests.conformance.truths import find_truth
from tests.support.data import write_arrays
from tests.support.fits import write_fit

N_CASES = 3
"""Cases of a law that are checked by default of a model that is not representative."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Check laws of every model, for each kind of features that it explains."""
    if "facts" not in metafunc.fixturenames:
        return
    with pytest.MonkeyPatch.context() as patch:  # no model of the tests stays registered
        patch.setattr(registry, "_imported_models", {})
        cases = [(name, kind) for name, facts in FACTS.items() for kind in list_facts(facts)]
    ids = [f"{name.rpartition(':')[2]}:{kind}" for name, kind in cases]
    metafunc.parametrize("facts", cases, ids=ids, indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave laws that are slow for a model to the matrix, and most cases of similar models.

    Ordinal features of models that also take continuous ones are left to the matrix, because
    these are checked with ordinal features beside them; `slow` runs the laws that are slow, too.

    Kinds of features share the parameters of a law by turns, another turn for each model: every
    pair of a model, a kind and a parameter is checked. `slow` checks all of them together.
    """
    laws = [
        item for item in items if isinstance(item, pytest.Function) and "facts" in item.fixturenames
    ]
    n_parameters: Counter[str] = Counter()
    for item in laws:
        n_parameters[item.originalname] = max(n_parameters[item.originalname], 1 + _place(item))
    seen: Counter[tuple[str, str]] = Counter()
    for item in laws:
        name, kind = item.callspec.params["facts"]
        law, facts = item.originalname, FACTS[name]
        kinds = [*list_facts(facts)]
        is_slow = not {law, f"{law}[{kind}]"}.isdisjoint(facts.slow)
        is_covered = kind == "ordinal" and "continuous" in kinds
        turn = [*FACTS].index(name) + kinds.index(kind)
        is_other_turn = (_place(item) - turn) % min(len(kinds), n_parameters[law])
        if is_other_turn or (is_slow and is_covered):
            item.add_marker(pytest.mark.slow)
        elif is_slow or is_covered:
            item.add_marker(pytest.mark.matrix)
        elif name not in REPRESENTATIVE:
            seen[law, name] += 1
            if seen[law, name] > N_CASES:
                item.add_marker(pytest.mark.matrix)


def _place(item: pytest.Function) -> int:
    """Return the index of the parameter that a law has besides the facts."""
    indices = item.callspec.indices
    return max((index for name, index in indices.items() if name != "facts"), default=0)


@pytest.fixture(scope="session")
def facts(request: pytest.FixtureRequest) -> Iterator[Facts]:
    """Facts about a model, for a kind of features; forgets what was fitted for them afterwards."""
    name, kind = request.param
    yield list_facts(FACTS[name])[kind]
    for function in (draw_probit_values, probit, fitted, varied, find_truth):
        function.cache_clear()


@pytest.fixture(scope="session")
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
