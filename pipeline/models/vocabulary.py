"""The words of a field for the rows, features, components and arrays of a model.

Reports, tables and summaries use them. Options, settings, exported columns and the names of figures
in Python are the same for all models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Vocabulary(NamedTuple):
    """Words in the singular.

    `arrays` has other names of arrays of parameters, and `names` those of the components, if they
    have names of their own.
    """

    row: str = "row"
    feature: str = "feature"
    component: str = "component"
    arrays: Mapping[str, str] = {}
    names: tuple[str, ...] = ()

    @property
    def rows(self) -> str:
        """The word for rows in the plural."""
        return make_plural(self.row)

    @property
    def features(self) -> str:
        """The word for features in the plural."""
        return make_plural(self.feature)

    @property
    def components(self) -> str:
        """The word for components in the plural."""
        return make_plural(self.component)

    def name_component(self, k: int) -> str:
        """Return the name of a component, counted from 0, or else its number: `trait 1`."""
        return self.names[k] if self.names else f"{self.component} {k + 1}"

    def label_components(self, n: int) -> list[str]:
        """Return the names of the first components, or else their numbers: `1`."""
        return list(self.names[:n]) or [str(k + 1) for k in range(n)]

    def format_array(self, name: str, label: str = "") -> str:
        """Return the name of an array of parameters, with spaces; `label` says which part of it."""
        return (self.arrays.get(name, name) + label).replace("_", " ")


PLAIN = Vocabulary()
ITEM_RESPONSE = Vocabulary("person", "item", "trait", {"weights": "slope", "offsets": "intercept"})
FACTORS = Vocabulary("person", "item", "factor")
CLASSES = Vocabulary(component="class", arrays={"probabilities": "probability in class"})
STATES = Vocabulary(component="state")


def make_plural(noun: str) -> str:
    """Return the plural of a noun."""
    return f"{noun}{'es' if noun.endswith('s') else 's'}"


def format_count(n: int, noun: str) -> str:
    """Write a number with its noun, in the plural unless it is 1."""
    return f"{n:,} {noun if n == 1 else make_plural(noun)}"
