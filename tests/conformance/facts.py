"""What the laws need to know of a single model.

A model that takes features with levels, or continuous ones, keeps the laws for them too: see
`list_facts`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.data.features import Feature, FeatureKind, are_binary
from pipeline.errors import FitError
from pipeline.models.registry import find_model_class
from pipeline.models.structure import Structure
from pipeline.params import get_named_arrays

Floats = NDArray[np.float64]
Pairs = Mapping[str, tuple[NDArray[Any], NDArray[Any]]]

N_FEATURES = 6
KINDS: Mapping[FeatureKind, Sequence[int]] = {
    "binary": (2,),
    "ordinal": (2, 3, 3, 2, 4, 2),
    "continuous": (2, 0, 0, 3, 4, 2),
}
"""For each kind of features, `Facts.n_levels` of data that have some of that kind.

The features 1 and 2 are of the kind, since laws make them degenerate.
"""


def normal_codes(n_components: int) -> tuple[Floats, Floats]:
    """Gauss–Hermite nodes and weights of standard normal codes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(*[nodes] * n_components, indexing="ij"), axis=-1)
    shares = np.stack(np.meshgrid(*[weights] * n_components, indexing="ij"), axis=-1)
    mass = shares.reshape(-1, n_components).prod(axis=1)
    return grid.reshape(-1, n_components), mass / mass.sum()


def standard_codes(params: Any) -> tuple[Floats, Floats, None]:
    """Codes that are standard normal in every segment."""
    return *normal_codes(2), None


def codes_by_segment(params: Any) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Codes with the means and variances that a segment's sources have."""
    nodes, mass = normal_codes(2)
    shares = params.segment_rows / params.segment_rows.sum()
    deviations = np.sqrt(params.source_variances)
    codes = params.source_means[:, None] + deviations[:, None] * nodes
    segments = np.repeat(params.segments, len(nodes))
    return codes.reshape(-1, 2), np.outer(shares, mass).ravel(), segments


def every_array(found: Any, truth: Any) -> Pairs:
    """All arrays as they are, of a model that says nothing of what is not identifiable."""
    return {
        name: (getattr(found, name), values)
        for name, (_, values) in get_named_arrays(truth).items()
    }


