"""Parameters of the Ising model: a network, and those of groups with tests of their differences."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.params import (
    HasParts,
    NumberRange,
    array_field,
    optional_array_field,
    optional_part_field,
)

_SHARE = NumberRange(minimum=0, maximum=1)


@dataclass(frozen=True)
class NetworkTests:
    """Permutation tests of differences, of each pair of groups: (1, 2), (1, 3), …, (2, 3), ….

    Attributes
    ----------
    largest_difference, largest_difference_p
        M, the largest absolute difference of two couplings, and its p.
    strength_difference, strength_difference_p
        S, the difference of Σ |J_ij| over all pairs, that of the first group less that of the
        second, and its p.
    difference_p
        p of the difference of each coupling.
    """

    largest_difference: Array = array_field("pair")
    largest_difference_p: Array = array_field("pair", allowed=_SHARE)
    strength_difference: Array = array_field("pair")
    strength_difference_p: Array = array_field("pair", allowed=_SHARE)
    difference_p: Array = array_field("pair", "feature", "feature_j", allowed=_SHARE)


@dataclass(frozen=True)
class GroupNetworks:
    """Networks of groups of rows, in the order of the names of the groups.

    Attributes
    ----------
    segments, segment_rows
        Indices of the groups, and their complete rows, or the sums of their weights.
    """

    segments: NDArray[np.int64] = array_field("segment")
    segment_rows: NDArray[np.int64] = array_field("segment")
    group_shares: Array = array_field("segment", "feature", allowed=_SHARE)
    group_thresholds: Array = array_field("segment", "feature")
    group_couplings: Array = array_field("segment", "feature", "feature_j")
    group_slopes: Array = array_field("segment", "feature", "feature_j")
    group_thresholds_error: Array | None = optional_array_field("segment", "feature")
    group_couplings_error: Array | None = optional_array_field("segment", "feature", "feature_j")
    group_log_z: Array | None = optional_array_field("segment")
    tests: NetworkTests | None = optional_part_field()


@dataclass(frozen=True)
class IsingParams(HasParts):
    """Parameters; the table of `pipeline.models.ising.model` gives shapes.

    `shares` are shares of ones, (n_features,). With groups, thresholds, couplings and slopes are
    the means of those of the groups, by their rows.
    """

    thresholds: Array = array_field("feature")
    couplings: Array = array_field("feature", "feature_j")
    slopes: Array = array_field("feature", "feature_j")
    strengths: Array = array_field("feature", allowed=NumberRange(minimum=0))
    shares: Array = array_field("feature", allowed=_SHARE)
    modes: Array = array_field("feature", "component")
    couplings_error: Array | None = optional_array_field("feature", "feature_j")
    thresholds_error: Array | None = optional_array_field("feature")
    stability: Array | None = optional_array_field("feature", "feature_j", allowed=_SHARE)
    centrality_interval: Array | None = optional_array_field("bound", "feature")
    log_z: Array | None = optional_array_field()
    groups: GroupNetworks | None = optional_part_field()

    def take_group(self, group: int) -> IsingParams:
        """Return the network of a group; the means of all if it was not fitted or there is none."""
        if self.groups is None or group not in self.groups.segments:
            return self
        own = self.groups
        errors = own.group_couplings_error, own.group_thresholds_error
        return replace(
            self,
            thresholds=own.group_thresholds[group],
            couplings=own.group_couplings[group],
            slopes=own.group_slopes[group],
            shares=own.group_shares[group],
            couplings_error=None if errors[0] is None else errors[0][group],
            thresholds_error=None if errors[1] is None else errors[1][group],
            log_z=None if own.group_log_z is None else own.group_log_z[group],
            groups=None,
        )


def join_groups(networks: list[IsingParams], rows: Array) -> IsingParams:
    """Return the parameters of all groups, given the network of each and their rows."""
    if len(networks) == 1:
        return networks[0]
    shares = rows / rows.sum()

    def mean(name: str) -> Array:
        return np.tensordot(shares, np.stack([getattr(own, name) for own in networks]), axes=1)

    groups: dict[str, Any] = {
        f"group_{name}": None
        if getattr(networks[0], name) is None
        else np.stack([getattr(own, name) for own in networks])
        for name in (
            *("shares", "thresholds", "couplings", "slopes"),
            *("thresholds_error", "couplings_error"),
        )
    }
    return replace(
        networks[0],
        **{name: mean(name) for name in ("thresholds", "couplings", "slopes", "shares")},
        couplings_error=None,
        thresholds_error=None,
        groups=GroupNetworks(np.arange(len(networks)), np.rint(rows).astype(np.int64), **groups),
    )
