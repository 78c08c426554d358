"""Made data follow the model that they name, and know it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from math import fsum, log2

import numpy as np
import pytest
from scipy.stats import chisquare, kstest, multivariate_normal, norm
from sklearn.datasets import load_digits

from storage import examples
from storage.dataset.batches import RowBatch
from storage.errors import DataError
from storage.examples import (
    EnumeratedCases,
    NonstationaryTruth,
    compute_examples_digest,
    draw_nonstationary_rows,
    draw_nonstationary_truth,
    entropy,
    enumerate_lines,
    enumerate_shifter,
    format_example_slug,
    merge_equal_rows,
    open_example,
)

FEATURES, COMPONENTS, SEGMENTS, ROWS = 5, 3, 6, 20_000
SMALL = "example:nonstationary:features=3,components=2,segments=4,rows_per_segment=5"


def together(batches: Iterator[RowBatch]) -> tuple[np.ndarray, np.ndarray]:
    """All rows of the batches, and their segments."""
    parts = list(batches)
    return (
        np.concatenate([part.X for part in parts]),
        np.concatenate([part.columns["segment"] for part in parts]),
    )


@pytest.fixture(scope="module")
def truth() -> NonstationaryTruth:
    return draw_nonstationary_truth(FEATURES, COMPONENTS, SEGMENTS, seed=3)


@pytest.fixture(scope="module")
def rows(truth: NonstationaryTruth) -> np.ndarray:
    """Rows, (segment, row, feature)."""
    X, segments = together(draw_nonstationary_rows(truth, ROWS, seed=3))
    assert segments.tolist() == [str(u) for u in range(SEGMENTS) for _ in range(ROWS)]
    return X.reshape(SEGMENTS, ROWS, FEATURES)


def latent_moments(truth: NonstationaryTruth, segment: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of y in one segment, from A alone."""
    A = truth.mixing
    return A @ truth.source_means[segment], A @ np.diag(truth.source_variances[segment]) @ A.T


def sure(expected: np.ndarray, found: np.ndarray) -> None:
    """Frequencies are as far from their probabilities as ROWS draws bring them, and no farther."""
    z = (found - expected) / np.sqrt(expected * (1 - expected) / ROWS)
    assert np.abs(z).max() < 4
    assert 0.4 < (z**2).mean() < 1.8


def test_margins_are_those_of_the_probit(truth: NonstationaryTruth, rows: np.ndarray) -> None:
    """Reference: E Φ(√(π/8) y) over y ~ N(m, v) is Φ(m / √(8/π + v))."""
    moments = [latent_moments(truth, u) for u in range(SEGMENTS)]
    expected = np.array([norm.cdf(m / np.sqrt(8 / np.pi + np.diag(v))) for m, v in moments])
    assert np.ptp(expected, axis=0).min() > 0.05  # segments differ: mixing them up would show
    sure(expected, rows.mean(axis=1))


def test_pairs_are_as_dependent_as_the_model_says(
    truth: NonstationaryTruth, rows: np.ndarray
) -> None:
    expected, found = [], []
    for u in range(SEGMENTS):
        mean, covariance = latent_moments(truth, u)
        covariance = covariance + 8 / np.pi * np.eye(FEATURES)
        for i, j in zip(*np.triu_indices(FEATURES, 1), strict=True):
            pair = [i, j]
            at_least = multivariate_normal(-mean[pair], covariance[np.ix_(pair, pair)])
            expected.append(at_least.cdf(np.zeros(2)))
            found.append((rows[u, :, i] & rows[u, :, j]).mean())
    sure(np.array(expected), np.array(found))


def test_sources_differ_from_segment_to_segment() -> None:
    truth = draw_nonstationary_truth(4, 2, 3000, seed=1)
    assert truth.source_means.shape == truth.source_variances.shape == (3000, 2)
    assert kstest(truth.source_means.ravel(), "uniform", (-0.5, 1)).pvalue > 0.01
    assert kstest(np.sqrt(truth.source_variances).ravel(), "uniform", (0.5, 2.5)).pvalue > 0.01


