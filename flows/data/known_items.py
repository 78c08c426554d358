"""Read tables of items: the slopes and offsets of a test that was calibrated elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flows.cli.summary import join_names
from storage.errors import DataError

_MAX_NAMES = 5
_MAX_VALUE = 1e6
_REMEDY = (
    "A table of items has the columns feature, slope (or weights_1, weights_2, …) and offset (or "
    "offsets), as `export --what items` writes it."
)


@dataclass(frozen=True)
class KnownItems:
    """Items by name: P(item | x) = σ(w·x + b), with x ~ N(0, I).

    Attributes
    ----------
    path, digest
        The file, and the SHA-256 of its content.
    features
        Names of the items.
    weights, offsets
        w, (n_items, q), and b, (n_items,).
    """

    path: Path
    digest: str
    features: tuple[str, ...]
    weights: NDArray[np.float64]
    offsets: NDArray[np.float64]

    def select(self, features: Sequence[str], dataset: str) -> KnownItems:
        """Return the items of these features, in their order; both must be the same set."""
        places = {name: k for k, name in enumerate(self.features)}
        unknown = [name for name in features if name not in places]
        unused = [name for name in self.features if name not in set(features)]
        for names, problem in ((unknown, f"lacks items of {dataset}"), (unused, "has other items")):
            if names:
                raise DataError(
                    f"{{items}}: {self.path} {problem}: {join_names(names, _MAX_NAMES)}. "
                    "Give exactly the features of the dataset."
                )
        order = [places[name] for name in features]
        return KnownItems(
            self.path, self.digest, tuple(features), self.weights[order], self.offsets[order]
        )


def read_known_items(path: Path) -> KnownItems:
    """Read a .csv or .parquet file with one line per item.

    Raises
    ------
    DataError
        If the file cannot be read, lacks columns, or has items twice or without finite parameters.
    """
    table = _read_table(path)
    slopes = ["slope"] if "slope" in table.column_names else _list_weight_columns(table)
    offset = "offset" if "offset" in table.column_names else "offsets"
    for name in ("feature", *(slopes or ["slope"]), offset):
        if name not in table.column_names:
            raise DataError(f"{{items}}: {path} has no column {name!r}. {_REMEDY}")
    features = tuple(str(name) for name in table["feature"].to_pylist())
    if twice := sorted({name for name in features if features.count(name) > 1}):
        raise DataError(f"{{items}}: {path} has items twice: {join_names(twice, _MAX_NAMES)}.")
    columns = [_read_numbers(path, table, name, features) for name in (*slopes, offset)]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return KnownItems(path, digest, features, np.column_stack(columns[:-1]), columns[-1])


def _read_table(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.csv as pa_csv
    import pyarrow.parquet as pa_parquet

    if path.suffix not in (".csv", ".parquet"):
        raise DataError(f"{{items}}: {path} is neither .csv nor .parquet.")
    try:
        if path.suffix == ".parquet":
            return pa_parquet.read_table(path)
        as_text = pa_csv.ConvertOptions(column_types={"feature": pa.string()})
        return pa_csv.read_csv(path, convert_options=as_text)
    except (OSError, pa.ArrowInvalid) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{{items}}: {path} cannot be read ({reason}).") from error


def _list_weight_columns(table: Any) -> list[str]:
    """Return weights_1, weights_2, … as far as they go."""
    n = 0
    while f"weights_{n + 1}" in table.column_names:
        n += 1
    return [f"weights_{k + 1}" for k in range(n)]


def _read_numbers(
    path: Path, table: Any, name: str, features: Sequence[str]
) -> NDArray[np.float64]:
    try:
        values = np.array(table[name].to_pylist(), np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{{items}}: {path}: the column {name} has texts. {_REMEDY}") from None
    is_usable = np.abs(values) <= _MAX_VALUE
    if not is_usable.all():
        k = int(np.argmin(is_usable))
        raise DataError(
            f"{{items}}: {path}: {name} of {features[k]} is {values[k]:g}. Give a number up to "
            f"{_MAX_VALUE:g}, or leave the item out of table and dataset."
        )
    return values
