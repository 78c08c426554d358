"""Kernels on packed bits against NumPy on dense bytes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numba import types
from numpy.typing import NDArray

from pipeline.errors import FitError
from pipeline.numerics.bits import kernels
from tests.support.strategies import pack_matrix

Words = NDArray[np.uint64]
Bits = NDArray[np.uint8]


binary_matrices = hnp.arrays(
    np.uint8,
    st.tuples(st.integers(0, 200), st.integers(1, 11)),
    elements=st.integers(0, 1),
    fill=st.integers(0, 1),
)


def dense_joint_counts(left: Bits, right: Bits) -> NDArray[np.int64]:
    # Sums of so few ones are exact, and much faster than those of integers.
    return (left.astype(np.float64).T @ right.astype(np.float64)).astype(np.int64)


def random_bits(n_samples: int, n_features: int, seed: int = 0) -> Bits:
    return np.random.default_rng(seed).integers(0, 2, (n_samples, n_features), dtype=np.uint8)


def inside_a_chunk(words: Words) -> Words:
    chunk = np.full((words.shape[0] + 2, words.shape[1] + 5), ~np.uint64(0))
    chunk[1:-1, 3:-2] = words
    return chunk[1:-1, 3:-2]


def read_only(words: Words) -> Words:
    words = words.copy()
    words.flags.writeable = False
    return words


def unaligned(words: Words) -> Words:
    memory = np.frombuffer(b"\xff" + words.tobytes(), np.uint8)[1:]
    return np.ndarray(words.shape, np.uint64, memory)


def spread_words(words: Words) -> Words:
    wide = np.full((words.shape[0], 2 * words.shape[1]), ~np.uint64(0))
    wide[:, ::2] = words
    return wide[:, ::2]


LAYOUTS: dict[str, Callable[[Words], Words]] = {
    "contiguous": np.copy,
    "inside_a_chunk": inside_a_chunk,
    "reversed_rows": lambda words: words[::-1].copy()[::-1],
    "spread_words": spread_words,
    "fortran_order": np.asfortranarray,
    "repeated_row": lambda words: np.broadcast_to(words[:1], words.shape),
    "read_only": read_only,
    "unaligned": unaligned,
}
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())


@given(binary_matrices, st.booleans())
def test_counts_are_those_of_the_dense_matrix(X: Bits, sliced: bool) -> None:
    words = inside_a_chunk(pack_matrix(X)) if sliced else pack_matrix(X)
    np.testing.assert_array_equal(kernels.popcounts(words), X.sum(axis=0, dtype=np.int64))
    np.testing.assert_array_equal(kernels.symmetric_joint_counts(words), dense_joint_counts(X, X))


@given(binary_matrices, st.integers(1, 9), st.integers(0, 99))
def test_joint_counts_of_two_sides(left: Bits, n_right: int, seed: int) -> None:
    right = random_bits(len(left), n_right, seed)
    counts = kernels.joint_counts(pack_matrix(left), inside_a_chunk(pack_matrix(right)))
    np.testing.assert_array_equal(counts, dense_joint_counts(left, right))


@pytest.mark.parametrize(
    ("n_samples", "n_left", "n_right"),
    [
        (700, kernels.BLOCK_FEATURES + 1, 2 * kernels.BLOCK_FEATURES + 3),  # more than one block
        (700, 2 * kernels.BLOCK_FEATURES + 3, kernels.BLOCK_FEATURES),
        (64 * kernels.STRIP_WORDS, 3, 5),  # one full strip
        (64 * kernels.STRIP_WORDS + 1, 5, 3),
        (3 * 64 * kernels.STRIP_WORDS - 70, 6, 9),
        (70, 64, kernels.LOOKUP_FEATURES),  # the fewest that are looked up
        (700, 65, kernels.LOOKUP_FEATURES + 3),  # the last block is too narrow
        (64 * kernels.LOOKUP_WORDS, 70, kernels.LOOKUP_FEATURES + 40),
        (64 * kernels.LOOKUP_WORDS + 1, 64, kernels.LOOKUP_FEATURES + 21),
    ],
)
def test_counts_across_blocks_and_strips(n_samples: int, n_left: int, n_right: int) -> None:
    X = random_bits(n_samples, n_left + n_right)
    words = pack_matrix(X)
    expected = dense_joint_counts(X, X)
    joint = kernels.joint_counts(words[:n_left], words[n_left:])
    np.testing.assert_array_equal(joint, expected[:n_left, n_left:])
    np.testing.assert_array_equal(kernels.symmetric_joint_counts(words), expected)
    np.testing.assert_array_equal(kernels.popcounts(words), expected.diagonal())


def test_lookups_add_to_short_counts_and_count_rows_of_ones() -> None:
    X = random_bits(64 * kernels.LOOKUP_WORDS, kernels.LOOKUP_FEATURES)
    X[:, :70] = 1
    words, counts = pack_matrix(X), np.full((X.shape[1],) * 2, 7, np.uint32)
    kernels.add_joint_counts(words, words.copy(), counts)
    np.testing.assert_array_equal(counts, X.astype(np.float64).T @ X + 7)


@given(hnp.arrays(np.int64, st.integers(0, 200), elements=st.integers(0, 2**62)))
def test_bit_planes_hold_the_bits_of_weights(weights: NDArray[np.int64]) -> None:
    planes = kernels.split_into_bit_planes(weights)
    n_bits = int(weights.max(initial=0)).bit_length()
    assert planes.shape == (n_bits, -(-len(weights) // 64))
    bits = kernels.unpack_rows(planes, len(weights)).astype(np.int64)
    np.testing.assert_array_equal(bits @ (1 << np.arange(n_bits)), weights)
    np.testing.assert_array_equal(kernels.popcounts(planes), bits.sum(axis=0))  # no padding


@given(binary_matrices, st.integers(1, 9), st.integers(0, 99), st.data())
def test_samples_count_as_many_times_as_their_weight(
    left: Bits, n_right: int, seed: int, data: st.DataObject
) -> None:
    right = random_bits(len(left), n_right, seed)
    elements = st.integers(0, 3) | st.integers(0, 2**40)
    weights = data.draw(hnp.arrays(np.int64, len(left), elements=elements))
    planes = kernels.split_into_bit_planes(weights)
    for other in (left, right):
        words = pack_matrix(left)
        sides = (words, words) if other is left else (words, inside_a_chunk(pack_matrix(right)))
        counts = np.full((left.shape[1], other.shape[1]), 7)
        kernels.add_joint_counts(*sides, counts, planes)
        expected = (weights * left.astype(np.int64).T) @ other + 7
        np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize("rare", [1.0, 0.3, 0.002])
@pytest.mark.parametrize(
    ("n_left", "n_right"), [(5, 3), (64, kernels.LOOKUP_FEATURES + 3), (70, 70)]
)
def test_weighted_counts_across_strips(n_left: int, n_right: int, rare: float) -> None:
    n_samples = 2 * 64 * kernels.STRIP_WORDS + 99
    rng = np.random.default_rng(0)
    weights = np.where(rng.random(n_samples) < rare, rng.integers(0, 2**36, n_samples), 0)
    weights[:3000] = 2
    planes = kernels.split_into_bit_planes(weights)
    X = random_bits(n_samples, max(n_left, n_right))
    words = pack_matrix(X)
    assert weights.sum() < 2**53  # so that sums of floats are exact
    expected = (weights * X.T.astype(np.float64)) @ X.astype(np.float64)
    counts = np.zeros((n_left, n_right), np.int64)
    kernels.add_joint_counts(words[:n_left], words[:n_right].copy(), counts, planes)
    np.testing.assert_array_equal(counts, expected[:n_left, :n_right])
    counts = np.zeros((len(words),) * 2, np.int64)
    kernels.add_joint_counts(words, words, counts, planes)
    np.testing.assert_array_equal(counts, expected)


@pytest.mark.parametrize("n_features", [0, 1, 5])
def test_no_words_count_nothing(n_features: int) -> None:
    words = np.zeros((n_features, 0), np.uint64)
    zeros = np.zeros((n_features, n_features), np.int64)
    for counts in (kernels.joint_counts(words, words), kernels.symmetric_joint_counts(words)):
        np.testing.assert_array_equal(counts, zeros, strict=True)
    np.testing.assert_array_equal(kernels.popcounts(words), zeros.diagonal(), strict=True)


def test_counts_are_exact_where_float32_is_not() -> None:
    n_words = 2**18 + 1
    words = np.stack([np.full(n_words, ~np.uint64(0)), np.zeros(n_words, np.uint64)])
    words[0, -1] = 1
    ones = 2**24 + 1
    assert int(np.float32(ones)) != ones
    expected = np.array([[ones, 0], [0, 0]])
    np.testing.assert_array_equal(kernels.symmetric_joint_counts(words), expected)
    np.testing.assert_array_equal(kernels.joint_counts(words, words), expected)
    np.testing.assert_array_equal(kernels.popcounts(words), [ones, 0])


@layouts
def test_any_layout_is_read_in_place_of_its_copy(layout: Callable[[Words], Words]) -> None:
    words = layout(pack_matrix(random_bits(333, 7)))
    X = np.unpackbits(words.copy().view(np.uint8), axis=1, bitorder="little", count=333).T
    keep = np.flatnonzero(random_bits(333, 1)[:, 0])
    np.testing.assert_array_equal(kernels.popcounts(words), X.sum(axis=0))
    np.testing.assert_array_equal(kernels.symmetric_joint_counts(words), dense_joint_counts(X, X))
    np.testing.assert_array_equal(kernels.unpack_rows(words, 333), X)
    np.testing.assert_array_equal(kernels.select_rows(words, keep), pack_matrix(X[keep]))


def test_every_layout_shares_one_compilation() -> None:
    compiled = set()
    for layout in LAYOUTS.values():
        words = layout(pack_matrix(random_bits(99, 3)))
        for counts in (np.zeros((3, 3), np.int64), np.zeros((3, 3), np.uint32)):
            kernels.add_joint_counts(words, words, counts)
        kernels.unpack_rows(words, 99)
        without_lookups = [s for s in kernels._add_joint_counts.signatures if types.none in s]
        compiled.add((len(without_lookups), len(kernels._unpack.signatures)))
    assert compiled == {(2, 1)}  # one for either type of counts


@given(binary_matrices)
def test_packing_is_that_of_packbits_and_undone_by_unpacking(X: Bits) -> None:
    words = kernels.pack_rows(X)
    np.testing.assert_array_equal(words, pack_matrix(X), strict=True)
    unpacked = kernels.unpack_rows(words, len(X))
    np.testing.assert_array_equal(unpacked, X, strict=True)
    assert unpacked.flags.c_contiguous


def test_packing_reads_slices_and_transposes() -> None:
    X = random_bits(150, 40)
    for view in (X[3:140, 5:17], X.T, X[::-1, ::2]):
        np.testing.assert_array_equal(kernels.pack_rows(view), pack_matrix(view))


@given(binary_matrices, st.data())
def test_selected_rows_are_those_of_the_dense_matrix(X: Bits, data: st.DataObject) -> None:
    keep = np.flatnonzero(data.draw(hnp.arrays(np.bool_, len(X))))
    selected = kernels.select_rows(inside_a_chunk(pack_matrix(X)), keep)
    np.testing.assert_array_equal(selected, pack_matrix(X[keep]), strict=True)


@given(binary_matrices.filter(len), st.integers(0, 99))
def test_rows_are_selected_in_the_order_asked_for(X: Bits, seed: int) -> None:
    keep = np.random.default_rng(seed).integers(0, len(X), 130)
    np.testing.assert_array_equal(kernels.select_rows(pack_matrix(X), keep), pack_matrix(X[keep]))


def test_threads_count_the_same_as_one() -> None:
    words = pack_matrix(random_bits(20_000, 70))
    jobs = [words, words[:33], words[:, 100:], words] * 5
    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(kernels.symmetric_joint_counts, jobs))
    for job, counts in zip(jobs, together, strict=True):
        np.testing.assert_array_equal(counts, kernels.joint_counts(job, job))


def test_sides_of_different_samples_are_refused() -> None:
    with pytest.raises(FitError, match=r"Left has 3 words per feature, but right has 4\. "):
        kernels.joint_counts(np.zeros((2, 3), np.uint64), np.zeros((2, 4), np.uint64))
    words, counts = np.zeros((2, 3), np.uint64), np.zeros((2, 2), np.int64)
    with pytest.raises(FitError, match="but right has 3 and the weights have 4"):
        kernels.add_joint_counts(words, words, counts, np.zeros((1, 4), np.uint64))


def test_packing_refuses_what_is_not_binary() -> None:
    X = random_bits(9, 4)
    X[7, 2] = 3
    with pytest.raises(FitError, match=r"X is 3 at row 7, column 2\. "):
        kernels.pack_rows(X)


@pytest.mark.parametrize("n_samples", [-1, 129])
def test_unpacking_refuses_samples_the_words_do_not_hold(n_samples: int) -> None:
    with pytest.raises(
        FitError, match=rf"`n_samples` is {n_samples}, but the words hold 128 samples\. "
    ):
        kernels.unpack_rows(np.zeros((3, 2), np.uint64), n_samples)


@pytest.mark.parametrize("position", [-1, 128])
def test_selecting_refuses_positions_outside_the_words(position: int) -> None:
    with pytest.raises(FitError, match=r"Row positions go from .* but the words hold 128 rows"):
        kernels.select_rows(np.zeros((3, 2), np.uint64), np.array([5, position]))
