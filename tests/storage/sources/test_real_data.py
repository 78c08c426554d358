"""The packed files of real data beside the repository, where they are there."""

from pathlib import Path

import numpy as np
import pytest

from storage.sources import open_source

FILES = sorted((Path(__file__).parents[4] / "shared" / "data").glob("*.npz"))


@pytest.mark.skipif(not FILES, reason="no real data beside the repository")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_reads_what_numpy_unpacks(path):
    source = open_source(str(path))
    batches = list(source.iter_batches())
    with np.load(path) as file:
        n_rows, n_features = file["shape"]
        X = np.unpackbits(file["X"], axis=1)[:, :n_features]
        mask = file["M"] if "M" in file else np.full_like(file["X"], 255)
        observed = np.unpackbits(mask, axis=1)[:, :n_features]
        plain = {name: file[name] for name in ("y", "year") if name in file}
        segments = file["segnames"][file["seg"]].astype(str) if "segnames" in file else None
    assert len(source.feature_names) == n_features
    assert source.n_rows == n_rows
    np.testing.assert_array_equal(np.concatenate([batch.X for batch in batches]), X & observed)
    found = [np.ones_like(b.X) if b.observed is None else b.observed for b in batches]
    np.testing.assert_array_equal(np.concatenate(found), observed)
    for name, values in plain.items():
        np.testing.assert_array_equal(np.concatenate([b.columns[name] for b in batches]), values)
    if segments is not None:
        column = [batch.columns[source.default_segment] for batch in batches]
        np.testing.assert_array_equal(np.concatenate(column), segments)
