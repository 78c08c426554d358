"""Adaptive tests of new language models on a simulated benchmark of the size of HellaSwag.

python -m tests.benchmarks adaptive_test [PROBLEMS MODELS]

Fits 1,000 simulated models on 5,600 problems, then tests 100 other models adaptively, and with
random problems. Prints the mean absolute errors of the ability, against that from all answers and
against the truth, and of the accuracy on all problems. For comparison: P. Li et al. (arXiv
2511.04689, 2025) report an error of the ability of 0.157 with 41 problems of HellaSwag.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

import latentbits as lb
from tests.benchmarks._measure import Table

N_TESTED, LENGTHS, SEED = 100, (10, 20, 30, 41, 50), 7


def draw_answers(
    n_models: int, n_problems: int, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Draw answers, (n_models, n_problems), and abilities.

    Slopes are log-normal, difficulties and abilities standard normal.
    """
    slopes, difficulties = rng.lognormal(0.0, 0.5, n_problems), rng.standard_normal(n_problems)
    abilities = rng.standard_normal(n_models)
    logits = slopes * (abilities[:, None] - difficulties)
    X = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.uint8)
    return X, abilities


def run_tests(
    X: NDArray[np.uint8], choose: Callable[[int, dict[str, int]], str], names: tuple[str, ...]
) -> list[dict[str, int]]:
    """Return the answers of each model to the problems that it gets, in their order."""
    places = {name: place for place, name in enumerate(names)}
    asked = []
    for row, values in enumerate(X.tolist()):
        answers: dict[str, int] = {}
        for _ in range(max(LENGTHS)):
            name = choose(row, answers)
            answers[name] = values[places[name]]
        asked.append(answers)
    return asked


def measure(n_problems: int = 5600, n_models: int = 1000) -> dict[tuple[str, int], list[float]]:
    """Return the errors of ability and accuracy by the way of choosing and number of problems."""
    rng = np.random.default_rng(SEED)
    answers, abilities = draw_answers(n_models + N_TESTED, n_problems, rng)
    start = time.perf_counter()
    fitted = lb.fit(answers[:n_models], "latent-trait", components=1, prior_precision=1.0)
    print(f"seconds of the fit: {time.perf_counter() - start:.1f}", flush=True)
    names, X, truth = fitted.feature_names, answers[n_models:], abilities[n_models:]
    ability = lb.transform(fitted, X)["mean"][:, 0]
    scorer = lb.Scorer(fitted)
    start = time.process_time()
    asked = {"adaptive": run_tests(X, lambda _, own: scorer.next_items(own).items[0], names)}
    milliseconds = 1e3 * (time.process_time() - start) / (N_TESTED * max(LENGTHS))
    print(f"CPU milliseconds per problem: {milliseconds:.2f}", flush=True)
    orders = [rng.permutation(n_problems) for _ in X]
    asked["random"] = run_tests(X, lambda row, own: names[orders[row][len(own)]], names)
    found: dict[tuple[str, int], list[float]] = {}
    for kind, tests in asked.items():
        for length in LENGTHS:
            means, scores = [], []
            for test in tests:
                answers_so_far = dict([*test.items()][:length])
                means.append(scorer.next_items(answers_so_far).mean)
                scores.append(scorer.predict_score(answers_so_far).score / n_problems)
            found[kind, length] = [
                float(np.abs(means - ability).mean()),
                float(np.abs(means - truth).mean()),
                float(np.abs(scores - X.mean(axis=1)).mean()),
            ]
    return found


def main(*sizes: int) -> None:
    """Print a row for each way of choosing and number of problems."""
    table = Table(
        *("problems chosen:<16", "number:d", "ability:.3f", "true ability:.3f", "accuracy:.4f")
    )
    for (kind, length), errors in measure(*sizes).items():
        table.add(kind, length, *errors)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