@pytest.mark.parametrize(
    ("features", "components"), [(1, 1), (2, 2), (10, 10), (15, 15), (19, 18), (19, 19)]
)
def test_few_features_are_mixed_well(features: int, components: int) -> None:
    mixings = [draw_nonstationary_truth(features, components, 1, s).mixing for s in range(20)]
    spectra = [np.linalg.svd(mixing, compute_uv=False) for mixing in mixings]
    assert all(spectrum[0] / spectrum[-1] < 20 for spectrum in spectra)
    assert np.shape(mixings) == (20, features, components)
    assert np.abs(mixings).max() <= 3


def test_entries_of_the_mixing_are_uniform() -> None:
    """Nearly every tall matrix is taken, so that taking the good ones does not show."""
    entries = draw_nonstationary_truth(400, 3, 1, seed=0).mixing.ravel()
    assert kstest(entries, "uniform", (-3, 6)).pvalue > 0.01


def test_many_features_are_mixed_no_worse_than_three_in_four() -> None:
    """Twenty draws without a limit would all be below it three times in a thousand."""
    rng = np.random.default_rng(99)
    limit = np.percentile(np.linalg.cond(rng.uniform(-3, 3, (4000, 20, 20))), 75)
    found = [np.linalg.cond(draw_nonstationary_truth(20, 20, 1, seed).mixing) for seed in range(20)]
    assert max(found) < 1.2 * limit
    assert np.median(found) > 20  # the limit of fewer features is not theirs


def test_one_component_of_many_features_has_no_better_draw_to_wait_for() -> None:
    assert draw_nonstationary_truth(25, 1, 2, seed=0).mixing.shape == (25, 1)


def test_the_seed_decides_everything() -> None:
    first, again, other = (open_example(f"{SMALL},seed={seed}") for seed in (4, 4, 5))
    assert first.attributes == again.attributes
    np.testing.assert_array_equal(
        together(first.iter_batches())[0], together(again.iter_batches())[0]
    )
    np.testing.assert_array_equal(
        together(first.iter_batches())[0], together(first.iter_batches())[0]
    )
    for name in ("mixing", "source_means", "source_variances"):
        assert first.attributes["truth"][name] != other.attributes["truth"][name]
    assert (together(first.iter_batches())[0] != together(other.iter_batches())[0]).any()


def test_more_segments_keep_the_mixing() -> None:
    few, many = (draw_nonstationary_truth(4, 4, n, seed=2) for n in (3, 30))
    np.testing.assert_array_equal(few.mixing, many.mixing)


def test_many_rows_come_in_batches_that_cross_segments() -> None:
    """One segment is all ones: a row given to the wrong segment shows in its bits."""
    means = np.array([[-1000.0], [1000.0], [-1000.0]])
    truth = NonstationaryTruth(np.ones((4096, 1)), means, np.ones((3, 1)))
    batches = list(draw_nonstationary_rows(truth, 700, seed=0))
    assert len(batches) > 1
    assert max(batch.X.size for batch in batches) <= 1 << 22
    X, segments = together(iter(batches))
    np.testing.assert_array_equal(X.all(axis=1), segments == "1")
    np.testing.assert_array_equal(X.any(axis=1), segments == "1")
    np.testing.assert_array_equal(segments, np.repeat(["0", "1", "2"], 700))


def test_batches_do_not_repeat_each_other() -> None:
    truth = NonstationaryTruth(np.zeros((4096, 1)), np.zeros((1, 1)), np.ones((1, 1)))
    first, second = draw_nonstationary_rows(truth, 2048, seed=0)
    assert 0.49 < (first.X == second.X).mean() < 0.51


def test_an_example_says_what_it_is() -> None:
    example = open_example(SMALL)
    assert example.feature_names == ("f0", "f1", "f2")
    assert (example.n_rows, example.default_segment) == (20, "segment")
    assert example.column_names == ("segment",)
    truth = NonstationaryTruth(**example.attributes["truth"])
    for stated, drawn in zip(truth, draw_nonstationary_truth(3, 2, 4, seed=0), strict=True):
        assert isinstance(stated, list)
        np.testing.assert_array_equal(stated, drawn)


