"""Names of array types, after what their entries are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Singles = NDArray[np.float32]
Counts = NDArray[np.int64]
Indices = NDArray[np.int64]
Bits = NDArray[np.uint8]
Levels = NDArray[np.uint8]
Words = NDArray[np.uint64]
