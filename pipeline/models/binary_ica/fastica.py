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
positive, length 1). Two or more sources are not identified if they are normal and x_i = 1 where A z
plus normal noise exceeds a threshold: rotations of them then give the same rows. Codes of bits are
never normal, so the fit compares them with the codes of such rows, drawn with the same shares and
tetrachoric correlations, and names the sources that do not differ.
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

from pipeline.arrays import Array
from pipeline.data.blocks import BinaryBlock
from pipeline.errors import FitError, FitWarning
from pipeline.executors.base import MapFunction
from pipeline.models.base import Model
from pipeline.models.binary_ica.rotations import (
    ANY_ROTATION,
    UNLINKED_SOURCES,
    name_sources,
)
from pipeline.models.state import Arrays, FitState
from pipeline.numerics.gaussian.pair_tables import tetrachoric
from pipeline.numerics.networks.boltzmann_rows import affine_outputs
from pipeline.numerics.spectra.linalg import fast_ica, fix_signs
from pipeline.params import array_field
from pipeline.random import RowRandom
from pipeline.statistics.counts import FeatureCounts, make_constant_feature_warnings, pool_margins
from pipeline.statistics.row_samples import RowSample

MAX_ROWS = 50_000
"""Maximum number of rows used by the search."""
_MAX_TESTED_FEATURES, _NORMAL_ROWS = 1000, 4  # normal rows per row of the sample
_MIN_DIFFERENCE = 3.5  # of a source's contrast from that of normal sources, in standard errors


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
    indeterminacy: ClassVar[str] = (
        "the order, signs and lengths of the components, and rotations of normal ones"
    )
    unlinked_effect: ClassVar[str] = UNLINKED_SOURCES
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
        gaussian = find_gaussian_sources(X, statistics.observed == 1, unmixing)
        if len(gaussian) > 1:
            text = (
                f"components {name_sources(gaussian)} differ from normal sources by no more than "
            )
            text += f"their errors: if bits are clipped normal variables, {ANY_ROTATION}"
            warnings += (FitWarning(text),)
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


def find_gaussian_sources(X: Array, observed: NDArray[np.bool_], unmixing: Array) -> list[int]:
    """Find the sources whose contrast is that of clipped normal variables, within its error.

    `X` has centred values, 0 where they are missing. The contrast is s tanh s + tanh² s, less its
    regression on s and s²: those have the same means in the normal rows. With more than 1,000
    features, every so many are used.
    """
    used = np.flatnonzero(X.any(axis=0))
    used = used[:: -(-len(used) // _MAX_TESTED_FEATURES)]
    X, observed, unmixing = X[:, used], observed[:, used], unmixing[used]
    sources, seen = X @ unmixing, observed.astype(np.float64)
    scales = sources.std(axis=0)
    codes = sources / np.where(scales > 0, scales, 1)
    ones, draws = (X > 0).astype(np.float64), np.random.default_rng(0)
    both, first = seen.T @ seen, ones.T @ seen
    correlation = tetrachoric(both, first, first.T, ones.T @ ones, empty_cells="half").correlation
    correlation = np.nan_to_num(correlation)
    np.fill_diagonal(correlation, 1)
    values, vectors = np.linalg.eigh(correlation)
    roots = vectors * np.sqrt(np.maximum(values, 0))
    roots /= np.linalg.norm(roots, axis=1, keepdims=True)
    shares = ones.sum(axis=0) / seen.sum(axis=0)
    normal_codes = [
        seen
        * ((draws.standard_normal(X.shape) @ roots.T < scipy.special.ndtri(shares)) - shares)
        @ (unmixing / np.where(scales > 0, scales, 1))
        for _ in range(_NORMAL_ROWS)
    ]
    return [
        k
        for k, normal in enumerate(np.vstack(normal_codes).T)
        if abs(_compare_contrasts(codes[:, k], normal)) < _MIN_DIFFERENCE
    ]


def _compare_contrasts(codes: Array, normal: Array) -> float:
    """Return the difference of the mean contrasts in standard errors."""
    powers, contrasts = [], []
    for s in (codes, normal):
        powers.append(np.column_stack([np.ones(len(s)), s, s**2]))
        contrasts.append(s * np.tanh(s) + np.tanh(s) ** 2)
    slopes = np.linalg.lstsq(powers[0], contrasts[0])[0]
    own, other = (contrasts[i] - powers[i] @ slopes for i in range(2))
    error = np.sqrt(own.var() / len(own) + other.var() / len(other))
    return float((own.mean() - other.mean()) / error) if error > 0 else 0.0