def test_defaults_are_those_of_the_paper() -> None:
    example = open_example("example:nonstationary")
    assert (len(example.feature_names), example.n_rows) == (10, 40_000)
    assert np.shape(example.attributes["truth"]["mixing"]) == (10, 10)
    assert np.shape(example.attributes["truth"]["source_means"]) == (40, 10)


def test_other_examples_know_nothing_beside_their_rows() -> None:
    assert open_example("example:ring:features=4,rows=10").attributes == {}


def test_a_slug_holds_all_parameters() -> None:
    slug = "nonstationary-features3-components2-segments4-rows_per_segment5-seed0"
    assert format_example_slug(SMALL) == slug
    assert format_example_slug("example:digits") == "digits"


@pytest.mark.parametrize("has_file", [True, False])
def test_digits_are_dark_pixels_that_are_neither_seldom_set_nor_seldom_clear(
    monkeypatch: pytest.MonkeyPatch, has_file: bool
) -> None:
    """All pixels kept have both values in a tenth of the images; those left out have not.

    The images are also found where scikit-learn has no file of them.
    """
    if not has_file:
        monkeypatch.setattr(examples, "find_spec", lambda name: None)
    example = open_example("example:digits")
    (batch,) = example.iter_batches()
    assert [*batch.columns["digit"]] == [str(digit) for digit in load_digits().target]
    dark = load_digits().images >= 10
    for row, column in np.ndindex(8, 8):
        name, pixel = f"r{row}c{column}", dark[:, row, column]
        is_kept = 0.1 <= pixel.mean() <= 0.9
        assert (name in example.feature_names) == is_kept
        if is_kept:
            bits = batch.X[:, example.feature_names.index(name)]
            np.testing.assert_array_equal(bits, pixel)


REFUSED = {
    "components=11": "components is 11, but features is only 10. Use components=10 or fewer",
    "features=9": "components is 10, but features is only 9. Use components=9 or fewer",
    "rows_per_segment=0": "rows_per_segment must be a positive integer, not '0'",
    "segments=-1": "segments must be a positive integer, not '-1'",
    "seed=1,seed=2": "seed is given twice. Choose one value.",
    "segment=3": "parameter 'segment' is unknown. Choose one of features, components, segments, "
    "rows_per_segment, seed. Did you mean 'segments'?",
}


@pytest.mark.parametrize("given", REFUSED)
def test_what_cannot_be_made_is_refused(given: str) -> None:
    with pytest.raises(DataError) as caught:
        open_example(f"example:nonstationary:{given}")
    assert REFUSED[given] in str(caught.value)
    assert str(caught.value).startswith("example:nonstationary")


PICTURES = {
    "verticals": ".#.#. .#.#. .#.#. .#.#. .#.#.",
    "plus": "..#.. ..#.. ##### ..#.. ..#..",
    "equals": "..... ##### ..... ##### .....",
    "square": "##### #...# #...# #...# #####",
}
Distribution = dict[tuple[int, ...], Fraction]


def picture(text: str) -> tuple[int, ...]:
    """Pixels, row by row, of a picture in text."""
    return tuple(int(mark == "#") for mark in text if mark != " ")


def rows_of_lines() -> Distribution:
    """Exact probabilities of all pictures, pixel by pixel and line by line."""
    found: Distribution = Counter()
    for text in PICTURES.values():
        found[picture(text)] += Fraction(1, 8)
    for on in product((0, 1), repeat=10):
        pixels = tuple(max(on[i], on[5 + j]) for i in range(5) for j in range(5))
        found[pixels] += Fraction(3 ** sum(on) * 7 ** (10 - sum(on)), 2 * 10**10)
    return found


def rows_of_shifter() -> Distribution:
    """Exact probabilities of all rows, by slices."""
    found: Distribution = Counter()
    for row in product((0, 1), repeat=8):
        for shifted in (row[1:] + row[:1], row[-1:] + row[:-1]):
            found[row * 2 + shifted * 2] += Fraction(1, 512)
    return found