@dataclass(frozen=True, eq=False)
class Facts:
    """What the laws need to know of one model beyond the protocol; most models need little.

    Attributes
    ----------
    name
        The model's name.
    plain
        Settings with which results do not depend on how rows are cut.
    tolerant
        Settings that accept degenerate columns where the defaults refuse them.
    finite
        Settings that keep parameters finite where rows separate. Without them, passes that end
        sooner or later end elsewhere.
    variants
        Settings that the degenerate columns are tried with, besides the defaults.
    rising
        Settings, and by how many nats per row the objective may fall in a pass under them.
    leveled
        Settings with which the model takes features with several levels, in place of `plain`.
    codes
        Codes, their probabilities and segments, to integrate `reconstruct` over.
    has_edges
        Whether features depend on each other given the codes.
    alike
        What is the same in every segment, of a model that has segments.
    flexible
        Settings with which the model can be like probit data.
    consistent
        Settings with which estimates have no bias that stays however many rows there are.
    recovered
        Takes the parameters of a fit to rows, and of what sampled them; gives what was found and
        what it should be, all that the model's module calls unidentifiable taken out.
    errors
        Standard error of the worst entry of what is recovered, times √rows: root mean square of
        20 refits to rows that fits to `varied` sampled.
    n_rows, n_varied
        Rows of `probit` that are fitted, and of `varied` that are fitted and stored.
    fit_off
        How far shares of pairs under a fit may be from those of its 4,000 rows.
    n_sampled, shares_off
        Rows that a flexible model samples to be refitted, and how far shares of pairs may be off
        after that: five seeds stay below it.
    truthful
        Settings with which a fit maximizes the likelihood of its rows, of a model that does so;
        an empty mapping for the defaults.
    follows_cause
        Whether a single component follows a single cause of all features and of the segment, in
        fits that do not maximize a likelihood.
    single_precision
        Sums over rows that are accumulated in single precision.
    slow
        Laws that take seconds with this model, and are left to the matrix. `law[ordinal]` is the
        law for data with that kind of features.
    n_levels
        Numbers of levels of the features, in turn; 0 of a continuous one.
    n_features
        Number of features.
    """

    name: str
    plain: Mapping[str, Any] = field(default_factory=dict)
    tolerant: Mapping[str, Any] = field(default_factory=dict)
    finite: Mapping[str, Any] = field(default_factory=dict)
    variants: Sequence[Mapping[str, Any]] = ()
    rising: Sequence[tuple[Mapping[str, Any], float]] = (({}, 1e-9),)
    leveled: Mapping[str, Any] = field(default_factory=dict)
    codes: Callable[[Any], tuple[Floats, Floats, NDArray[np.int64] | None]] = standard_codes
    has_edges: bool = False
    alike: Collection[str] = ()
    flexible: Mapping[str, Any] = field(default_factory=dict)
    consistent: Mapping[str, Any] = field(default_factory=dict)
    recovered: Callable[[Any, Any], Pairs] = every_array
    errors: Mapping[str, float] = field(default_factory=dict)
    n_rows: int = 4000
    n_varied: int = 20_000
    n_sampled: int = 20_000
    shares_off: float = 0.015
    fit_off: float = 0.025
    truthful: Mapping[str, Any] | None = None
    follows_cause: bool = False
    single_precision: Collection[str] = ()
    slow: Collection[str] = ()
    n_levels: Sequence[int] = KINDS["binary"]
    n_features: int = N_FEATURES

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features."""
        counts = (self.n_levels[i % len(self.n_levels)] for i in range(self.n_features))
        return tuple(Feature(f"f{i}", tuple("0123"[:k])) for i, k in enumerate(counts))

    @property
    def is_binary(self) -> bool:
        """Whether all features are binary."""
        return are_binary(self.features)

    @property
    def structure(self) -> Structure:
        """What fits know of the features."""
        return Structure(features=self.features)

    @property
    def model(self) -> type[Any]:
        """The class."""
        return find_model_class(self.name)

    def make(self, **more: Any) -> Any:
        """The model of the features with 2 components and plain settings."""
        model = self.model(**{"n_components": 2, **self.plain, **more})
        return model.with_structure(self.structure)

    def takes(self, settings: Mapping[str, Any]) -> bool:
        """Whether the model takes the features with these settings."""
        try:
            self.make(**settings)
        except FitError:
            return False
        return True

    def make_brief(self, max_iter: int, /, **more: Any) -> Any:
        """The same, that ends after so many passes where a setting says how many."""
        capped = {field.name for field in fields(self.model) if field.init} & {"max_iter"}
        return self.make(**{**dict.fromkeys(capped, max_iter), **more})

    def make_tolerant(self, **more: Any) -> Any:
        """The same, with settings that accept degenerate columns."""
        return self.make(**{**self.tolerant, **more})


@lru_cache
def list_facts(facts: Facts) -> Mapping[FeatureKind, Facts]:
    """The facts for data with each kind of features that the model explains.

    A model that takes planes of levels for binary features has only binary ones. Those with
    categories are those with levels.
    """
    found: dict[FeatureKind, Facts] = {"binary": facts}
    if facts.model.support.splits_levels:
        return found
    for kind in (kind for kind in facts.model.support.features[1:] if kind in KINDS):
        own = replace(
            facts,
            n_levels=KINDS[kind],
            plain={**facts.plain, **facts.leveled},
            # A constant value has no density.
            tolerant={} if kind == "continuous" else facts.tolerant,
            n_rows=min(facts.n_rows, 1000),
            n_varied=min(facts.n_varied, 2000),
            fit_off=3 * facts.fit_off,
        )
        found[kind] = replace(
            own,
            variants=[settings for settings in facts.variants if own.takes(settings)],
            rising=[(settings, slack) for settings, slack in facts.rising if own.takes(settings)],
        )
    return found


@lru_cache
def widen(facts: Facts, n_features: int) -> Facts:
    """The same with another number of features."""
    return replace(facts, n_features=n_features)
