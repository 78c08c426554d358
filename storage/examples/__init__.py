"""Example datasets: `example:digits`, and generated data of any size.

`example:ring:rows=100000,features=256,seed=0` sets parameters; all of them have defaults.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.dataset.batches import RowBatch, pack_batch
from storage.errors import DataError
from storage.named_values import collect_values
from storage.sources.base import make_feature_names

_SIDE, _LINE_PROBABILITY = 5, 0.3
# Lines 0 to 4 are the rows from the top, 5 to 9 the columns from the left.
_PATTERNS = {"verticals": [6, 8], "plus": [2, 7], "equals": [1, 3], "square": [0, 4, 5, 9]}
_WIDTH = 8
_SHIFTS = {"left": -1, "right": 1}


class EnumeratedCases(NamedTuple):
    """All cases that a row can come from; several cases may give the same row.

    Attributes
    ----------
    feature_names
        Names of the features.
    column
        Name of the per-row column of labels.
    X
        The row of each case, values in {0, 1}, (n_cases, n_features).
    labels
        The label of each case, text, (n_cases,).
    probabilities
        The probability of each case, (n_cases,); they sum to one.
    """

    feature_names: tuple[str, ...]
    column: str
    X: NDArray[np.uint8]
    labels: NDArray[np.str_]
    probabilities: NDArray[np.float64]


def merge_equal_rows(cases: EnumeratedCases) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Return the distinct rows, (n_rows, n_features), and their probabilities, (n_rows,)."""
    rows, indices = np.unique(cases.X, axis=0, return_inverse=True)
    probabilities = np.zeros(len(rows))
    np.add.at(probabilities, indices, cases.probabilities)
    return rows, probabilities


def entropy(cases: EnumeratedCases) -> float:
    """Compute the entropy per row in bits, the lowest mean code length of any model."""
    _, probabilities = merge_equal_rows(cases)
    return -float(probabilities @ np.log2(probabilities))


def enumerate_lines() -> EnumeratedCases:
    """Enumerate the higher-order lines problem: 5 x 5 pixels, row by row; 6.3340 bits.

    M. S. Lewicki, T. J. Sejnowski, "Bayesian unsupervised learning of higher order structure",
    NIPS 1996. With probability ½, one of four patterns of lines is drawn, with equal probabilities:

        verticals    plus         equals       square
        . # . # .    . . # . .    . . . . .    # # # # #
        . # . # .    . . # . .    # # # # #    # . . . #
        . # . # .    # # # # #    . . . . .    # . . . #
        . # . # .    . . # . .    # # # # #    # . . . #
        . # . # .    . . # . .    . . . . .    # # # # #

    No pattern shares a line with another. Otherwise the label is `none`, and each of the five rows
    and five columns is drawn independently with probability 0.3. A pixel is on if a line through it
    is. Feature r3c4 is the pixel in row 3, column 4, counted from 0.
    """
    n_lines = 2 * _SIDE
    patterns = np.zeros((len(_PATTERNS), n_lines), np.uint8)
    for pattern, on in zip(patterns, _PATTERNS.values(), strict=True):
        pattern[on] = 1
    free = _enumerate_rows(n_lines)
    chances = np.where(free, _LINE_PROBABILITY, 1 - _LINE_PROBABILITY).prod(axis=1)
    return EnumeratedCases(
        tuple(f"r{row}c{column}" for row in range(_SIDE) for column in range(_SIDE)),
        "pattern",
        _render_lines(np.concatenate([patterns, free])),
        np.array([*_PATTERNS, *["none"] * len(free)]),
        np.concatenate([np.full(len(patterns), 0.5 / len(patterns)), 0.5 * chances]),
    )


