"""Parameters of BLICA, as its fit makes them and segment by segment."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.models.binary_ica.moment_matching.matching import MomentMatch
from pipeline.models.binary_ica.moment_matching.refinement import estimate_source_means
from pipeline.models.binary_ica.moment_matching.segment_model import SegmentModel
from pipeline.models.binary_ica.moment_matching.segments import SegmentStatus
from pipeline.numerics.metrics import mean_cosine_similarity
from pipeline.params import array_field

Array = NDArray[np.float64]

PROBIT_SCALE = np.sqrt(np.pi / 8)
"""Of P(x = 1) = Φ(√(π/8) y), which is close to a logistic function of y."""


@dataclass(frozen=True)
class BLICAParams:
    """Parameters; the table of `blica` gives shapes. Segments are those that have rows.

    Attributes
    ----------
    segments, segment_rows, segment_status
        Index in the dataset, rows and `SegmentStatus` of each. Segments left out have the mean
        variances of the others.
    mean_misfit
        Root mean square distance of thresholds from those that μ would give, in their standard
        errors.
    pair_status, varies
        `PairStatus` of every pair; 0 where a feature is constant in a segment.
    start_objectives, start_similarities
        Of each start that stayed finite, best first: mean log-likelihood of a row in nats up to a
        constant, and mean cosine similarity of its mixing to the best one's.
    candidate_components, candidate_regularization, candidate_scores
        Settings tried on held-out rows, and their nats a pair of features and row; the first, with
        no components, is independence.
    mixing_interval
        Ends of the 95 % bootstrap intervals; empty without a bootstrap.
    """

    mixing: Array = array_field("feature", "component")
    source_variances: Array = array_field("segment", "component")
    source_means: Array = array_field("segment", "component")
    mean_misfit: Array = array_field("segment")
    thresholds: Array = array_field("segment", "feature")
    scales: Array = array_field("segment", "feature")
    correlations: Array = array_field("segment", "feature", "feature_j")
    pair_status: NDArray[np.uint8] = array_field("segment", "feature", "feature_j")
    varies: NDArray[np.uint8] = array_field("segment", "feature")
    ridge: Array = array_field("segment")
    segments: NDArray[np.int64] = array_field("segment")
    segment_rows: NDArray[np.int64] = array_field("segment")
    segment_status: NDArray[np.uint8] = array_field("segment")
    start_objectives: Array = array_field("start")
    start_similarities: Array = array_field("start")
    candidate_components: NDArray[np.int64] = array_field("candidate")
    candidate_regularization: Array = array_field("candidate")
    candidate_scores: Array = array_field("candidate")
    mixing_interval: Array = array_field("bound", "feature", "component")

    def segment_model(self, index: int) -> SegmentModel:
        """Find the model of a segment; one that was not fitted has the mean of the others."""
        here = self.segments == index
        used = self.segment_status == SegmentStatus.USED
        weights = here if here.any() else self.segment_rows * used
        shares = weights / weights.sum()
        return SegmentModel(
            PROBIT_SCALE * self.mixing,
            shares @ self.thresholds,
            shares @ self.source_means,
            shares @ self.source_variances,
        )


def make_empty_params() -> BLICAParams:
    """Parameters before the fit: they are sent with every task, so they are empty."""
    declared = fields(BLICAParams)
    empty: dict[str, Any] = {f.name: np.zeros((0,) * len(f.metadata["dims"])) for f in declared}
    return BLICAParams(**empty)


def params_from_match(match: MomentMatch, indices: NDArray[np.int64]) -> BLICAParams:
    """Turn fitted values to those of the model: variances × 8/π, outputs in units of y."""
    solution, segments, optima, tried = (
        match.solution,
        match.segments,
        match.optima,
        match.candidates,
    )
    variances = np.exp(solution.log_variances)
    deviations = np.sqrt(1 + variances @ solution.mixing.T**2) / PROBIT_SCALE
    means, misfit = estimate_source_means(
        solution.mixing,
        -segments.thresholds * deviations,
        segments.threshold_errors * deviations,
    )
    ridge = np.zeros(len(segments.is_used))
    ridge[segments.is_used] = match.ridge
    best = optima[0].solution.mixing
    similarities = [mean_cosine_similarity(optimum.solution.mixing, best) for optimum in optima]
    return BLICAParams(
        mixing=solution.mixing,
        source_variances=variances / PROBIT_SCALE**2,
        source_means=means,
        mean_misfit=misfit,
        thresholds=segments.thresholds,
        scales=np.exp(-solution.log_precisions),
        correlations=segments.correlation,
        pair_status=segments.pair_status,
        varies=segments.varies.astype(np.uint8),
        ridge=ridge,
        segments=indices,
        segment_rows=segments.rows,
        segment_status=segments.status,
        start_objectives=np.array([optimum.objective for optimum in optima]),
        start_similarities=np.array(similarities),
        candidate_components=np.array([c.n_components for c in tried], np.int64),
        candidate_regularization=np.array([c.regularization for c in tried], np.float64),
        candidate_scores=np.array([c.score for c in tried], np.float64),
        mixing_interval=match.interval,
    )
