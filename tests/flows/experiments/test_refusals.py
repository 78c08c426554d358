"""Options of experiments that are refused in one line, without any file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cases = list[tuple[tuple[str, ...], str]]
UNKNOWN: Cases = [(("--sede", "1"), "--sede")]
ANY: Cases = [
    *UNKNOWN,
    (("--seed", "-1"), "--seed must be 0 to 2**63 - 1, but is -1"),
    (("--seed", "2.7"), "'2.7' is not a whole number"),
    (("--executor", "serial", "--workers", "2"), "--workers"),
    (("--executor", "threads", "--cluster", "tcp://a:1"), "--cluster needs --executor dask"),
    (("--output", "s3://bucket/x"), "s3://bucket/x is a URL, but only a local path works"),
]
IMAGES: Cases = [
    (("--dataset", "nowhere.zarr"), "nowhere.zarr"),
    (("--split", "2"), "--split needs --dataset"),
    (("--image-shape", "7x8"), "need at least --image-shape 8x7"),
]
CASES: dict[str, Cases] = {
    "blica-identifiability": UNKNOWN,
    "blica-samples": ANY,
    "blica-scaling": UNKNOWN,
    "clipped-pca": [
        *UNKNOWN,
        *IMAGES[::2],
        (("--rows", "0"), "rows must be a positive integer, not '0'"),
    ],
    "clipped-cpa": [((), "clipped-cpa")],
    "denoising": [
        *UNKNOWN,
        *IMAGES,
        (("--components", "34"), "--components is 34, but must lie between 1 and 33"),
        (("--components", "0"), "--components"),
    ],
    "noisy-or": [*UNKNOWN, (("--starts", "0"), "--starts is 0. Choose at least 1.")],
    "tipping": [*ANY, *IMAGES],
}


@pytest.mark.parametrize("name", CASES)
def test_options_are_refused_in_one_line(call: Callable[..., Any], name: str) -> None:
    for options, words in CASES[name]:
        done = call(name, "--quick", *options)
        assert words in done.check_refused()
        assert len(done.err.splitlines()) == 1
        assert not list(Path().iterdir())
