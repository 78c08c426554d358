"""Data of the tutorials: real data from the folder `LATENTBITS_DATA`, or a substitute.

The folder holds `.npz` files with packed bits: `X` and optionally `M` (1 = observed), `shape`,
`cols`, `seg` and `segnames`, and `y`. By default it is `../shared/data` next to the checkout.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FOLDER = Path(
    os.environ.get("LATENTBITS_DATA", Path(__file__).parents[2].parent / "shared" / "data")
)


def has_data(name: str) -> bool:
    """Return whether a file is in the folder."""
    return (FOLDER / f"{name}.npz").exists()


def load_data(name: str) -> dict[str, Any]:
    """Read a file: `X` with NaN for missing values, `names`, and what else it has."""
    with np.load(FOLDER / f"{name}.npz") as file:
        n_features = int(file["shape"][1])
        X: NDArray[np.float64] = unpack(file["X"], n_features).astype(float)
        if "M" in file:
            X[unpack(file["M"], n_features) == 0] = np.nan
        names = [f"f{i}" for i in range(n_features)]
        if "cols" in file:
            names = [str(name) for name in file["cols"]]
        if len(names) == 1:
            names = names[0].rstrip(",").split(",")
        data: dict[str, Any] = {"X": X, "names": names}
        if "seg" in file:
            data["segment"] = [str(file["segnames"][k]) for k in file["seg"]]
        if "y" in file:
            data["y"] = file["y"]
        return data


def unpack(packed: NDArray[np.uint8], n_features: int) -> NDArray[np.uint8]:
    """Unpack bits along the features."""
    return np.unpackbits(packed, axis=1)[:, :n_features]
