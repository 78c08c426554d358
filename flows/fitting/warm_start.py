"""Where `--warm-start` begins: at the parameters of the latest fit of a folder of runs."""

from __future__ import annotations

from dataclasses import replace

from flows.cli.hyperparameters import AUTO
from flows.data.fitted import LoadedModel, check_dataset_features, load_fitted_model
from pipeline.errors import FitError
from pipeline.models.base import Model
from pipeline.models.capabilities import CanWarmStart
from pipeline.models.registry import find_models
from storage.dataset.dataset import BinaryDataset
from storage.errors import DataError
from storage.stores.locations import LATEST_NAME, AnyPath


def find_warm_start(
    model: Model, components: str | None, dataset: BinaryDataset, runs: AnyPath
) -> tuple[Model, LoadedModel]:
    """Find the fit to begin at, and refuse one that cannot be.

    Parameters
    ----------
    model
        What is to be fitted; its settings may differ from those of the fit before.
    components
        How many were asked for; None or `auto` keep the number of the fit before.
    dataset
        The rows to fit.
    runs
        The folder of runs.

    Returns
    -------
    tuple
        The model with its number of components, and the fit to begin at.

    Raises
    ------
    DataError, FitError
        If the model needs no start, or there is no fit of the same model, features and number of
        components.
    """
    if not isinstance(model, CanWarmStart):
        known = ", ".join(
            sorted(name for name, kind in find_models().items() if issubclass(kind, CanWarmStart))
        )
        raise FitError(
            f"--warm-start: Expected a model that iterates ({known}), got {model.name}, "
            "which needs no start. Leave it out."
        )
    if not (runs / LATEST_NAME).is_file():
        raise DataError(
            f"--warm-start: Expected a latest artifact in {runs}, got none. Fit once without it."
        )
    before = load_fitted_model(runs)
    if before.model.name != model.name:
        raise FitError(
            f"--warm-start: Expected the latest artifact to be of {model.name}, got one of "
            f"{before.model.name}: {before.artifact.path}. Fit once without it."
        )
    check_dataset_features(before, dataset)
    n_components = int(before.artifact.manifest["n_components"])
    if components not in (None, AUTO) and model.n_components != n_components:
        raise FitError(
            f"--warm-start: Expected --components {n_components}, as {before.artifact.path} has, "
            f"got {model.n_components}. Give that number, or fit without --warm-start."
        )
    if getattr(model, "layers", None) is not None:
        return model, before  # which says itself whether layers are the same
    return replace(model, n_components=n_components), before  # type: ignore[type-var]
