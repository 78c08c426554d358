"""What a fit knows about its rows and features besides their values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Structure:
    """Groups of rows; empty if the fit knows nothing but the values.

    Attributes
    ----------
    groups
        Names of the groups; empty without `--group`. The segments of the rows are their groups.
    """

    groups: tuple[str, ...] = ()
