"""Whether data can say enough to fix a model's parameters."""

from __future__ import annotations


def count_surplus_equations(n_features: int, n_components: int, n_segments: int) -> int:
    """Statistics minus unknowns of binary ICA fitted to the correlations of its segments.

    With n features, K components and U segments this is U [n (n − 1) / 2 − K] − n K. A segment
    gives n (n − 1) / 2 correlations and brings K variances of its sources; the mixing matrix has
    n K entries, shared by all segments. The length of a column can be traded for its source's
    variances, so K of the unknowns are free, but they count here as they do in the paper: below −K
    the model cannot be identified, and with exact correlations it was wherever the count is not.

    The paper also counts the n margins and the K source means of a segment, which gives
    U [n (n + 1) / 2 − 2 K] − n K, the same at K = n. Here the thresholds of a segment are free, so
    that its margins say nothing about the mixing.

    Hyttinen, Barin-Pacela and Hyvärinen (2022), Binary independent component analysis: a
    non-stationarity-based approach, UAI, table 1.

    Parameters
    ----------
    n_features, n_components, n_segments
        Shape of the model.

    Returns
    -------
    int
        Statistics minus unknowns.
    """
    correlations = n_features * (n_features - 1) // 2
    return n_segments * (correlations - n_components) - n_features * n_components
