"""FastICA of bits: the baseline for binary ICA.

Model: x ≈ x̄ + A z with independent sources. Bits do not follow this model, so rows have no
likelihood. Segments are pooled (A. Hyttinen, V. Barin-Pacela, A. Hyvärinen, "Binary Independent
Component Analysis: A Non-stationarity-based Approach", UAI 2022, section 6).

Fit: scikit-learn's FastICA (A. Hyvärinen, IEEE Transactions on Neural Networks 10, 1999) on at most
50,000 rows drawn at random. The drawn rows do not depend on the seed, which sets the start of the
search.

======  ========  ==========================
symbol  field     shape
======  ========  ==========================
A       mixing    (n_features, n_components)
A⁺      unmixing  (n_features, n_components): codes are (x − x̄)ᵀ A⁺
x̄       means     (n_features,): shares of ones
======  ========  ==========================

Missing values are replaced by the mean of their feature. That makes correlations too small, so it
is right only where few values are missing.
Cost: two passes, which count and draw rows; the search costs n_rows n_components² per step.
Not identifiable: order, sign and length of columns (ordered by explained variance, largest entry
positive, length 1).
Accuracy: bits are no linear mixture, so A is biased however many rows there are. With 40 segments
of 1,000 rows of `example:nonstationary`, the mean cosine similarity to the true A was 0.86 for 6
features of 2 sources, 0.68 for 6 features of 6, and 0.57 for 10 features of 10 (median of 5 seeds).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray

from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.models.base import Model
from pipeline.models.binary_ica.rotations import UNLINKED_SOURCES
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.networks.boltzmann_rows import affine_outputs
from pipeline.numerics.spectra.linalg import fast_ica, fix_signs
from pipeline.params import array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.row_samples import RowSample

Array = NDArray[np.float64]

MAX_ROWS = 50_000
"""Maximum number of rows used by the search."""


@dataclass(frozen=True)
class FastICAParams:
    """Parameters; the module's table gives shapes."""

    mixing: Array = array_field("feature", "component")
    unmixing: Array = array_field("feature", "component")
    means: Array = array_field("feature")


@dataclass(frozen=True)
class FastICA(Model):
    """Hyperparameters of FastICA.

    Attributes
    ----------
    n_components
        Number of components; None takes the number of dimensions that the rows span.
    """

    name: ClassVar[str] = "fastica"
    unlinked_effect: ClassVar[str] = UNLINKED_SOURCES
    first_statistics: ClassVar[type[FeatureCounts]] = FeatureCounts
    statistics: ClassVar[type[RowSample]] = RowSample
    params: ClassVar[type[FastICAParams]] = FastICAParams
    signed_arrays: ClassVar[tuple[str, ...]] = ("mixing", "unmixing")
    n_components: int | None = None
    max_iter: int = field(default=1, init=False)
    tol: float = field(default=0.0, init=False)

    def estimate_memory(self, n_features: int, n_segments: int, n_threads: int) -> int:
        """Return the bytes of each task's rows and mask, and of copies in double precision."""
        return MAX_ROWS * n_features * (4 * (n_threads + 1) + 5 * 8)

    def initialize(self, first: FeatureCounts, rng: np.random.Generator) -> FitState:
        """Check the data, and start with empty parameters."""
        observed, ones = pool_margins(first)
        empty = np.zeros((len(ones), 0))
        warnings = make_constant_feature_warnings(observed, ones, "they are in no component")
        return FitState(FastICAParams(empty, empty, ones / observed), warnings=warnings)

    def counts_key(self, n_features: int) -> str:
        """Return a key of the sample of rows."""
        return f"sample of {MAX_ROWS}"

    def summarize(
        self, params: FastICAParams, working: Arrays, block: BinaryBlock, rng: RowRandom
    ) -> RowSample:
        """Draw rows; the sample is the same for every seed."""
        return RowSample.from_block(block, MAX_ROWS, RowRandom(0))

    def update(
        self,
        state: FitState,
        statistics: RowSample,
        map_items: MapFunction,
        rng: np.random.Generator,
    ) -> FitState:
        """Find the mixing.

        Raises
        ------
        FitError
            If the rows span fewer dimensions than the requested components.
        """
        means = state.params.means
        X = np.where(statistics.observed == 1, statistics.X, means) - means
        n_components = self._choose_n_components(X)
        columns, converged = fast_ica(X, n_components, int(rng.integers(2**32)))
        lengths = np.linalg.norm(columns, axis=0)
        order = np.argsort(-lengths, kind="stable")
        mixing = fix_signs((columns / lengths)[:, order])
        diagnostics = {"n_components": n_components, "optimiser_converged": converged}
        warnings = state.warnings
        if not converged:
            warnings += (FitWarning("the search did not converge: try another {seed}"),)
        unmixing = np.asarray(scipy.linalg.pinv(mixing).T, np.float64)
        params = FastICAParams(mixing, unmixing, means)
        return replace(state, params=params, diagnostics=diagnostics, warnings=warnings)

    def _choose_n_components(self, X: Array) -> int:
        """Return the number of components."""
        covariance = np.atleast_2d(np.cov(X, rowvar=False, bias=True))
        rank = int(np.linalg.matrix_rank(covariance, hermitian=True))
        if rank == 0:
            raise FitError(
                "All rows have the same values, so there is nothing to fit. Check the data."
            )
        if self.n_components is not None and self.n_components > rank:
            raise FitError(
                f"{{components}} is {self.n_components}, but the rows span only {rank} dimensions. "
                "Choose at most that many.",
                parameter="components",
            )
        return self.n_components or rank

    def transform(
        self, params: FastICAParams, block: BinaryBlock, rng: RowRandom
    ) -> Mapping[str, NDArray[Any]]:
        """Compute z as `mean`, (n_samples, n_components)."""
        offsets = -params.means @ params.unmixing
        codes = affine_outputs(
            params.unmixing, offsets, params.means, block.unpack_values(), block.unpack_mask()
        )
        return {"mean": codes}
