"""Kernels are compiled once before tests, by processes that do not run tests.

A process that compiles keeps hundreds of megabytes for good, and processes that run tests side by
side would compile the same kernels.
"""

from __future__ import annotations

import os
import zlib
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stdout
from multiprocessing import get_context
from pathlib import Path

import numba

import pipeline.numerics  # noqa: F401  (sets the folder of compiled kernels)
from pipeline.models.registry import list_model_names

ROOT = Path(__file__).parents[2]


def compile_kernels(n_processes: int) -> None:
    """Compile the kernels of all models, unless that was done for this checkout."""
    # Numba stores kernels by the path of their source file.
    mark = Path(numba.config.CACHE_DIR) / f"compiled-{zlib.crc32(str(ROOT).encode()):08x}"
    if mark.exists():
        return
    # A third of the time goes to one model. It comes first, and the others in several shares, so
    # that processes end together.
    longest = "latent-trait"
    others = [name for name in list_model_names() if name != longest]
    n_shares = 2 * n_processes - 1
    shares = [(longest,), *(tuple(others[k::n_shares]) for k in range(n_shares))]
    # Processes are started afresh: this one may not be copied while it has threads.
    with ProcessPoolExecutor(n_processes, get_context("spawn")) as processes:
        futures = [processes.submit(compile_models, names) for names in shares if names]
    if not any(future.exception() for future in futures):  # else tests show what is wrong
        mark.touch()


def compile_models(names: tuple[str, ...]) -> None:
    """Compile the kernels of some models, in silence."""
    from flows.warm import main

    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        main(models=names)
