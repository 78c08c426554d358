"""Types of the estimators, written by `.ci/stubs`."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from latentbits.base import ModelEstimator as ModelEstimator
from latentbits.base import WeightedModelEstimator as WeightedModelEstimator

def make_estimators() -> dict[str, type[ModelEstimator]]: ...

class Autoencoder(ModelEstimator):
    """Estimator of the autoencoder.

    Parameters
    ----------
    n_components
        Number of hidden units. None takes one per feature, at most 64.
    loss
        Reconstruction loss: cross-entropy, or half the squared error.
    corruption
        Noise on the input: none, flip (invert bits) or mask (set bits to 0).
    noise
        Share of bits that are flipped or masked.
    sparsity
        Strength of the penalty on hidden units; 0 for none.
    penalty
        Penalize the activations of hidden units (l1), or the distance of their means from
        `target` (kl).
    target
        Mean activation that the penalty kl pulls hidden units to.
    batch
        Rows per step. None picks between 10 and 100, so that a pass has about 20 steps.
    rate
        Initial learning rate; it decays to 0. None picks one for the optimizer.
    optimizer
        Rule that turns gradients into steps.
    momentum
        Share of the running mean gradient that is kept from step to step.
    patience
        Number of passes to wait for an improvement.
    max_iter
        Maximum number of passes over the data.
    tol
        Smallest gain of the objective per row that counts as an improvement, relative if
        the objective is above 1.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    loss: Literal["cross-entropy", "squared"]
    corruption: Literal["none", "flip", "mask"]
    noise: float
    sparsity: float
    penalty: Literal["l1", "kl"]
    target: float
    batch: int | None
    rate: float | None
    optimizer: Literal["adam", "momentum"]
    momentum: float
    patience: int
    max_iter: int
    tol: float
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    weights_: NDArray[np.float64]
    visible_biases_: NDArray[np.float64]
    hidden_biases_: NDArray[np.float64]
    means_: NDArray[np.float64]
    components_: NDArray[np.float64]
    def __init__(
        self,
        n_components: int | None = None,
        *,
        loss: Literal["cross-entropy", "squared"] = "cross-entropy",
        corruption: Literal["none", "flip", "mask"] = "none",
        noise: float = 0.1,
        sparsity: float = 0.0,
        penalty: Literal["l1", "kl"] = "kl",
        target: float = 0.1,
        batch: int | None = None,
        rate: float | None = None,
        optimizer: Literal["adam", "momentum"] = "adam",
        momentum: float = 0.9,
        patience: int = 20,
        max_iter: int = 100,
        tol: float = 1e-05,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class BLICA(ModelEstimator):
    """Estimator of BLICA.

    Parameters
    ----------
    n_components
        Number of components; None takes the fewest within 2.7 standard errors of the best
        held-out pairwise likelihood, among identifiable numbers.
    regularization
        Condition number r, above 1, to which correlations are ridged; larger means a weaker
        ridge. None takes the weakest ridge within one standard error of the best held-out
        pairwise likelihood on which halves of the rows agree.
    min_rows
        Minimum number of rows of a segment; smaller segments are left out.
    starts
        Number of random starts; the best result is used.
    bootstrap
        Number of replicates for the intervals of the mixing: 0 for none, else at least 20.
        Each replicate chooses its own ridge unless `regularization` is set. The number of
        components is fixed.
    segments
        `given`: the dataset says which segment each row is of. `auto`: segments are hidden
        states of the rows, in their order.
    n_segments
        Number of segments of equal length to divide the rows into, in their order, such as
        time bins; None takes the segments from y. With segments='auto', the number of
        hidden segments; None chooses it.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    regularization: float | None
    min_rows: int
    starts: int
    bootstrap: int
    segments: Literal["given", "auto"]
    n_segments: int | None
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    mixing_: NDArray[np.float64]
    source_variances_: NDArray[np.float64]
    source_means_: NDArray[np.float64]
    mean_misfit_: NDArray[np.float64]
    thresholds_: NDArray[np.float64]
    scales_: NDArray[np.float64]
    correlations_: NDArray[np.float64]
    pair_status_: NDArray[np.uint8]
    varies_: NDArray[np.uint8]
    ridge_: NDArray[np.float64]
    segments_: NDArray[np.int64]
    segment_rows_: NDArray[np.int64]
    segment_status_: NDArray[np.uint8]
    start_objectives_: NDArray[np.float64]
    start_similarities_: NDArray[np.float64]
    candidate_components_: NDArray[np.int64]
    candidate_regularization_: NDArray[np.float64]
    candidate_scores_: NDArray[np.float64]
    mixing_interval_: NDArray[np.float64]
    n_levels_: NDArray[np.int64] | None
    level_thresholds_: NDArray[np.float64] | None
    number_means_: NDArray[np.float64] | None
    number_deviations_: NDArray[np.float64] | None
    number_scales_: NDArray[np.float64] | None
    components_: NDArray[np.float64]
    def __init__(
        self,
        n_components: int | None = None,
        *,
        regularization: float | None = None,
        min_rows: int = 20,
        starts: int = 3,
        bootstrap: int = 0,
        segments: Literal["given", "auto"] = "given",
        n_segments: int | None = None,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class BernoulliMixture(WeightedModelEstimator):
    """Estimator of the mixture of products of Bernoullis.

    Parameters
    ----------
    n_components
        Number of components. None doubles it from 1 while held-out rows become more likely.
    smoothing
        Pseudo-counts of ones, of zeros and of rows in every component; also the number of
        rows with the mean and the variance of all rows that is added for every continuous
        feature.
    starts
        Number of short runs; the fit continues with the best. None takes 10; unless values
        are missing or numbers of components are compared, only the best 3 go on after 8
        passes.
    max_components
        Fit every number of components from 1 to this, and compare them in a table. If
        n_components is None, the fit has the number with the lowest BIC.
    blrt
        Number of draws of the bootstrap likelihood-ratio test of each number of components
        against one fewer, up to max_components or n_components; 0 leaves it out.
    errors
        Standard errors from the observed information (`louis`), from the products of scores
        (`crossproduct`, as poLCA), or `none`. With sampling weights they are those of the
        sandwich.
    max_iter
        Maximum number of passes, for each start and number of components.
    tol
        Stop once the objective per row has changed by less than this in the last three
        passes and is predicted to change by less in total, nats. The limit for all rows
        together is 10,000 times this.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    smoothing: float
    starts: int | None
    max_components: int | None
    blrt: int
    errors: Literal["louis", "crossproduct", "none"]
    max_iter: int
    tol: float
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    probabilities_: NDArray[np.float64]
    weights_: NDArray[np.float64]
    n_levels_: NDArray[np.int64] | None
    level_probabilities_: NDArray[np.float64] | None
    probabilities_error_: NDArray[np.float64] | None
    probabilities_interval_: NDArray[np.float64] | None
    weights_error_: NDArray[np.float64] | None
    level_probabilities_error_: NDArray[np.float64] | None
    contrasts_error_: NDArray[np.float64] | None
    means_: NDArray[np.float64] | None
    deviations_: NDArray[np.float64] | None
    overall_means_: NDArray[np.float64] | None
    overall_deviations_: NDArray[np.float64] | None
    means_error_: NDArray[np.float64] | None
    deviations_error_: NDArray[np.float64] | None
    segments_: NDArray[np.int64] | None
    segment_rows_: NDArray[np.int64] | None
    group_class_weights_: NDArray[np.float64] | None
    group_class_weights_error_: NDArray[np.float64] | None
    intercepts_: NDArray[np.float64] | None
    coefficients_: NDArray[np.float64] | None
    covariate_center_: NDArray[np.float64] | None
    intercepts_error_: NDArray[np.float64] | None
    coefficients_error_: NDArray[np.float64] | None
    log_odds_error_: NDArray[np.float64] | None
    def __init__(
        self,
        n_components: int | None = 10,
        *,
        smoothing: float = 0.1,
        starts: int | None = None,
        max_components: int | None = None,
        blrt: int = 0,
        errors: Literal["louis", "crossproduct", "none"] = "louis",
        max_iter: int = 500,
        tol: float = 1e-06,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class BinaryICALikelihood(ModelEstimator):
    """Estimator of binary ICA by likelihood.

    Parameters
    ----------
    n_components
        Number of components; None takes the number that BLICA chooses.
    likelihood
        How log P(x) is computed: `exact` integrates it, which takes at most 20 features or
        2 components; `ep` approximates it by expectation propagation; `auto` is exact up to
        2 components, else `ep`.
    starts
        Number of random starts of the BLICA fit that provides the starting point.
    min_rows
        Minimum number of rows of a segment in the BLICA fit, which leaves out smaller ones.
    segments
        `given`: the dataset says which segment each row is of. `auto`: segments are hidden
        states of the rows, in their order.
    n_segments
        Number of segments of equal length to divide the rows into, in their order, such as
        time bins; None takes the segments from y. With segments='auto', the number of
        hidden segments; None chooses it.
    max_iter
        Maximum number of passes.
    tol
        The fit ends once a further step should gain less than this, in nats over all rows.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    likelihood: Literal["auto", "exact", "ep"]
    starts: int
    min_rows: int
    segments: Literal["given", "auto"]
    n_segments: int | None
    max_iter: int
    tol: float
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    mixing_: NDArray[np.float64]
    offsets_: NDArray[np.float64]
    source_means_: NDArray[np.float64]
    source_variances_: NDArray[np.float64]
    mixing_error_: NDArray[np.float64]
    offsets_error_: NDArray[np.float64]
    log_variances_error_: NDArray[np.float64]
    segments_: NDArray[np.int64]
    segment_rows_: NDArray[np.int64]
    n_levels_: NDArray[np.int64] | None
    level_offsets_: NDArray[np.float64] | None
    level_offsets_error_: NDArray[np.float64] | None
    number_means_: NDArray[np.float64] | None
    number_deviations_: NDArray[np.float64] | None
    number_scales_: NDArray[np.float64] | None
    number_scales_error_: NDArray[np.float64] | None
    components_: NDArray[np.float64]
    def __init__(
        self,
        n_components: int | None = None,
        *,
        likelihood: Literal["auto", "exact", "ep"] = "auto",
        starts: int = 3,
        min_rows: int = 20,
        segments: Literal["given", "auto"] = "given",
        n_segments: int | None = None,
        max_iter: int = 300,
        tol: float = 0.01,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class Bottleneck(ModelEstimator):
    """Estimator of the bottleneck.

    Parameters
    ----------
    n_components
        Number of hidden units. None takes 10.
    column
        Per-row column to predict; `segment` predicts the segment.
    kind
        Type of the label. auto treats texts and whole numbers as categories, and fractions,
        or whole numbers with more than 1,000 distinct values, as a number.
    batch
        Rows per step. None picks between 10 and 100, so that a pass has about 20 steps.
    rate
        Initial learning rate; it decays to 0. None picks one for the optimizer.
    optimizer
        Rule that turns gradients into steps.
    momentum
        Share of the running mean gradient that is kept from step to step.
    patience
        Number of passes to wait for an improvement.
    max_iter
        Maximum number of passes over the data.
    tol
        Smallest gain of the objective per row that counts as an improvement, relative if
        the objective is above 1.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    column: str
    kind: Literal["auto", "category", "number"]
    batch: int | None
    rate: float | None
    optimizer: Literal["adam", "momentum"]
    momentum: float
    patience: int
    max_iter: int
    tol: float
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    weights_: NDArray[np.float64]
    biases_: NDArray[np.float64]
    outputs_: NDArray[np.float64]
    output_biases_: NDArray[np.float64]
    means_: NDArray[np.float64]
    categories_: NDArray[np.float64] | None
    shares_: NDArray[np.float64] | None
    number_: NDArray[np.float64] | None
    components_: NDArray[np.float64]
    def __init__(
        self,
        n_components: int | None = None,
        *,
        column: str = "segment",
        kind: Literal["auto", "category", "number"] = "auto",
        batch: int | None = None,
        rate: float | None = None,
        optimizer: Literal["adam", "momentum"] = "adam",
        momentum: float = 0.9,
        patience: int = 10,
        max_iter: int = 100,
        tol: float = 1e-05,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class ClippedPCA(WeightedModelEstimator):
    """Estimator of clipped PCA.

    Parameters
    ----------
    n_components
        Number of components; None chooses it by parallel analysis.
    estimator
        Estimator of the loadings: principal components (`pca`), or factors by minimum
        residuals (`minres`) or maximum likelihood (`ml`), with indices of fit.
    rotation
        Rotation of the loadings: `none`, `varimax`, or for correlated components `oblimin`
        or `promax`.
    correlation
        Estimator of the correlations of binary features: `tetrachoric` or `arcsine`.
    empty_cells
        How the tetrachoric estimator treats a table with an empty cell: `half` adds ½ to
        all its cells, `none` uses the boundary estimate ±(1 − 1e-6). If ones are rare,
        `none` makes the correlations indefinite, and the parallel analysis then finds
        spurious components.
    constant_features
        `refuse` them, or `keep` them with loadings of zero.
    repair
        Treatment of indefinite correlations before the eigenvectors are computed: `nearest`
        uses the nearest correlation matrix, `shrink` uses (1 − τ) C + τ I with the least
        sufficient τ.
    errors
        `model` computes standard errors under the fitted Gaussians, for unrepaired
        correlations of up to 1,000 planes that are not arcsine estimates, unless rows have
        sampling weights; `none` omits them. Rotated loadings and those of factors have
        none.
    null_draws
        Number of null spectra for the parallel analysis, at least 20.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    estimator: Literal["pca", "minres", "ml"]
    rotation: Literal["none", "varimax", "oblimin", "promax"]
    correlation: Literal["tetrachoric", "arcsine"]
    empty_cells: Literal["half", "none"]
    constant_features: Literal["refuse", "keep"]
    repair: Literal["none", "nearest", "shrink"]
    errors: Literal["model", "none"]
    null_draws: int
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    loadings_: NDArray[np.float64]
    eigenvalues_: NDArray[np.float64]
    thresholds_: NDArray[np.float64]
    null_eigenvalues_: NDArray[np.float64]
    correlation_: NDArray[np.float64] | None
    status_: NDArray[np.uint8] | None
    loadings_error_: NDArray[np.float64] | None
    thresholds_error_: NDArray[np.float64] | None
    correlation_error_: NDArray[np.float64] | None
    n_levels_: NDArray[np.int64] | None
    component_correlation_: NDArray[np.float64] | None
    communality_: NDArray[np.float64] | None
    uniqueness_: NDArray[np.float64] | None
    means_: NDArray[np.float64] | None
    scales_: NDArray[np.float64] | None
    components_: NDArray[np.float64]
    def __init__(
        self,
        n_components: int | None = None,
        *,
        estimator: Literal["pca", "minres", "ml"] = "pca",
        rotation: Literal["none", "varimax", "oblimin", "promax"] = "none",
        correlation: Literal["tetrachoric", "arcsine"] = "tetrachoric",
        empty_cells: Literal["half", "none"] = "half",
        constant_features: Literal["refuse", "keep"] = "keep",
        repair: Literal["none", "nearest", "shrink"] = "none",
        errors: Literal["model", "none"] = "model",
        null_draws: int = 20,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class FastICA(ModelEstimator):
    """Estimator of FastICA.

    Parameters
    ----------
    n_components
        Number of components; None takes the number of dimensions that the rows span.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    mixing_: NDArray[np.float64]
    unmixing_: NDArray[np.float64]
    means_: NDArray[np.float64]
    components_: NDArray[np.float64]
    def __init__(
        self,
        n_components: int | None = None,
        *,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class HiddenMarkov(ModelEstimator):
    """Estimator of the hidden Markov model.

    Parameters
    ----------
    n_components
        Number of states. None doubles it from 1 while held-out rows become more likely, and
        then tries numbers in between.
    row_id
        Per-row column of the sequence that a row is of, such as a person; its rows follow
        each other. If empty, all rows are one sequence.
    time
        Per-row column of the time, a number that must ascend within each sequence; if
        empty, rows are in order. Steps count as equally long.
    smoothing
        Pseudo-counts of ones and zeros in every state, of each transition and of each first
        state; also the number of rows with the mean and the variance of all rows that is
        added for every continuous feature.
    starts
        Number of short runs; the fit continues with the best. None takes 10; unless values
        are missing, only the best 3 go on after 8 passes.
    acceleration
        `squarem` or `none`.
    max_iter
        Maximum number of passes, for each start and number of states.
    tol
        Stop once the objective per row has changed by less than this in the last three
        passes and is predicted to change by less in total, nats. The limit for all rows
        together is 10,000 times this.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    row_id: str
    time: str
    smoothing: float
    starts: int | None
    acceleration: Literal["squarem", "none"]
    max_iter: int
    tol: float
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    probabilities_: NDArray[np.float64]
    weights_: NDArray[np.float64]
    n_levels_: NDArray[np.int64] | None
    level_probabilities_: NDArray[np.float64] | None
    probabilities_error_: NDArray[np.float64] | None
    probabilities_interval_: NDArray[np.float64] | None
    weights_error_: NDArray[np.float64] | None
    level_probabilities_error_: NDArray[np.float64] | None
    contrasts_error_: NDArray[np.float64] | None
    means_: NDArray[np.float64] | None
    deviations_: NDArray[np.float64] | None
    overall_means_: NDArray[np.float64] | None
    overall_deviations_: NDArray[np.float64] | None
    means_error_: NDArray[np.float64] | None
    deviations_error_: NDArray[np.float64] | None
    segments_: NDArray[np.int64] | None
    segment_rows_: NDArray[np.int64] | None
    group_class_weights_: NDArray[np.float64] | None
    group_class_weights_error_: NDArray[np.float64] | None
    intercepts_: NDArray[np.float64] | None
    coefficients_: NDArray[np.float64] | None
    covariate_center_: NDArray[np.float64] | None
    intercepts_error_: NDArray[np.float64] | None
    coefficients_error_: NDArray[np.float64] | None
    log_odds_error_: NDArray[np.float64] | None
    initial_: NDArray[np.float64]
    transition_: NDArray[np.float64]
    def __init__(
        self,
        n_components: int | None = 4,
        *,
        row_id: str = "",
        time: str = "",
        smoothing: float = 0.1,
        starts: int | None = None,
        acceleration: Literal["squarem", "none"] = "squarem",
        max_iter: int = 500,
        tol: float = 1e-06,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class HiddenTree(WeightedModelEstimator):
    """Estimator of the hidden tree.

    Parameters
    ----------
    n_components
        Number of components, which are pairs of a tree and a state of its root: all states
        of the first tree, then all of the second, and so on. None is `states` times
        `trees`. States of different trees are unrelated; with a single tree, components are
        classes of rows.
    states
        Number of states behind each feature, at most 64. None is `n_components` divided by
        `trees`; without `n_components`, it is doubled from 1 while held-out rows become
        more likely.
    trees
        Number of sets of tables on the same tree, each fitted from a random start of its
        own. The probability of a row is the mean over the sets.
    smoothing
        Number of pseudo-rows added to each state in each table.
    starts
        Number of short runs, and of trees that each of two searches for a better tree
        tries. 1 keeps the tree of the features.
    max_iter
        Maximum number of passes, for each number of states.
    tol
        Stop once the objective per row has changed by less than this in the last three
        passes and is predicted to change by less in total, nats.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    states: int | None
    trees: int
    smoothing: float
    starts: int
    max_iter: int
    tol: float
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    weights_: NDArray[np.float64]
    parents_: NDArray[np.int64]
    transitions_: NDArray[np.float64]
    emissions_: NDArray[np.float64]
    margins_: NDArray[np.float64]
    n_levels_: NDArray[np.int64] | None
    def __init__(
        self,
        n_components: int | None = None,
        *,
        states: int | None = None,
        trees: int = 1,
        smoothing: float = 0.1,
        starts: int = 2,
        max_iter: int = 200,
        tol: float = 0.0001,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class Ising(WeightedModelEstimator):
    """Estimator of the Ising model.

    Parameters
    ----------
    n_components
        Number of leading eigenvectors of the couplings that rows are projected on.
    penalty
        Penalty of the couplings: `lasso` chooses edges, `ridge` shrinks all couplings,
        `none` estimates all of them.
    strength
        Penalty per row, for all features. None chooses that of `lasso` by EBIC, for each
        feature, and takes 1 / rows for `ridge`.
    gamma
        How much EBIC prefers few edges, from 0 (BIC) to 1.
    path
        Number of penalties that EBIC chooses from.
    rule
        Features share an edge if each is a neighbour of the other (`and`), or one of them
        (`or`).
    refit
        Estimate the edges anew without a penalty: by pseudo-likelihood (`pseudo`), with
        standard errors, or by maximum likelihood (`likelihood`) for at most 200 features;
        or not (`none`).
    draws
        Number of bootstrap draws of the rows, each fitted with the penalties of the fit,
        for the stability of edges and centrality.
    permutations
        Number of times that the group labels of rows are drawn anew, to test whether the
        networks of groups differ.
    max_iter
        Maximum number of passes of a stage.
    tol
        Stop once further steps should raise the mean log-likelihood per row of a feature by
        less than this, nats.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    penalty: Literal["lasso", "ridge", "none"]
    strength: float | None
    gamma: float
    path: int
    rule: Literal["and", "or"]
    refit: Literal["none", "pseudo", "likelihood"]
    draws: int
    permutations: int
    max_iter: int
    tol: float
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    thresholds_: NDArray[np.float64]
    couplings_: NDArray[np.float64]
    slopes_: NDArray[np.float64]
    strengths_: NDArray[np.float64]
    shares_: NDArray[np.float64]
    modes_: NDArray[np.float64]
    couplings_error_: NDArray[np.float64] | None
    thresholds_error_: NDArray[np.float64] | None
    stability_: NDArray[np.float64] | None
    centrality_interval_: NDArray[np.float64] | None
    log_z_: NDArray[np.float64] | None
    segments_: NDArray[np.int64] | None
    segment_rows_: NDArray[np.int64] | None
    group_shares_: NDArray[np.float64] | None
    group_thresholds_: NDArray[np.float64] | None
    group_couplings_: NDArray[np.float64] | None
    group_slopes_: NDArray[np.float64] | None
    group_thresholds_error_: NDArray[np.float64] | None
    group_couplings_error_: NDArray[np.float64] | None
    group_log_z_: NDArray[np.float64] | None
    largest_difference_: NDArray[np.float64] | None
    largest_difference_p_: NDArray[np.float64] | None
    strength_difference_: NDArray[np.float64] | None
    strength_difference_p_: NDArray[np.float64] | None
    difference_p_: NDArray[np.float64] | None
    components_: NDArray[np.float64]
    def __init__(
        self,
        n_components: int | None = 2,
        *,
        penalty: Literal["lasso", "ridge", "none"] = "lasso",
        strength: float | None = None,
        gamma: float = 0.25,
        path: int = 100,
        rule: Literal["and", "or"] = "and",
        refit: Literal["none", "pseudo", "likelihood"] = "none",
        draws: int = 0,
        permutations: int = 0,
        max_iter: int = 100,
        tol: float = 1e-09,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class KernelPCA(ModelEstimator):
    """Estimator of kernel PCA.

    Parameters
    ----------
    n_components
        Number of components; None takes 2.
    width
        h, in units of the distance of rows: the square root of the number of features that
        differ. None takes the median distance of distinct rows, of 1,000 drawn at random if
        there are more.
    landmarks
        Number of rows that span the components; None takes all distinct rows, up to 20,000.
        Memory grows with the square of this number; 1,000 is a good start.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    width: float | None
    landmarks: int | None
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    landmarks_: NDArray[np.uint8]
    width_: NDArray[np.float64]
    directions_: NDArray[np.float64]
    offsets_: NDArray[np.float64]
    eigenvalues_: NDArray[np.float64]
    observed_: NDArray[np.uint8] | None
    def __init__(
        self,
        n_components: int | None = 2,
        *,
        width: float | None = None,
        landmarks: int | None = None,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class LaplacianEigenmap(ModelEstimator):
    """Estimator of the Laplacian eigenmap.

    Parameters
    ----------
    n_components
        Number of components; None takes 2.
    k
        Number of neighbours of each row.
    weights
        Weights of links: 1 (`binary`), or exp(−d / 2 width²) for a Hamming distance d
        (`heat`).
    width
        Width of the heat kernel, in square roots of a number of features; None takes the
        square root of the median distance to the k-th neighbour.
    landmarks
        Number of distinct rows in the graph, drawn at random; None takes all, at most
        200,000.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    k: int
    weights: Literal["binary", "heat"]
    width: float | None
    landmarks: int | None
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    rows_: NDArray[np.uint8]
    embedding_: NDArray[np.float64]
    eigenvalues_: NDArray[np.float64]
    observed_: NDArray[np.uint8] | None
    width_: NDArray[np.float64] | None
    def __init__(
        self,
        n_components: int | None = None,
        *,
        k: int = 10,
        weights: Literal["binary", "heat"] = "binary",
        width: float | None = None,
        landmarks: int | None = None,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class LatentTrait(WeightedModelEstimator):
    """Estimator of the latent-trait model.

    Parameters
    ----------
    n_components
        Number of traits. None chooses it by the objective of held-out rows.
    estimator
        `auto`, `variational`, `quadrature` (up to 3 components), `ep` (expectation
        propagation) or `sampling`. `auto` is quadrature, or `ep` above 3 components. Above
        2 components, it begins with the variational fit. Items with levels, and loading
        patterns, need quadrature or `ep`, and other structures quadrature.
    nodes
        Nodes per axis for quadrature, or number of draws for sampling. None uses a lattice
        for rows without missing values. With missing values, it starts with 41, 21 or 15
        nodes for 1, 2 or 3 components, and ends with equally spaced ones, or with up to 31,
        17 or 9 per axis for each row, until the log-likelihood of all rows is exact to 1e-3
        nats. None takes 500 draws.
    prior_precision
        Precision of a normal prior on the weights; above 0, separable items stay finite.
        Where it would stretch the traits, their scale is estimated afterwards.
    equal_slopes
        `yes` gives all items the same weight; requires one component and quadrature or
        sampling. Continuous items have weights of their own.
    constant_features
        `refuse` them, or `keep` them with weights of 0 and the offset of their margin.
    acceleration
        `squarem` or `none`. With `none`, large fits do not start on a sample of their rows
        either.
    rotation
        Rotation of the weights in `rotated`: `principal` axes, `varimax`, or for correlated
        components `oblimin` or `promax`.
    errors
        Standard errors from the observed information (`louis`), from the products of scores
        (`crossproduct`, always used by `ep` above 3 components or with levels), from both
        (`sandwich`, also right if the model is wrong, and always used for rows with
        sampling weights), or `none`. With more than 3,000 parameters, or by `ep` with fewer
        than 3 rows per parameter, they are `louis`, computed by item, for up to 6
        components; a warning names fits that have none. The variational and sampling fits
        have none, because their own error is larger.
    invariance
        Parameters of items that are equal in all groups: none (`configural`), slopes
        (`metric`), or slopes and offsets (`scalar`). `strict` also makes residual variances
        equal; binary items have none, so it is the same as `scalar`.
    free
        Names of items, separated by commas, whose slopes and offsets differ by group.
    traits
        What is estimated of the distribution of the traits in groups other than the first,
        and in all rows if there are known items: mean and covariance (`free`), only the
        mean (`mean`), or nothing (`standard`: mean 0, covariance I).
    correlations
        Correlations of the traits of a loading pattern: `free`, or `none`, that is 0.
        `auto` is `none` if all items load on one of the traits, as in a bifactor model,
        else `free`.
    guessing
        Probability of a one far below an item's difficulty: 0 (`none`), the same for all
        items (`common`), or one per item (`item`). Needs one component and quadrature.
    slipping
        Probability of a zero far above an item's difficulty, likewise.
    guessing_prior
        Prior of the probability, such as `beta(5,17)`, or of its logit, such as
        `normal(-1.1,0.5)`; `none` for maximum likelihood.
    slipping_prior
        Prior of the probability, such as `beta(5,17)`, or of its logit, such as
        `normal(-1.1,0.5)`; `none` for maximum likelihood.
    slope_prior
        Prior in a fit with guessing or slipping: `none`, or such as `normal(0,2)`; for
        slopes also `lognormal(0,0.5)`.
    offset_prior
        Prior in a fit with guessing or slipping: `none`, or such as `normal(0,2)`; for
        slopes also `lognormal(0,0.5)`.
    items
        Curves of items with more than two levels: `graded` (response), (generalized)
        `partial-credit`, `rating-scale` or `nominal`. With `equal_slopes`, partial credit
        is that of Masters. They need quadrature. Continuous items are normal given the
        traits.
    dynamics
        `none`, or `walk`: the position of each member follows a random walk between
        periods; see `WalkingTrait`, whose `tol` is 1e-4. It takes `innovation`,
        `prior_precision` (0.1 by default), `constant_features`, `nodes`, `acceleration`,
        `max_iter` and `tol`.
    innovation
        Variance of the change of a position in a unit of time with `dynamics=walk`, in
        units of the variance of first positions. None estimates it.
    tree
        Numbers of children, level by level, of a tree of models in planes; see `TraitTree`.
        With `3,2`, the rows are split softly among three models, and those of each among
        two. It takes `prior_precision` (0.1 by default), `constant_features`,
        `acceleration`, `max_iter` and `tol` (1e-4).
    max_iter
        Maximum number of passes of a stage. There is a stage for each number of components,
        estimator and density of nodes.
    tol
        Stop once the objective per row has changed by less than this in the last three
        passes and is predicted to change by less in total, nats. The limit for all rows
        together is 10,000 times this. The variational stage of `auto` stops at 1e-3, a
        lattice with fewer nodes at 1e-4.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    estimator: Literal["auto", "variational", "quadrature", "ep", "sampling"]
    nodes: int | None
    prior_precision: float
    equal_slopes: Literal["no", "yes"]
    constant_features: Literal["refuse", "keep"]
    acceleration: Literal["squarem", "none"]
    rotation: Literal["principal", "varimax", "oblimin", "promax"]
    errors: Literal["louis", "sandwich", "crossproduct", "none"]
    invariance: Literal["configural", "metric", "scalar", "strict"]
    free: str
    traits: Literal["free", "mean", "standard"]
    correlations: Literal["auto", "free", "none"]
    guessing: Literal["none", "common", "item"]
    slipping: Literal["none", "common", "item"]
    guessing_prior: str
    slipping_prior: str
    slope_prior: str
    offset_prior: str
    items: Literal["graded", "partial-credit", "rating-scale", "nominal"]
    dynamics: Literal["none", "walk"]
    innovation: float | None
    tree: tuple[int, ...]
    max_iter: int
    tol: float
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    weights_: NDArray[np.float64]
    offsets_: NDArray[np.float64]
    level_offsets_: NDArray[np.float64] | None
    level_weights_: NDArray[np.float64] | None
    deviations_: NDArray[np.float64] | None
    guessing_: NDArray[np.float64] | None
    slipping_: NDArray[np.float64] | None
    rotated_: NDArray[np.float64]
    component_correlation_: NDArray[np.float64]
    axes_: NDArray[np.float64]
    weights_error_: NDArray[np.float64] | None
    offsets_error_: NDArray[np.float64] | None
    level_offsets_error_: NDArray[np.float64] | None
    level_weights_error_: NDArray[np.float64] | None
    deviations_error_: NDArray[np.float64] | None
    guessing_error_: NDArray[np.float64] | None
    slipping_error_: NDArray[np.float64] | None
    segments_: NDArray[np.int64] | None
    segment_rows_: NDArray[np.int64] | None
    group_weights_: NDArray[np.float64] | None
    group_offsets_: NDArray[np.float64] | None
    group_level_offsets_: NDArray[np.float64] | None
    group_level_weights_: NDArray[np.float64] | None
    group_deviations_: NDArray[np.float64] | None
    group_guessing_: NDArray[np.float64] | None
    group_slipping_: NDArray[np.float64] | None
    group_weights_error_: NDArray[np.float64] | None
    group_offsets_error_: NDArray[np.float64] | None
    group_level_offsets_error_: NDArray[np.float64] | None
    group_level_weights_error_: NDArray[np.float64] | None
    group_deviations_error_: NDArray[np.float64] | None
    group_guessing_error_: NDArray[np.float64] | None
    group_slipping_error_: NDArray[np.float64] | None
    difficulty_: NDArray[np.float64] | None
    level_difficulty_: NDArray[np.float64] | None
    difficulty_error_: NDArray[np.float64] | None
    level_difficulty_error_: NDArray[np.float64] | None
    loadings_: NDArray[np.float64] | None
    communality_: NDArray[np.float64] | None
    loadings_error_: NDArray[np.float64] | None
    communality_error_: NDArray[np.float64] | None
    infit_: NDArray[np.float64] | None
    outfit_: NDArray[np.float64] | None
    s_x2_: NDArray[np.float64] | None
    s_x2_df_: NDArray[np.float64] | None
    s_x2_p_: NDArray[np.float64] | None
    trait_mean_: NDArray[np.float64] | None
    trait_covariance_: NDArray[np.float64] | None
    trait_mean_error_: NDArray[np.float64] | None
    trait_covariance_error_: NDArray[np.float64] | None
    coefficients_: NDArray[np.float64] | None
    covariate_center_: NDArray[np.float64] | None
    coefficients_error_: NDArray[np.float64] | None
    population_mean_: NDArray[np.float64] | None
    population_covariance_: NDArray[np.float64] | None
    means_: NDArray[np.float64] | None
    scales_: NDArray[np.float64] | None
    n_levels_: NDArray[np.int64] | None
    is_nominal_: NDArray[np.bool] | None
    is_known_: NDArray[np.bool] | None
    log_prior_: NDArray[np.float64] | None
    components_: NDArray[np.float64]
    def __init__(
        self,
        n_components: int | None = 2,
        *,
        estimator: Literal["auto", "variational", "quadrature", "ep", "sampling"] = "auto",
        nodes: int | None = None,
        prior_precision: float = 0.0,
        equal_slopes: Literal["no", "yes"] = "no",
        constant_features: Literal["refuse", "keep"] = "keep",
        acceleration: Literal["squarem", "none"] = "squarem",
        rotation: Literal["principal", "varimax", "oblimin", "promax"] = "principal",
        errors: Literal["louis", "sandwich", "crossproduct", "none"] = "louis",
        invariance: Literal["configural", "metric", "scalar", "strict"] = "scalar",
        free: str = "",
        traits: Literal["free", "mean", "standard"] = "free",
        correlations: Literal["auto", "free", "none"] = "auto",
        guessing: Literal["none", "common", "item"] = "none",
        slipping: Literal["none", "common", "item"] = "none",
        guessing_prior: str = "beta(5,17)",
        slipping_prior: str = "beta(5,17)",
        slope_prior: str = "none",
        offset_prior: str = "none",
        items: Literal["graded", "partial-credit", "rating-scale", "nominal"] = "graded",
        dynamics: Literal["none", "walk"] = "none",
        innovation: float | None = None,
        tree: tuple[int, ...] = (),
        max_iter: int = 500,
        tol: float = 1e-07,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class LinearIVAE(ModelEstimator):
    """Estimator of the linear iVAE.

    Parameters
    ----------
    n_components
        Number of components; None takes 2.
    batch
        Rows per step. None picks between 10 and 100, so that a pass has about 20 steps.
    rate
        Initial learning rate; it decays to 0. None picks one for the optimizer.
    optimizer
        Rule that turns gradients into steps.
    momentum
        Share of the running mean gradient that is kept from step to step.
    patience
        Number of passes to wait for an improvement.
    max_iter
        Maximum number of passes over the data.
    tol
        Smallest gain of the objective per row that counts as an improvement, relative if
        the objective is above 1.
    n_segments
        Number of segments of equal length to divide the rows into, in their order, such as
        time bins; None takes the segments from y.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    batch: int | None
    rate: float | None
    optimizer: Literal["adam", "momentum"]
    momentum: float
    patience: int
    max_iter: int
    tol: float
    n_segments: int | None
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    mixing_: NDArray[np.float64]
    offsets_: NDArray[np.float64]
    source_means_: NDArray[np.float64]
    source_variances_: NDArray[np.float64]
    code_weights_: NDArray[np.float64]
    code_offsets_: NDArray[np.float64]
    spread_weights_: NDArray[np.float64]
    spread_offsets_: NDArray[np.float64]
    means_: NDArray[np.float64]
    segments_: NDArray[np.int64]
    segment_rows_: NDArray[np.int64]
    components_: NDArray[np.float64]
    def __init__(
        self,
        n_components: int | None = None,
        *,
        batch: int | None = None,
        rate: float | None = None,
        optimizer: Literal["adam", "momentum"] = "adam",
        momentum: float = 0.9,
        patience: int = 20,
        max_iter: int = 100,
        tol: float = 1e-05,
        n_segments: int | None = None,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class NoisyOr(ModelEstimator):
    """Estimator of the noisy-OR network.

    Parameters
    ----------
    n_components
        Number of hidden units in all layers; without `layers`, they form one layer.
    layers
        Units per layer from the data up. None takes one layer of `n_components`; if that is
        None too, the layers are chosen by held-out rows: one layer is doubled while that
        helps, then a second of half the size is tried.
    top
        Causes of the top layer: each on or off by itself (independent), or at most one of a
        group on (exclusive).
    group_sizes
        Units of each exclusive group, in order; a group of 1 is an independent unit. None
        takes one group of all units of the top layer.
    schedule
        With drawn units, learn each layer for `epochs`, from the data up, and then all
        together (paper); or start each layer once flips of the units below have become rare
        (stability).
    epochs
        Re-estimates per layer; afterwards there are five times as many of all layers
        together.
    batch
        Rows per re-estimate.
    starts
        Number of random starts; the fit continues with the best, or the best three.
    sweeps
        Maximum number of Gibbs sweeps per row; twice as many in passes over all rows.
    settled
        A row's sweeps end once the largest flip probability is below this.
    tempering
        Power of P(x | units) in the first sweep of a row; it rises to 1 in the last. Below
        1, units leave poor explanations more easily.
    alpha
        Parameters of the Beta prior of f = 1 − exp(−w).
    beta
        Parameters of the Beta prior of f = 1 − exp(−w).
    leak
        Weight that turns a unit on if none above is on. Without it, rows could have
        probability 0.
    leaks
        Keep the leaks (fixed), or learn one per unit (learned); auto learns them in exact
        fits of a single layer.
    prune
        Remove units that explain too little: in exact fits, those without which the BIC is
        better; otherwise, those that are hardly ever on, or turn nothing on.
    chains
        Chains per row in the estimate of log P, used for more than 20 hidden units.
    temperatures
        Number of annealing steps of each of these chains.
    patience
        Number of passes without improvement after which a fit with drawn units stops.
    max_iter
        Maximum number of passes over all rows.
    tol
        Change of the objective per row, nats, at which the fit stops; with drawn units, the
        smallest gain that counts as an improvement is at least 0.001.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    layers: tuple[int, ...] | None
    top: Literal["independent", "exclusive"]
    group_sizes: tuple[int, ...] | None
    schedule: Literal["paper", "stability"]
    epochs: int
    batch: int
    starts: int
    sweeps: int
    settled: float
    tempering: float
    alpha: float
    beta: float
    leak: float
    leaks: Literal["auto", "fixed", "learned"]
    prune: bool
    chains: int
    temperatures: int
    patience: int
    max_iter: int
    tol: float
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    weights_: tuple[NDArray[np.float64], ...]
    leaks_: tuple[NDArray[np.float64], ...]
    activity_: NDArray[np.float64] | None
    exclusive_groups_: NDArray[np.int64] | None
    def __init__(
        self,
        n_components: int | None = None,
        *,
        layers: tuple[int, ...] | None = None,
        top: Literal["independent", "exclusive"] = "independent",
        group_sizes: tuple[int, ...] | None = None,
        schedule: Literal["paper", "stability"] = "paper",
        epochs: int = 30,
        batch: int = 200,
        starts: int = 10,
        sweeps: int = 15,
        settled: float = 0.05,
        tempering: float = 1.0,
        alpha: float = 1.0,
        beta: float = 1.5,
        leak: float = 0.0001,
        leaks: Literal["auto", "fixed", "learned"] = "auto",
        prune: bool = False,
        chains: int = 50,
        temperatures: int = 200,
        patience: int = 3,
        max_iter: int = 200,
        tol: float = 1e-05,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class RestrictedBoltzmannMachine(ModelEstimator):
    """Estimator of the restricted Boltzmann machine.

    Parameters
    ----------
    n_components
        Number of hidden units. None takes one per feature, at most 64.
    method
        Maximum likelihood (exact), or contrastive divergence with chains that start at the
        rows of each batch (cd) or where they were after the previous batch (pcd). auto is
        exact if that is fast and `sparsity` is 0, else pcd, with exact passes at the end if
        they are possible. Settings of steps, batches and chains are of cd and pcd.
    steps
        Gibbs steps of the chains per batch.
    weight_decay
        Factor of the weights that is subtracted from their gradient.
    sparsity
        Strength with which the mean of each hidden unit is pulled to `target`; not for
        exact fits.
    target
        Mean activation of hidden units if `sparsity` is above 0.
    chains
        Number of chains in the estimate of log Z.
    temperatures
        Number of annealing steps of each of these chains.
    batch
        Rows per step. None picks between 10 and 100, so that a pass has about 20 steps.
    rate
        Initial learning rate; it decays to 0. None picks one for the optimizer and the
        number of steps in a pass.
    optimizer
        Rule that turns gradients into steps.
    momentum
        Share of the running mean gradient that is kept from step to step.
    patience
        Number of passes to wait for an improvement.
    max_iter
        Maximum number of passes over the data. None takes 1,000 for exact fits; 100 to
        1,000 for others, more if there are few steps in a pass; and at most 100 for exact
        passes at the end.
    tol
        Smallest gain of the objective per row that counts as an improvement, relative if
        the objective is above 1.
    starts
        Number of random starts of the exact fit. None takes 3, or 10 if values are missing.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    method: Literal["auto", "exact", "cd", "pcd"]
    steps: int
    weight_decay: float
    sparsity: float
    target: float
    chains: int
    temperatures: int
    batch: int | None
    rate: float | None
    optimizer: Literal["adam", "momentum"]
    momentum: float
    patience: int
    max_iter: int | None
    tol: float
    starts: int | None
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    weights_: NDArray[np.float64]
    visible_biases_: NDArray[np.float64]
    hidden_biases_: NDArray[np.float64]
    log_odds_: NDArray[np.float64]
    log_z_: NDArray[np.float64] | None
    log_z_error_: NDArray[np.float64] | None
    components_: NDArray[np.float64]
    def __init__(
        self,
        n_components: int | None = None,
        *,
        method: Literal["auto", "exact", "cd", "pcd"] = "auto",
        steps: int = 1,
        weight_decay: float = 0.0,
        sparsity: float = 0.0,
        target: float = 0.1,
        chains: int = 500,
        temperatures: int = 2000,
        batch: int | None = None,
        rate: float | None = None,
        optimizer: Literal["adam", "momentum"] = "adam",
        momentum: float = 0.5,
        patience: int = 50,
        max_iter: int | None = None,
        tol: float = 1e-05,
        starts: int | None = None,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class Stack(ModelEstimator):
    """Estimator of the stack.

    Parameters
    ----------
    n_components
        Units of the last layer. None takes the last of `layers`, else one per feature, at
        most 16.
    layers
        Units per layer from the data up; the last number is the number of components. None
        takes 256 and 128 below the components, at most the number of features and at least
        the number of components.
    block
        Kind of layer in pretraining: restricted Boltzmann machine (rbm) or autoencoder.
    pretrain
        Passes per layer in pretraining; 0 trains all layers together from random weights.
    corruption
        Noise on the input of the last stage, and of the first layer pretrained as an
        autoencoder: none, flip (invert bits) or mask (set bits to 0).
    noise
        Share of bits that are flipped or masked.
    batch
        Rows per step. None picks between 10 and 100, so that a pass has about 20 steps.
    rate
        Initial learning rate of each stage; it decays to 0. None picks one for the
        optimizer.
    optimizer
        Rule that turns gradients into steps.
    momentum
        Share of the running mean gradient that is kept from step to step.
    patience
        Number of passes to wait for an improvement.
    max_iter
        Maximum number of passes of the last stage.
    tol
        Smallest gain of the objective per row that counts as an improvement, relative if
        the objective is above 1.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    layers: tuple[int, ...] | None
    block: Literal["rbm", "autoencoder"]
    pretrain: int
    corruption: Literal["none", "flip", "mask"]
    noise: float
    batch: int | None
    rate: float | None
    optimizer: Literal["adam", "momentum"]
    momentum: float
    patience: int
    max_iter: int
    tol: float
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    weights_: tuple[NDArray[np.float64], ...]
    visible_biases_: tuple[NDArray[np.float64], ...]
    hidden_biases_: tuple[NDArray[np.float64], ...]
    means_: NDArray[np.float64]
    def __init__(
        self,
        n_components: int | None = None,
        *,
        layers: tuple[int, ...] | None = None,
        block: Literal["rbm", "autoencoder"] = "autoencoder",
        pretrain: int = 20,
        corruption: Literal["none", "flip", "mask"] = "mask",
        noise: float = 0.2,
        batch: int | None = None,
        rate: float | None = None,
        optimizer: Literal["adam", "momentum"] = "adam",
        momentum: float = 0.9,
        patience: int = 20,
        max_iter: int = 100,
        tol: float = 1e-05,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

class TreeMixture(WeightedModelEstimator):
    """Estimator of the mixture of trees.

    Parameters
    ----------
    n_components
        Number of trees. None doubles it from 1 while held-out rows become more likely.
    smoothing
        Number of pseudo-rows added to every component; their features are independent.
    starts
        Number of short runs from mixtures of independent features. Three times as many
        begin with the trees of random groups of rows, or fewer if there are many features.
    max_components
        Fit every number of components from 1 to this, and compare them in a table. If
        n_components is None, the fit has the number with the lowest BIC.
    max_iter
        Maximum number of passes, for each start and number of components.
    tol
        Stop once the objective per row has changed by less than this in the last three
        passes and is predicted to change by less in total, nats.
    binarize
        Values above it become 1, all others 0; `mean` takes the mean of each feature over
        the fitted rows, None accepts only 0 and 1.
    reverse
        Names or patterns of columns to reverse, such as ['N5', 'E*'], whose lowest level
        counts as the highest and so on; None reverses none.
    random_state
        Seed of all random draws, a RandomState, or None for NumPy's global state.
    n_jobs
        Number of threads; None is 1, -1 one per CPU. Results do not depend on it.

    """

    n_components: int | None
    smoothing: float
    starts: int
    max_components: int | None
    max_iter: int
    tol: float
    binarize: float | Literal["mean"] | None
    reverse: list[str] | None
    random_state: Any
    n_jobs: int | None
    weights_: NDArray[np.float64]
    parents_: NDArray[np.int64]
    tables_: NDArray[np.float64]
    margins_: NDArray[np.float64]
    n_levels_: NDArray[np.int64] | None
    def __init__(
        self,
        n_components: int | None = 10,
        *,
        smoothing: float = 1.0,
        starts: int = 3,
        max_components: int | None = None,
        max_iter: int = 200,
        tol: float = 0.0001,
        binarize: float | Literal["mean"] | None = None,
        reverse: list[str] | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None: ...

RBM = RestrictedBoltzmannMachine
