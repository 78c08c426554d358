"""The arcsine law: correlations before and after clipping normal variables at their means.

For jointly normal y_i, y_j of mean zero and correlation ρ, the signs s = ±1 have correlation
c = E[s_i s_j] = (2/π) arcsin ρ.

Lee and Sompolinsky (1999), Learning a continuous hidden variable model for binary data, NIPS 11.
"""

import numpy as np
import numpy.typing as npt

from pipeline.errors import FitError

_ROUNDING = 1e-9


def arcsine_correlation(clipped: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Correlation ρ = sin(π c / 2) of the normals whose signs have correlation c, elementwise.

    Raises
    ------
    FitError
        If a value is NaN or outside [−1, 1] by more than rounding.
    """
    return np.asarray(np.sin(0.5 * np.pi * _clip_rounding(clipped)))


def sign_correlation(correlation: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Correlation c = (2/π) arcsin ρ of the signs of normals with correlation ρ, elementwise.

    Raises
    ------
    FitError
        If a value is NaN or outside [−1, 1] by more than rounding.
    """
    return np.asarray(2.0 / np.pi * np.arcsin(_clip_rounding(correlation)))


def _clip_rounding(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The values as floats, those a rounding error outside [−1, 1] moved to its ends."""
    array = np.asarray(values, dtype=np.float64)
    inside = np.abs(array) <= 1.0 + _ROUNDING
    if not inside.all():
        index = np.unravel_index(int(np.argmin(inside)), array.shape)
        raise FitError(
            f"Expected correlations in [-1, 1], got {array[index]} at {tuple(map(int, index))}. "
            "Leave out features that are constant or never observed together."
        )
    return np.clip(array, -1.0, 1.0)
