"""Scales: groups of items that each measure something of their own, and are fitted one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from flows.cli.options import parse_local_path
from flows.data.datasets import COMBINED, load_fitted_model, open_dataset_or_example
from flows.data.parameter_tables import Scale, parse_scales, read_parameter_table
from flows.fitting.drift import check_drift_limit
from flows.fitting.job import FitPlan, prepare_fit
from flows.fitting.options import FitOptions
from flows.fitting.provenance import compute_fingerprint
from pipeline.errors import FitError
from storage.errors import DataError
from storage.sources.base import choose_features
from storage.sources.value_codes import ReadOptions
from storage.stores.locations import LATEST_NAME

_OTHER_CHOICES = ("features", "pattern", "items")
_NOT_IN_NAMES = {*'/\\:*?"<>|\n'}  # of folders


class ScalePlan(NamedTuple):
    """A scale and its checked fit."""

    scale: Scale
    fit: FitPlan


def prepare_scales(options: FitOptions) -> tuple[Path, list[ScalePlan]]:
    """Check everything that can be checked before the first fit.

    Returns the folder of all scales, and their fits: each has a folder of runs in it.
    """
    for name in _OTHER_CHOICES:
        if getattr(options, name):
            raise FitError(f"{{scales}} and {{{name}}} cannot be combined. Leave out one of them.")
    dataset = open_dataset_or_example(options.dataset)
    table = parse_local_path(str(options.scales))
    names, place = dataset.feature_names, f"{{scales}}: {table}"
    scales = parse_scales(read_parameter_table(table, "scales"), place, names, str(dataset.path))
    default_output = f"runs/{dataset.path.resolve().stem}-scales"
    output = parse_local_path(options.output or default_output)
    for scale in scales:
        if scale.name.startswith(".") or {*scale.name} & _NOT_IN_NAMES or scale.name == COMBINED:
            raise DataError(
                f"{place}: scale {scale.name!r} cannot be the name of a folder. Give it another "
                "name."
            )
    items = [name for name in dataset.feature_names if any(name in s.items for s in scales)]
    kept, also_reversed = choose_features(
        "the scales", items, ReadOptions(drop=options.drop), options.reverse
    )
    plans = []
    for scale in scales:
        marked = {*scale.reversed_items, *also_reversed}
        own_items = tuple(name for name in scale.items if name in kept)
        if not own_items:
            raise FitError(f"{{drop}} leaves no item of scale {scale.name!r}. Keep one or more.")
        scale = Scale(scale.name, own_items, tuple(name for name in own_items if name in marked))
        own = replace(
            options,
            scales=None,
            drop=(),
            features=scale.items,
            reverse=scale.reversed_items,
            components=1 if options.components is None else options.components,
            output=str(output / scale.name),
        )
        with name_scale(scale.name):
            plan = prepare_fit(own)
            check_drift_limit(options.drift_limit, plan.dataset.n_features)
        plans.append(ScalePlan(scale, plan))
    return output, plans


@contextmanager
def name_scale(name: str) -> Iterator[None]:
    """Begin errors with the name of a scale."""
    try:
        yield
    except FitError as error:
        raise error.with_prefix(f"scale {name}") from error
    except DataError as error:
        raise DataError(f"scale {name}: {error.text}", parameter=error.parameter) from error


def find_finished_fit(plan: FitPlan) -> str | None:
    """Return the latest fit in the folder of runs if it is the planned one."""
    if not (plan.run_folder.output / LATEST_NAME).is_file():
        return None
    latest = load_fitted_model(plan.run_folder.output).artifact
    recorded = {name: latest.manifest.get(name) for name in plan.provenance}
    is_same = compute_fingerprint(recorded) == plan.run_folder.fingerprint
    return str(latest.path) if is_same else None