def _render_lines(on: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Render lines, (n, 10), as pixels, (n, 25)."""
    return (on[:, :_SIDE, None] | on[:, None, _SIDE:]).reshape(len(on), -1)


def enumerate_shifter() -> EnumeratedCases:
    """Enumerate the shifter problem: 4 rows of 8 features; 9 − 1/64 bits.

    M. S. Lewicki, T. J. Sejnowski (1996), as above. A row of 8 fair bits appears twice, then the
    same row shifted by one place with wrap-around appears twice. The shift is to the `left` (bit i
    becomes bit i − 1) or to the `right`, with equal probabilities. Row and direction have 9 bits,
    but 4 of the 256 rows (period 1 or 2) look the same when shifted to the left or to the right.
    """
    row = _enumerate_rows(_WIDTH)
    both_ways = [np.roll(row, shift, axis=1) for shift in _SHIFTS.values()]
    X = np.concatenate([np.hstack([row, row, shifted, shifted]) for shifted in both_ways])
    parts = ("row", "row_again", "shifted", "shifted_again")
    names = tuple(f"{part}{place}" for part in parts for place in range(_WIDTH))
    return EnumeratedCases(
        names, "shift", X, np.repeat([*_SHIFTS], len(row)), np.full(len(X), 1 / len(X))
    )


def _enumerate_rows(n_features: int) -> NDArray[np.uint8]:
    """Return all rows of this many bits, (2 ** n_features, n_features)."""
    return (np.arange(1 << n_features)[:, None] >> np.arange(n_features) & 1).astype(np.uint8)


EXAMPLE_PREFIX = "example:"
_ANSWERS = ("never", "rarely", "sometimes", "often", "always")
_BATCH_CELLS = 1 << 22
_FEW_FEATURES, _MAX_CONDITION_NUMBER = 20, 20.0
_INK_THRESHOLD = 10
_MAX_IMBALANCE = 0.4  # largest distance of a pixel's share of ones from a half


@dataclass(frozen=True)
class Example:
    """A generated dataset, which is read like a source.

    Attributes
    ----------
    feature_names, n_rows, column_names, name_columns
        As for a `Source`.
    make
        Generates the batches.
    default_segment, default_split
        The per-row columns of segments and splits, if any.
    path
        The name it was opened by.
    attributes
        Facts about the data, as JSON values.
    feature_levels
        Levels of the features with other levels than 0 and 1.
    nominal_features
        Names of the features whose levels are categories without an order.
    """

    feature_names: tuple[str, ...]
    n_rows: int
    make: Callable[[], Iterator[RowBatch]]
    column_names: tuple[str, ...] = ()
    default_segment: str | None = None
    default_split: str | None = None
    path: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name_columns: tuple[str, ...] = ()
    feature_levels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nominal_features: frozenset[str] = frozenset()

    def iter_batches(self) -> Iterator[RowBatch]:
        """Generate the rows in order."""
        return self.make()


class NonstationaryTruth(NamedTuple):
    """The parameters that non-stationary data are drawn from.

    Attributes
    ----------
    mixing
        A, (n_features, n_components).
    source_means, source_variances
        Means and variances of the sources, (n_segments, n_components) each.
    """

    mixing: NDArray[np.float64]
    source_means: NDArray[np.float64]
    source_variances: NDArray[np.float64]


def open_example(name: str) -> Example:
    """Open an example by `example:NAME` or `example:NAME:PARAMETER=VALUE,...`.

    Raises `DataError` if the name or a parameter is unknown, or a value is invalid.
    """
    kind, values = _parse_example_name(name)
    make, _ = _EXAMPLES[kind]
    return replace(make(**values), path=name)


def format_example_slug(name: str) -> str:
    """Return the name of an example with all its parameters, usable as a file name."""
    kind, values = _parse_example_name(name)
    return "-".join([kind, *(f"{key}{value}" for key, value in values.items())])


def compute_examples_digest() -> str:
    """Return a digest of this module, which determines the generated datasets."""
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]


def _parse_example_name(name: str) -> tuple[str, dict[str, int]]:
    """Return the kind of example and all its parameters."""
    kind, _, settings = name.removeprefix(EXAMPLE_PREFIX).partition(":")
    if kind not in _EXAMPLES:
        raise DataError(_format_unknown_name("example", kind, _EXAMPLES))
    _, defaults = _EXAMPLES[kind]
    pairs = (setting.partition("=")[::2] for setting in settings.split(",") if setting)
    values = collect_values(f"example:{kind}", pairs)
    for key, value in values.items():
        if key not in defaults:
            raise DataError(_format_unknown_name(f"example:{kind} parameter", key, defaults))
        if not value.isdecimal() or (int(value) < 1 and key != "seed"):
            raise DataError(f"example:{kind}: {key} must be a positive integer, not {value!r}.")
    return kind, {key: int(values.get(key, default)) for key, default in defaults.items()}


def _format_unknown_name(noun: str, name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    have = ", ".join(known) or "none"
    return f"{noun} {name!r} is unknown. Choose one of {have}.{hint}"


def _make_digits() -> Example:
    """Handwritten digits, 8 x 8 pixels of grey 0 to 16: bit = grey >= 10; segments = digit.

    Pixels that are on in less than a tenth or more than nine tenths of the images are left out,
    because some of their pairs have empty cells, which leave correlations undetermined. Feature
    r3c5 is the pixel in row 3, column 5.
    """
    images, labels = _read_digits()
    X = (images >= _INK_THRESHOLD).astype(np.uint8)
    is_informative = np.abs(X.mean(axis=0) - 0.5) <= _MAX_IMBALANCE
    names = np.array([f"r{row}c{column}" for row in range(8) for column in range(8)])[
        is_informative
    ]
    digits = np.array([str(digit) for digit in labels])
    batch = pack_batch(np.ascontiguousarray(X[:, is_informative]), None, {"digit": digits})
    return Example(tuple(names.tolist()), len(X), lambda: iter([batch]), ("digit",), "digit")


def _read_digits() -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the images, (n_images, 64), and digits of `sklearn.datasets.load_digits`.

    Importing scikit-learn would take half of the time of a small fit, so its file is read.
    """
    package = find_spec("sklearn")
    folder = Path(package.origin or "").parent if package else Path()
    path = folder / "datasets" / "data" / "digits.csv.gz"
    if not path.is_file():
        from sklearn.datasets import load_digits

        images, digits = load_digits(return_X_y=True)
        return images, digits.astype(int)
    table = np.loadtxt(path, delimiter=",", dtype=np.int64)
    return table[:, :-1], table[:, -1]


def _make_ring(features: int, rows: int, seed: int) -> Example:
    """Translation-invariant spins on a ring: s_i = sgn(cos θ_i y_1 + sin θ_i y_2), y ~ N(0, I).

    Lee & Sompolinsky (1999), section 5. The correlation matrix of the Gaussian variables has two
    eigenvalues other than 0, each half the number of features; the spins' matrix has many.
    """
    angles = 2 * np.pi * np.arange(features) / features
    loadings = np.column_stack([np.cos(angles), np.sin(angles)])
    return _make_thresholded_gaussian(loadings, np.zeros(features), np.zeros(features), rows, seed)


def _make_probit(features: int, factors: int, rows: int, seed: int) -> Example:
    """Low-rank probit data: x = W y + ε, communalities in (0.3, 0.9), thresholds in (−1, 1)."""
    rng = np.random.default_rng([seed, 1])
    loadings = rng.standard_normal((features, factors))
    communality = rng.uniform(0.3, 0.9, features)
    loadings *= (np.sqrt(communality) / np.linalg.norm(loadings, axis=1))[:, None]
    thresholds = rng.uniform(-1, 1, features)
    return _make_thresholded_gaussian(loadings, np.sqrt(1 - communality), thresholds, rows, seed)


def _make_thresholded_gaussian(
    loadings: NDArray[np.float64],
    noise: NDArray[np.float64],
    thresholds: NDArray[np.float64],
    n_rows: int,
    seed: int,
) -> Example:
    n_features, n_factors = loadings.shape

    def batches() -> Iterator[RowBatch]:
        for rows, rng in _iter_row_batches(n_rows, n_features, seed):
            latent = rng.standard_normal((len(rows), n_factors)) @ loadings.T
            if noise.any():
                latent += noise * rng.standard_normal(latent.shape)
            yield pack_batch((latent > thresholds).astype(np.uint8), None, {})

    return Example(make_feature_names(n_features), n_rows, batches)


def _iter_row_batches(
    n_rows: int, n_features: int, seed: int
) -> Iterator[tuple[NDArray[np.int64], np.random.Generator]]:
    """Yield batches of row numbers, each with its own random generator."""
    height = max(1, _BATCH_CELLS // n_features)
    for index, first in enumerate(range(0, n_rows, height)):
        rows = np.arange(first, min(first + height, n_rows))
        yield rows, np.random.default_rng([seed, 0, index])


def _make_nonstationary(
    features: int, components: int, segments: int, rows_per_segment: int, seed: int
) -> Example:
    """Mixed Gaussian sources whose means and variances differ between segments."""
    truth = draw_nonstationary_truth(features, components, segments, seed)
    return Example(
        make_feature_names(features),
        segments * rows_per_segment,
        lambda: draw_nonstationary_rows(truth, rows_per_segment, seed),
        ("segment",),
        "segment",
        attributes={"truth": {name: a.tolist() for name, a in truth._asdict().items()}},
    )


def draw_nonstationary_truth(
    features: int, components: int, segments: int, seed: int
) -> NonstationaryTruth:
    """Draw the parameters of non-stationary data.

    Hyttinen, Barin-Pacela & Hyvärinen (2022), Binary independent component analysis: a
    non-stationarity-based approach. Entries of A are from U(−3, 3). Each segment has its own means,
    from U(−½, ½), and standard deviations, from U(½, 3), of the sources.
    """
    if components > features:
        raise DataError(
            f"example:nonstationary: components is {components}, but features is only {features}. "
            f"Use components={features} or fewer."
        )
    rng = np.random.default_rng([seed, 1])
    mixing = _draw_mixing(features, components, rng)
    means = rng.uniform(-0.5, 0.5, (segments, components))
    return NonstationaryTruth(mixing, means, rng.uniform(0.5, 3, (segments, components)) ** 2)


def _draw_mixing(features: int, components: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """Draw a mixing matrix until its condition number is below the limit.

    The limit is 20. From 20 features on, where such draws are rare, it is the draws' 75th
    percentile.
    """

    def draw() -> NDArray[np.float64]:
        return rng.uniform(-3, 3, (features, components))

    limit = _MAX_CONDITION_NUMBER
    if features >= _FEW_FEATURES:
        limit = float(np.percentile([np.linalg.cond(draw()) for _ in range(1000)], 75))
    # A single column has condition number 1, which is its percentile too.
    while np.linalg.cond(mixing := draw()) > limit:
        continue
    return mixing


def draw_nonstationary_rows(
    truth: NonstationaryTruth, rows_per_segment: int, seed: int
) -> Iterator[RowBatch]:
    """Draw rows segment by segment: x = [√(π/8) A z + ε > 0], so P(x = 1 | z) = Φ(√(π/8) A z).

    z ~ N(source_means[u], diag(source_variances[u])) in segment u and ε ~ N(0, I). The per-row
    column `segment` holds u as text.
    """
    n_segments, n_components = truth.source_means.shape
    names = np.array([str(segment) for segment in range(n_segments)])
    deviations = np.sqrt(truth.source_variances)
    scaled = np.sqrt(np.pi / 8) * truth.mixing
    for rows, rng in _iter_row_batches(n_segments * rows_per_segment, len(scaled), seed):
        segment = rows // rows_per_segment
        sources = rng.standard_normal((len(rows), n_components))
        sources *= deviations[segment]
        sources += truth.source_means[segment]
        latent = sources @ scaled.T
        latent += rng.standard_normal(latent.shape)
        yield pack_batch((latent > 0).astype(np.uint8), None, {"segment": names[segment]})


def _make_survey(items: int, rows: int, seed: int) -> Example:
    """Answers on a scale of five levels: the graded response model (Samejima 1969), one trait.

    P(x ≥ c | z) = 1 / (1 + exp(−a (z − b_c))) with z ~ N(0, 1). The slope a of an item is from
    U(0.8, 2.2), and its four thresholds b_c are equally spaced from −2 to 2, shifted by U(−1, 1).
    """
    rng = np.random.default_rng([seed, 1])
    slopes = rng.uniform(0.8, 2.2, items)
    steps = np.linspace(-2, 2, len(_ANSWERS) - 1)
    thresholds = slopes[:, None] * (steps + rng.uniform(-1, 1, (items, 1)))

    def batches() -> Iterator[RowBatch]:
        for batch, draws in _iter_row_batches(rows, items, seed):
            latent = slopes * draws.standard_normal((len(batch), 1))
            latent += draws.logistic(size=latent.shape)
            levels = np.zeros(latent.shape, np.uint8)
            for own in thresholds.T:
                levels += latent > own
            yield pack_batch(levels, None, {})

    names = tuple(f"q{item + 1}" for item in range(items))
    return Example(names, rows, batches, feature_levels=dict.fromkeys(names, _ANSWERS))


def _make_enumerated_example(
    enumerate_cases: Callable[[], EnumeratedCases], rows: int, seed: int
) -> Example:
    """Make an example of independently drawn cases, with their labels and the entropy per row."""
    cases = enumerate_cases()
    n_cases, n_features = cases.X.shape

    def batches() -> Iterator[RowBatch]:
        for batch, rng in _iter_row_batches(rows, n_features, seed):
            chosen = rng.choice(n_cases, len(batch), p=cases.probabilities)
            yield pack_batch(cases.X[chosen], None, {cases.column: cases.labels[chosen]})

    attributes = {"entropy_bits": entropy(cases)}
    return Example(cases.feature_names, rows, batches, (cases.column,), attributes=attributes)


_EXAMPLES: dict[str, tuple[Callable[..., Example], dict[str, int]]] = {
    "digits": (_make_digits, {}),
    "ring": (_make_ring, {"features": 256, "rows": 100_000, "seed": 0}),
    "nonstationary": (
        _make_nonstationary,
        {"features": 10, "components": 10, "segments": 40, "rows_per_segment": 1000, "seed": 0},
    ),
    "probit": (_make_probit, {"features": 64, "factors": 5, "rows": 20_000, "seed": 0}),
    "survey": (_make_survey, {"items": 12, "rows": 5000, "seed": 0}),
    "lines": (partial(_make_enumerated_example, enumerate_lines), {"rows": 10_000, "seed": 0}),
    "shifter": (partial(_make_enumerated_example, enumerate_shifter), {"rows": 10_000, "seed": 0}),
}
