"""Results of `latentbits`: a fitted model, the codes of rows and an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from numpy.typing import NDArray

from pipeline.data.datasets import StoredArtifact
from pipeline.data.display import DisplayItems, ResultDisplayMixin
from pipeline.errors import spell_parameters
from pipeline.inference.from_artifact import model_from_artifact
from pipeline.models.base import Model
from pipeline.params import get_named_arrays

if TYPE_CHECKING:
    from storage.stores.locations import AnyPath


@dataclass(frozen=True, repr=False)
class Fitted(ResultDisplayMixin):
    """A fitted model.

    Attributes
    ----------
    model
        Hyperparameters.
    params
        Arrays by name, such as `params.loadings`; the model's documentation lists them.
    feature_names, segment_names
        Names in the fitted data.
    history
        Objective per row after each pass, in nats.
    warnings
        Warnings to read before trusting the fit.
    converged
        Whether the last stage of the fit converged.
    objective_is
        Name of the objective, such as `lower bound` or `pseudo-likelihood`.
    objective
        Objective of the parameters in nats per row; None if the fit has no passes.
    labels
        Names of the categories that the model predicts, if any.
    statistics
        Fit statistics by name, such as `log_likelihood`, `bic` and `rmsea`, if any.
    """

    model: Model
    params: Any
    feature_names: tuple[str, ...]
    segment_names: tuple[str, ...]
    history: tuple[float, ...] = ()
    warnings: tuple[str, ...] = ()
    converged: bool = False
    objective_is: str = "objective"
    objective: float | None = None
    labels: tuple[str, ...] = ()
    statistics: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_artifact(cls, artifact: StoredArtifact) -> Self:
        """Load a fitted model from its artifact.

        Raises
        ------
        FitError
            If the artifact is not from a fit, or from another version.
        """
        loaded, manifest = model_from_artifact(artifact), artifact.manifest
        return cls(
            loaded.model,
            loaded.params,
            loaded.feature_names,
            loaded.segment_names,
            tuple(manifest["history"]),
            tuple(map(spell_parameters, manifest["warnings"])),
            bool(manifest["converged"]),
            manifest["diagnostics"].get("objective_is", "objective"),
            manifest["objective"],
            tuple(manifest.get("labels", ())),
            manifest["diagnostics"].get("fit_statistics", {}),
        )

    def _iter_display_items(self) -> DisplayItems:
        yield "model", repr(self.model)
        yield "features", f"{len(self.feature_names):,}"
        yield "segments", f"{len(self.segment_names):,}"
        if len(self.history) > 1 or not self.converged:  # fits by a single pass do not converge
            yield "converged", "yes" if self.converged else "no"
        if self.objective:
            yield self.objective_is, f"{self.objective:.6g} nats per row"
        for name, value in self.statistics.items():
            yield name, f"{value:,.6g}" if isinstance(value, float) else str(value)
        for name, (dims, values) in get_named_arrays(self.params).items():
            if values.size and values.ndim:
                axes = zip(dims, values.shape, strict=True)
                yield name, " × ".join(f"{dim} {size:,}" for dim, size in axes)
        yield from (("warning", text) for text in self.warnings)


def load(path: str | AnyPath) -> Fitted:
    """Load a fitted model from an artifact, or the latest one of a folder of runs.

    Raises
    ------
    ValueError
        If there is no complete artifact, or it is from another version.
    """
    from storage import load_artifact  # Zarr is slow to import

    return Fitted.from_artifact(load_artifact(path))


class Evaluation(ResultDisplayMixin, dict[str, Any]):
    """Results of `evaluate`, by name."""

    def _iter_display_items(self) -> DisplayItems:
        for name, value in self.items():
            for item in value if isinstance(value, list) else [value]:
                yield name, f"{item:.6g}" if isinstance(item, float) else str(item)


class LatentCodes(ResultDisplayMixin, dict[str, NDArray[Any]]):
    """Results of `transform`: arrays by name, each with one row per row of the data."""

    def _iter_display_items(self) -> DisplayItems:
        for name, values in self.items():
            shape = (f"row {len(values):,}", *(f"{size:,}" for size in values.shape[1:]))
            yield name, f"{' × '.join(shape)}, {values.dtype}"