@pytest.mark.parametrize(
    ("cases", "expected"),
    [(enumerate_lines(), rows_of_lines()), (enumerate_shifter(), rows_of_shifter())],
)
def test_rows_and_entropy_are_those_of_a_count(
    cases: EnumeratedCases, expected: Distribution
) -> None:
    assert sum(expected.values()) == 1
    rows, probabilities = merge_equal_rows(cases)
    found = dict(zip(map(tuple, rows.tolist()), probabilities, strict=True))
    assert found == pytest.approx({row: float(p) for row, p in expected.items()}, rel=1e-12)
    assert entropy(cases) == pytest.approx(-fsum(p * log2(p) for p in expected.values()))


def test_entropies_are_those_that_are_stated() -> None:
    """Four rows of the shifter have probability 1/256, and 504 have 1/512."""
    assert entropy(enumerate_shifter()) == 504 / 512 * 9 + 4 / 256 * 8 == 9 - 1 / 64
    assert entropy(enumerate_lines()) == pytest.approx(6.3340, abs=5e-5)


def test_patterns_are_those_that_are_drawn() -> None:
    cases = enumerate_lines()
    for name, text in PICTURES.items():
        (row,) = cases.X[cases.labels == name]
        assert tuple(row) == picture(text)
    assert Counter(cases.labels.tolist()) == {**dict.fromkeys(PICTURES, 1), "none": 1024}


def test_shifts_wrap_around() -> None:
    cases = enumerate_shifter()
    for at, (left, right) in {0: (7, 1), 3: (2, 4), 7: (6, 0)}.items():
        row = np.eye(8, dtype=np.uint8)[at]
        is_from_row = (cases.X[:, :8] == row).all(axis=1)
        for label, place in (("left", left), ("right", right)):
            (found,) = cases.X[is_from_row & (cases.labels == label)]
            np.testing.assert_array_equal(
                np.flatnonzero(found), [at, 8 + at, 16 + place, 24 + place]
            )


@pytest.mark.parametrize(
    ("name", "cases"), [("lines", enumerate_lines()), ("shifter", enumerate_shifter())]
)
def test_frequencies_are_those_of_the_cases(name: str, cases: EnumeratedCases) -> None:
    """Rows are told apart by pixels and label; those expected less than 5 times count together."""
    (batch,) = open_example(f"example:{name}").iter_batches()
    keys = zip(map(bytes, batch.X), batch.columns[cases.column].tolist(), strict=True)
    drawn, expected = Counter(keys), Counter[tuple[bytes, str]]()
    for row, label, p in zip(cases.X, cases.labels.tolist(), cases.probabilities, strict=True):
        expected[bytes(row), label] += 10_000 * p
    assert drawn.keys() <= expected.keys()
    often = [key for key, times in expected.items() if times >= 5]
    found, wanted = ([counts[key] for key in often] for counts in (drawn, expected))
    if len(often) < len(expected):
        found, wanted = [*found, 10_000 - sum(found)], [*wanted, 10_000 - sum(wanted)]
    assert sum(found) == 10_000
    assert chisquare(found, wanted).pvalue > 0.01


def test_features_and_columns_have_names() -> None:
    made = open_example("example:lines:rows=3")
    assert (made.feature_names[7], len(made.feature_names)) == ("r1c2", 25)
    assert made.column_names == ("pattern",)
    names = open_example("example:shifter:rows=3").feature_names
    assert names[::8] == ("row0", "row_again0", "shifted0", "shifted_again0")
    assert (names[7], len(names)) == ("row7", 32)


def test_seeds_draw_other_rows() -> None:
    first, again, other = (
        next(open_example(f"example:lines:rows=100,seed={seed}").iter_batches())
        for seed in (4, 4, 5)
    )
    np.testing.assert_array_equal(first.X, again.X)
    assert (first.X != other.X).any()


def test_other_cases_make_other_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    before = compute_examples_digest()
    monkeypatch.setattr(examples, "__file__", __file__)
    assert compute_examples_digest() != before
