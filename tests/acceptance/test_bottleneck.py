"""Codes of the bottleneck tell digits apart better than as many principal components.

USPS, 10 components: 5 nearest neighbours among codes of two thirds of the rows name the digits of
the last third. `-s` shows the table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.neighbors import KNeighborsClassifier

from pipeline.data.blocks import RowSource, pack_block
from pipeline.executors.base import SerialExecutor
from pipeline.fitting.loop import fit_model
from pipeline.models.bottleneck import Bottleneck
from pipeline.random import RowRandom
from tests.support.data import find_shared_data
from tests.support.strategies import DenseData, StrategyReader, make_memory_rows

N_COMPONENTS, N_NEIGHBOURS = 10, 5
Bits = NDArray[np.uint8]


class Digits(NamedTuple):
    """Images and their digits, to fit and to judge by."""

    X: Bits
    y: NDArray[np.int64]
    X_new: Bits
    y_new: NDArray[np.int64]

    @property
    def rows(self) -> RowSource:
        """What is fitted, with its labels."""
        rows = make_memory_rows(DenseData(self.X))
        chunk = replace(rows.read(0), columns={"digit": self.y})
        return replace(rows, read=StrategyReader((chunk,)))


def digits(seed: int) -> Digits:
    with np.load(find_shared_data("usps16_train.npz")) as saved:
        X = np.unpackbits(saved["X"], axis=1)[:, : saved["shape"][1]]
        y = saved["y"].astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(X))
    old, new = np.sort(order[len(X) // 3 :]), np.sort(order[: len(X) // 3])
    return Digits(X[old], y[old], X[new], y[new])


def by_neighbours(data: Digits, codes: NDArray[np.float64], new: NDArray[np.float64]) -> float:
    return float(KNeighborsClassifier(N_NEIGHBOURS).fit(codes, data.y).score(new, data.y_new))


def accuracies(seed: int) -> tuple[float, float, float]:
    """By neighbours of codes, by the network itself, by neighbours of principal components."""
    data, model = digits(seed), Bottleneck(n_components=N_COMPONENTS, column="digit")
    params = fit_model(model, data.rows, SerialExecutor(), seed).params
    blocks = [pack_block(X) for X in (data.X, data.X_new)]
    codes = [model.transform(params, block, RowRandom(0))["mean"] for block in blocks]
    predicted = model.predict(params, blocks[1], RowRandom(0)).argmax(axis=1)
    linear = PCA(N_COMPONENTS, random_state=0).fit(data.X)
    components = [linear.transform(X) for X in (data.X, data.X_new)]
    return (
        by_neighbours(data, *codes),
        float((params.categories[predicted] == data.y_new).mean()),
        by_neighbours(data, *components),
    )


def show(rows: list[tuple[float, float, float]]) -> None:
    print("\nseed  5 neighbours of codes  network  5 neighbours of principal components")
    for seed, (codes, network, linear) in enumerate(rows):
        print(f"{seed:4}  {codes:21.4f}  {network:7.4f}  {linear:36.4f}")


@pytest.mark.matrix
def test_codes_tell_digits_apart_better_than_principal_components() -> None:
    codes, network, linear = accuracies(0)
    assert codes >= linear + 0.01
    assert network > 0.92


@pytest.mark.slow
def test_they_do_in_every_split() -> None:
    found = [accuracies(seed) for seed in range(5)]
    show(found)
    assert all(codes >= linear for codes, _, linear in found)
    means = np.mean(found, axis=0)
    assert means[0] >= means[2] + 0.01
