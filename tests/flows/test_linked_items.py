"""Tables of items on the scale of another fit: `flows.export --what linked-items`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy

import latentbits as lb
from tests.support.data import write_arrays


def write_rows(path: str, mean: float, deviation: float, names: str, seed: int) -> None:
    """Write answers of a group whose trait has this mean and standard deviation."""
    rng = np.random.default_rng(seed)
    bank = dict(zip("abcdefghij", np.linspace(0.7, 1.6, 10), strict=True))
    slopes = np.array([bank[name] for name in names])
    offsets = np.array([np.cos(ord(name)) for name in names])
    x = mean + deviation * rng.standard_normal(4000)
    P = scipy.special.expit(np.outer(x, slopes) + offsets)
    write_arrays(Path(path), (rng.random(P.shape) < P).astype(np.uint8), names=[*names])


def test_links_find_the_difference_between_groups(cli, tmp_path) -> None:
    write_rows("old.zarr", 0.0, 1.0, "abcdefg", 1)
    write_rows("new.zarr", 0.8, 1.3, "defghij", 2)
    fit = ("--model", "latent-trait", "--executor", "serial", "--no-report")
    for name in ("old", "new"):
        line = ("--dataset", f"{name}.zarr", "--components", 1, "--output", name)
        assert cli("fit", *fit, *line).code == 0
    export = ("export", "--artifact", "new", "--what", "linked-items", "--link-to", "old")
    done = cli(*export, "--output", "linked.csv", "--json")
    link = done.json["link"]
    assert (link["A"], link["B"]) == pytest.approx((1.3, 0.8), abs=0.12)
    assert link["common"] == [*"defg"]
    line = cli(*export, "--output", "linked.parquet").out
    assert f"A = {link['A']:.6g}, B = {link['B']:.6g}; curves of 4 common items" in line

    table = pd.read_csv("linked.csv")
    by_name = lb.link_items(lb.load("new"), lb.load("old"))
    pd.testing.assert_frame_equal(pd.DataFrame(by_name), table)
    assert (link["A"], link["B"]) == (by_name.A, by_name.B)
    assert "common items" in repr(by_name)
    line = ("--dataset", "new.zarr", "--items", "linked.csv", "--output", "fixed", "--json")
    found = cli("fit", *fit, *line).json["artifact"]
    fitted = lb.load(found)
    mean, variance = fitted.params.trait_mean[0, 0], fitted.params.trait_covariance[0, 0, 0]
    assert mean == pytest.approx(link["B"], abs=1e-3)
    assert np.sqrt(variance) == pytest.approx(link["A"], abs=1e-3)
    fitted = lb.fit("new.zarr", "latent-trait", items=by_name)
    assert fitted.params.trait_mean[0, 0] == pytest.approx(link["B"], abs=1e-3)


def test_a_link_needs_two_fits(cli, tmp_path) -> None:
    line = ("export", "--artifact", "x", "--output", "x.csv", "--what")
    needed = "--what linked-items and --link-to need each other"
    assert needed in cli(*line, "linked-items").check_refused()
    assert needed in cli(*line, "items", "--link-to", "x").check_refused()
