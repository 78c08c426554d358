"""How mixtures are fitted: from several starts, with a number of components that rows can choose.

Each fit, or each number of components that is tried, begins with short runs from random starts, and
continues from the best of them until it has converged (C. Biernacki, G. Celeux, G. Govaert,
Computational Statistics & Data Analysis 41, 2003). By default, if no value is missing, there are
ten starts, of which the best three go on after eight passes. If the number of components is not
set, it is doubled from 1 while the likelihood of held-out rows increases. With `refines_number`,
numbers between those are tried then, see `find_next_number`: fewer components are better unless
held-out rows are 20 times less likely.

With `max_components`, every number from 1 on is fitted to all rows, one after the other, and the
fit ends with the chosen number, or with that of the lowest BIC. `pipeline.fitting.class_numbers`
then compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.arrays import Array
from pipeline.errors import FitError, FitWarning
from pipeline.learning.convergence import ObjectiveCriterion
from pipeline.learning.held_out import (
    HELD_OUT_SHARE,
    get_best_params,
    get_held_out_scores,
    record_held_out_score,
)
from pipeline.models.base import Model
from pipeline.models.capabilities import FitRecord
from pipeline.models.state import Arrays, FitState
from pipeline.models.vocabulary import CLASSES, Vocabulary
from pipeline.params import get_named_arrays, params_from_arrays
from pipeline.statistics.counts import FeatureCounts
from pipeline.statistics.sums import Sums

_MIN_ROWS_TO_CHOOSE = 100  # about ten of them are held out
_MAX_SLIGHT_SMOOTHING = 1e-3  # it costs about as many nats for each probability near 0 or 1
_STARTS, _FIRST_PASSES, _FINALISTS = 10, 8, 3  # unless the user sets their number
_LEAST_GAIN = np.log(20.0)  # of all held-out rows, for more components after the doubling
_START_DIAGNOSTICS = ("starts", "starts_at_best", "next_start_below")


class Mixture(Model):
    """A model whose parameters `weights` are the probabilities of its components.

    Attributes
    ----------
    max_components
        Fit every number of components from 1 to this, and compare them in a table. If n_components
        is None, the fit has the number with the lowest BIC.
    """

    vocabulary: ClassVar[Vocabulary] = CLASSES
    indeterminacy: ClassVar[str] = (
        "the order of the classes, sorted by size unless a warm start keeps it"
    )
    max_held_out_components: ClassVar[int]
    """Number of components at which the search for their number ends."""
    refines_number: ClassVar[bool] = False
    """Whether the search goes on between the numbers that doubling has tried."""
    short_run_tol: ClassVar[float]
    """Tolerance of the short runs."""
    single_start_is_short: ClassVar[bool] = False
    """Whether a single start of several components begins with a short run too."""
    starts: int | None
    smoothing: float
    max_components: int | None

    @property
    def n_compared(self) -> int | None:
        """Largest number of components to fit and compare; None if numbers are not compared."""
        return self.max_components

    @property
    def most_components(self) -> int:
        """Number of components that needs the most memory."""
        return self.n_compared or self.n_components or self.max_held_out_components

    def _draw_start(self, auxiliary: Arrays, n_components: int, start: int) -> Any:
        """Return the parameters that one of the starts begins with.

        `auxiliary` has the entries `seed` and `is_complete`.
        """
        raise NotImplementedError

    def _check_number_of_components(self, first: FeatureCounts) -> None:
        """Refuse data with too few rows."""
        if self.n_compared is not None:
            self._check_compared_numbers(first, self.n_compared)
        elif self.n_components is None and first.weight < _MIN_ROWS_TO_CHOOSE:
            raise FitError(
                f"The dataset has only {first.weight:.0f} rows; choosing {{components}} needs at "
                f"least {_MIN_ROWS_TO_CHOOSE}. Set {{components}} to a number.",
                parameter="components",
            )
        if (self.n_components or 1) > first.weight:
            raise FitError(
                f"{{components}} is {self.n_components}, but the dataset has only "
                f"{first.weight:.0f} rows. Choose at most {first.weight:.0f}.",
                parameter="components",
            )

    def _check_compared_numbers(self, first: FeatureCounts, most: int) -> None:
        """Refuse numbers of components that cannot be compared."""
        if (self.n_components or 1) > most:
            raise FitError(
                f"{{components}} is {self.n_components}, but {{max_components}} is {most}. Raise "
                "{max_components}.",
                parameter="max_components",
            )
        if most > first.weight:
            raise FitError(
                f"{{max_components}} is {most}, but the dataset has only {first.weight:.0f} rows. "
                f"Choose at most {first.weight:.0f}.",
                parameter="max_components",
            )
        if self.n_components is None and first.has_sampling_weights:
            raise FitError(
                "BIC cannot choose {components}, because the rows have sampling weights. Set "
                "{components} to a number; {max_components} still compares log-likelihoods.",
                parameter="components",
            )

    def _begin_fit(self, state: FitState) -> FitState:
        """Begin with the chosen number of components, or the search for it."""
        if self.n_compared is not None:
            return self._begin_stage(state, 1, 0.0)
        if self.n_components is not None:
            return self._begin_stage(state, self.n_components, 0.0)
        return self._begin_stage(state, 1, HELD_OUT_SHARE)

    def _begin_stage(self, state: FitState, n_components: int, held_out: float) -> FitState:
        """Begin with this number of components, from several starts if they differ."""
        n_starts = self.starts or _STARTS
        is_single = n_components == 1 or (n_starts == 1 and not self.single_start_is_short)
        auxiliary = {**state.auxiliary, "short": np.array(not is_single)}
        # Where few rows or features link parts of the data, few passes tell little about a start.
        is_complete, is_compared = bool(state.auxiliary["is_complete"]), self.n_compared is not None
        if self.starts is None and is_complete and not is_compared and not is_single:
            auxiliary["is_first_round"] = np.array(True)
        working = self._make_working(held_out, is_short=not is_single)
        state = replace(state, working=working, auxiliary=auxiliary, diagnostics={})
        starts = tuple(
            replace(state, params=self._draw_start(auxiliary, n_components, k))
            for k in range(1 if is_single else n_starts)
        )
        return replace(starts[0], starts=() if is_single else starts)

    def _begin_long_run(self, state: FitState, held_out: float) -> FitState:
        """Begin a run that continues until it has converged."""
        auxiliary = {**_leave_first_round(state), "short": np.array(False)}
        working = self._make_working(held_out, is_short=False)
        return replace(state, working=working, auxiliary=auxiliary, starts=())

    def _make_working(self, held_out: float, *, is_short: bool) -> Arrays:
        """Return what the tasks of a stage need besides the parameters."""
        return {"held_out": np.array(held_out)}

    def mean_log_likelihood(self, params: Any, statistics: Sums) -> float:
        """Return the log-likelihood per row, or its bound, nats."""
        return float(statistics.objective / statistics.weight)

    def get_convergence_criterion(self, state: FitState) -> ObjectiveCriterion:
        """Stop on the change of the objective, sooner in the short runs."""
        is_short, max_iter = bool(state.auxiliary.get("short", False)), self.max_iter
        if "is_first_round" in state.auxiliary:
            max_iter = min(max_iter, _FIRST_PASSES)
        tol = max(self.tol, is_short * self.short_run_tol)
        return ObjectiveCriterion(max_iter, tol, float(state.auxiliary.get("weight", 1)))

    def select_starts(self, ranked: Mapping[str, Sequence[FitState]]) -> FitState:
        """Go on with a few starts after the first passes, and with the best one after that."""
        (starts,) = ranked.values()
        if "is_first_round" not in starts[0].auxiliary:
            return self.select_start(starts[0])
        finalists = tuple(
            replace(start, auxiliary=_leave_first_round(start), diagnostics={})
            for start in starts[:_FINALISTS]
        )
        return replace(finalists[0], starts=finalists)

    def select_start(self, state: FitState) -> FitState:
        """Continue with the best start."""
        return self._begin_long_run(state, float(state.working["held_out"]))

    def next_stage(self, state: FitState, statistics: Sums) -> FitState | None:
        """Fit further numbers of components, then continue with the best on all rows.

        Without `n_compared`, double the components while held-out rows gain, then refine.
        """
        if self.n_compared is not None:
            return self._try_next_number(state, statistics, self.n_compared)
        if state.working["held_out"] == 0:
            return None
        n, least_gain = len(state.params.weights), 0.0
        most = int(min(self.max_held_out_components, statistics.weight))
        if "n_doubled" in state.auxiliary:
            least_gain = np.copysign(_LEAST_GAIN, n - len(state.auxiliary["best-weights"]))
        auxiliary, is_best = record_held_out_score(
            state.params, state.auxiliary, statistics, least_gain
        )
        auxiliary["held_out_numbers"] = np.append(auxiliary.get("held_out_numbers", ()), n)
        if is_best:
            auxiliary |= {f"best_{n}": np.array(v) for n, v in state.diagnostics.items()}
        tried, next_number = auxiliary["held_out_numbers"].astype(int), None
        if "n_doubled" not in auxiliary and is_best and 2 * n <= most:
            next_number = 2 * n
        elif self.refines_number:
            auxiliary.setdefault("n_doubled", np.array(len(tried)))
            n_best = len(auxiliary["best-weights"])
            next_number = find_next_number(tried, int(auxiliary["n_doubled"]), n_best, most)
        state = replace(state, auxiliary=auxiliary)
        if next_number is not None:
            return self._begin_stage(state, next_number, HELD_OUT_SHARE)
        diagnostics = {
            name.removeprefix("best_"): value.item()
            for name, value in auxiliary.items()
            if name.startswith("best_")
        }
        return replace(
            self._begin_long_run(state, 0.0),
            params=get_best_params(self.params, auxiliary),
            diagnostics=diagnostics,
        )

    def list_penalties(self) -> tuple[str, ...]:
        """Return the smoothing, unless it hardly changes the likelihood."""
        is_slight = self.smoothing <= _MAX_SLIGHT_SMOOTHING
        return () if is_slight else (f"smoothing={self.smoothing:g}",)

    def explain_not_nested(self, fit: FitRecord, larger: FitRecord) -> str:
        """Return why a fit has no special case with fewer components that could be tested."""
        if fit.manifest["n_components"] == larger.manifest["n_components"]:
            return ""
        return (
            f"a fit with fewer {self.vocabulary.components} lies at the boundary of the larger "
            "one, where twice the gain follows no χ² distribution"
        )

    def _try_next_number(self, state: FitState, statistics: Sums, most: int) -> FitState | None:
        """Keep the parameters of a number of components, and fit the next, or end with the chosen.

        A warm start fits the chosen number only.
        """
        auxiliary, n = dict(state.auxiliary), len(state.params.weights)
        if "is_chosen" in auxiliary or (n > 1 and f"tried_{n - 1}-weights" not in auxiliary):
            return None
        named = get_named_arrays(state.params).items()
        auxiliary |= {f"tried_{n}-{name}": values for name, (_, values) in named}
        starts = [state.diagnostics.get(name, -1.0) for name in _START_DIAGNOSTICS]
        n_parameters = self.count_free_parameters(state)
        bic = n_parameters * np.log(statistics.weight) - 2 * statistics.objective
        auxiliary["tried_starts"] = np.vstack([*auxiliary.get("tried_starts", ()), starts])
        auxiliary["tried_bic"] = np.append(auxiliary.get("tried_bic", ()), bic)
        state = replace(state, auxiliary=auxiliary)
        if n < most:
            return self._begin_stage(state, n + 1, 0.0)
        chosen = self.n_components or 1 + int(auxiliary["tried_bic"].argmin())
        n_starts, n_at_best, below = auxiliary["tried_starts"][chosen - 1].tolist()
        described = (int(n_starts), int(n_at_best), below)
        is_known = n_starts > 0  # of several starts
        diagnostics = dict(zip(_START_DIAGNOSTICS, described, strict=True)) if is_known else {}
        auxiliary["is_chosen"] = np.array(1)
        state = self._begin_long_run(replace(state, diagnostics=diagnostics), 0.0)
        return replace(state, params=self.get_compared_params(state)[chosen])

    def get_compared_params(self, state: FitState) -> dict[int, Any]:
        """Return the parameters of all numbers of components that a fit compares, by number."""
        by_number = dict[int, dict[str, Any]]()
        for name, values in state.auxiliary.items():
            prefix, _, own_name = name.partition("-")
            if own_name and prefix.startswith("tried_"):
                number = int(prefix.removeprefix("tried_"))
                by_number.setdefault(number, {})[own_name] = values
        return {n: params_from_arrays(self.params, own) for n, own in sorted(by_number.items())}

    def get_compared_starts(self, state: FitState) -> list[tuple[int, int] | None]:
        """Return the numbers of starts, and of those at the best, of each number of components.

        None if there was a single start.
        """
        rows = state.auxiliary["tried_starts"][:, :2]
        return [(int(a), int(b)) if a > 0 else None for a, b in rows]

    def count_free_parameters(self, state: FitState) -> int:
        """Return the number of free parameters."""
        raise NotImplementedError

    def keep_order(self, state: FitState, profiles: Array) -> FitState:
        """Return a state whose fit numbers its components like those that it starts from.

        `profiles` are numbers of each component that tell it from others, (n_components, n).
        """
        return replace(state, auxiliary={**state.auxiliary, "first_profiles": profiles})

    def sort_components(self, state: FitState, weights: Array, profiles: Array) -> NDArray[np.intp]:
        """Return the components by weight, the largest first; after a warm start, by the earlier.

        EM moves each component from where the earlier fit had it, but perhaps to the place of
        another one, so components with the most similar profiles get equal numbers.
        """
        if (first := state.auxiliary.get("first_profiles")) is None:
            return np.argsort(-weights, kind="stable")
        squares = scipy.spatial.distance.cdist(first, profiles, "sqeuclidean")
        order: NDArray[np.intp] = scipy.optimize.linear_sum_assignment(squares)[1]
        return order

    def _describe_components(self, state: FitState, mass: Any, empty_rows: Any) -> FitState:
        """Add diagnostics, and warnings about components.

        `mass` is the number of rows of each component; `empty_rows`, the number of rows without any
        observed value.
        """
        n_components, empty = len(mass), int((mass < 1).sum())
        numbers = state.auxiliary.get("held_out_numbers", np.zeros(0))
        diagnostics = {
            "n_components": n_components,
            "rows_without_values": int(empty_rows),
            "held_out_scores": get_held_out_scores(state.auxiliary).tolist(),
            "held_out_numbers": numbers.astype(int).tolist(),
        }
        warnings = (*state.warnings, *self._warn_about_components(n_components, empty))
        return replace(state, diagnostics=diagnostics, warnings=warnings)

    def _warn_about_components(self, n_components: int, empty: int) -> tuple[FitWarning, ...]:
        """Warn about empty components, or about the end of the search for their number."""
        text = f"{self.vocabulary.components} with less than one row: {empty} of {n_components}"
        if empty and self.n_components is None and self.n_compared is None:
            filled = n_components - empty
            text += f"; their number was found automatically, {{components={filled}}} avoids them"
            return (FitWarning(text),)
        if empty:
            return (FitWarning(f"{text}; choose fewer {{components}}"),)
        if self.n_compared is not None:
            return self._warn_about_last_number(n_components)
        if self.n_components is None and n_components == self.max_held_out_components:
            text = (
                f"held-out rows still gain at {n_components}, where the search for {{components}} "
            )
            return (FitWarning(text + "ends; set a larger number"),)
        return ()

    def _warn_about_last_number(self, n_components: int) -> tuple[FitWarning, ...]:
        """Warn if BIC chose the largest number that was compared."""
        if self.n_components is not None or not 1 < n_components == self.n_compared:
            return ()
        return (
            FitWarning(
                f"BIC is lowest at {n_components} {self.vocabulary.components}, the largest number "
                "that was compared; set a larger {max_components}"
            ),
        )


def _leave_first_round(state: FitState) -> Arrays:
    return {name: own for name, own in state.auxiliary.items() if name != "is_first_round"}


def find_next_number(tried: NDArray[np.int64], n_doubled: int, best: int, most: int) -> int | None:
    """Return the number of components to try next between neighbours of the best one.

    Parameters
    ----------
    tried, n_doubled
        All numbers tried, of which the first `n_doubled` were doubled.
    best, most
        Best number, and the largest that may be tried.

    Returns
    -------
    int or None
        The middle of the wider gap beside the best number, relative to its size; the lower one if
        both are equally wide. None once there are no gaps, or if the numbers would add up to more
        than those of the doubling.

    Examples
    --------
    >>> find_next_number(np.array([1, 2, 4, 8, 16, 32]), 6, 16, 32)
    12
    """
    low = int(tried[tried < best].max(initial=0))
    high = int(tried[tried > best].min(initial=most + 1))
    gaps = [(b / max(a, 1), (a + b) // 2) for a, b in ((low, best), (best, high)) if b - a > 1]
    number = max(gaps, key=lambda gap: gap[0], default=(0.0, None))[1]
    budget = tried[:n_doubled].sum() - tried[n_doubled:].sum()
    return number if number is not None and number <= budget else None
