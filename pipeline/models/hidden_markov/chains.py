"""Sums over the paths of a Markov chain through the rows of a block, given b_nk ∝ P(x_n | k).

With the transition matrix A and D_n = diag(b_n), the rows of a block multiply the distribution of
the state before them by A D_1 A D_2 … A D_n. Where a sequence begins, the initial distribution
takes the place of A. Products of blocks are multiplied in the same way, so that a block needs only
two vectors of all other rows: the distribution of the state before it given the rows before it, and
the likelihood of each last state given the rows after it.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.arrays import Array, Counts
from pipeline.numerics.logistic.logistic_lanes import exp_minus

Flags = NDArray[np.bool_]
_kernel = njit(nogil=True, cache=True, error_model="numpy")


@_kernel
def scale_densities(logs: Array, peaks: Array) -> None:
    """Turn log P(x_n | k) into b_nk, at most 1, in place; `peaks` are their largest logarithms."""
    for n in range(len(logs)):
        peaks[n] = logs[n].max()
        for k in range(logs.shape[1]):
            logs[n, k] = exp_minus(peaks[n] - logs[n, k])


@_kernel
def multiply_rows(
    b: Array, begins: Flags, transition: Array, initial: Array, product: Array
) -> None:
    """Fill in P(rows, last state | state before the rows) up to a factor.

    `product` is (n_states + 1, n_states), or (1, n_states) if no row comes before; its last line is
    for rows that begin a sequence. `begins` says which of the other rows do.
    """
    n_states, last = len(initial), len(product) - 1
    next_product = np.empty_like(product)
    for k in range(n_states):
        for i in range(last):
            product[i, k] = transition[i, k] * b[0, k]
        product[last, k] = initial[k] * b[0, k]
    for n in range(1, len(b)):
        for i in range(last + 1):
            if begins[n]:
                total = product[i].sum()
                for k in range(n_states):
                    next_product[i, k] = total * initial[k]
            else:
                for k in range(n_states):
                    next_product[i, k] = 0.0
                for j in range(n_states):
                    share = product[i, j]
                    for k in range(n_states):
                        next_product[i, k] += share * transition[j, k]
        for i in range(last + 1):
            for k in range(n_states):
                next_product[i, k] *= b[n, k]
        scale = 1.0 / next_product.max()
        for i in range(last + 1):
            for k in range(n_states):
                product[i, k] = scale * next_product[i, k]


@_kernel
def maximize_rows(
    logs: Array, begins: Flags, log_transition: Array, log_initial: Array, best: Array
) -> None:
    """Fill in the largest log P(rows, path) of each last state, as `multiply_rows` sums them."""
    n_states = len(log_initial)
    next_best = np.empty_like(best)
    for k in range(n_states):
        for i in range(n_states):
            best[i, k] = log_transition[i, k] + logs[0, k]
        best[n_states, k] = log_initial[k] + logs[0, k]
    for n in range(1, len(logs)):
        for i in range(n_states + 1):
            largest = best[i].max()
            for k in range(n_states):
                next_best[i, k] = -np.inf
            if begins[n]:
                for k in range(n_states):
                    next_best[i, k] = largest + log_initial[k]
            else:
                for j in range(n_states):
                    for k in range(n_states):
                        next_best[i, k] = max(next_best[i, k], best[i, j] + log_transition[j, k])
        for i in range(n_states + 1):
            for k in range(n_states):
                best[i, k] = next_best[i, k] + logs[n, k]


@_kernel
def connect_products(products: Array, begins: Flags, before: Array, after: Array) -> None:
    """Fill in the states before and after each block, as `sum_paths` takes them.

    `products` are those of all blocks in order, (n_blocks, n_states + 1, n_states); `begins` says
    which blocks begin a sequence.
    """
    n_blocks, n_states = before.shape
    own = np.full(n_states, 1.0 / n_states)
    for block in range(n_blocks):
        before[block] = own
        for k in range(n_states):
            own[k] = products[block, n_states, k]
        if not begins[block]:
            for k in range(n_states):
                own[k] = 0.0
                for i in range(n_states):
                    own[k] += before[block, i] * products[block, i, k]
        own /= own.sum()
    own[:] = 1.0 / n_states
    for block in range(n_blocks - 1, -1, -1):
        after[block] = own
        for i in range(n_states):
            own[i] = 1.0
            if not begins[block]:
                own[i] = 0.0
                for k in range(n_states):
                    own[i] += products[block, i, k] * after[block, k]
        own /= own.sum()


@_kernel
def connect_paths(best: Array, begins: Flags, first: Counts, last: Counts) -> None:
    """Fill in the states of the likeliest path before the first and at the last row of each block.

    `best` are the results of `maximize_rows` for all blocks, in order.
    """
    n_blocks, n_states = len(best), best.shape[2]
    scores = np.zeros((n_blocks + 1, n_states))
    for block in range(n_blocks):
        largest = scores[block].max()
        for k in range(n_states):
            scores[block + 1, k] = best[block, n_states, k]
            if not begins[block]:
                scores[block + 1, k] = -np.inf
                for i in range(n_states):
                    score = scores[block, i] - largest + best[block, i, k]
                    scores[block + 1, k] = max(scores[block + 1, k], score)
    state = scores[n_blocks].argmax()
    for block in range(n_blocks - 1, -1, -1):
        last[block] = state
        if begins[block]:
            state = scores[block].argmax()
        else:
            state = (scores[block] + best[block, :n_states, state]).argmax()
        first[block] = state


@_kernel
def sum_paths(
    b: Array,
    begins: Flags,
    transition: Array,
    initial: Array,
    before: Array,
    after: Array,
    earlier: Array,
    later: Array,
    counts: Array,
    starts: Array,
) -> float:
    """Fill in the distribution of each row's state given earlier rows, and likelihoods of later.

    Parameters
    ----------
    b, begins
        b_nk, (n_samples, n_states), and which rows begin a sequence, (n_samples,).
    before, after
        Distribution of the state before the block given earlier rows, and likelihood of each last
        state given later rows, up to a factor, (n_states,).
    earlier, later
        Filled with P(k | earlier rows) and a multiple of P(later rows | k), (n_samples, n_states).
    counts, starts
        The expected numbers of transitions, (n_states, n_states), and of first states, (n_states,),
        are added.

    Returns
    -------
    float
        Σ_n log Σ_k P(k | earlier rows) b_nk.
    """
    n_rows, n_states = b.shape
    totals, nats, sums = np.empty(n_rows), 0.0, np.zeros_like(counts)
    state, message, product = before.copy(), after / after.sum(), np.empty(n_states)
    transposed = np.ascontiguousarray(transition.T)
    for n in range(n_rows):
        for k in range(n_states):
            earlier[n, k] = initial[k]
        if not begins[n]:
            for k in range(n_states):
                earlier[n, k] = 0.0
            for i in range(n_states):
                for k in range(n_states):
                    earlier[n, k] += state[i] * transition[i, k]
        total = 0.0
        for k in range(n_states):
            state[k] = earlier[n, k] * b[n, k]
            total += state[k]
        for k in range(n_states):
            state[k] /= total
        totals[n] = total
        nats += math.log(total)
    for n in range(n_rows - 1, -1, -1):
        together = 0.0
        for k in range(n_states):
            later[n, k] = message[k]
            product[k] = b[n, k] * message[k]
            together += earlier[n, k] * product[k]
        if begins[n]:
            for k in range(n_states):
                starts[k] += earlier[n, k] * product[k] / together
                message[k] = 1.0 / n_states
            continue
        scale = 1.0 / together
        if n:
            scale /= totals[n - 1]
        for i in range(n_states):
            own = before[i]
            if n:
                own = earlier[n - 1, i] * b[n - 1, i]
            own *= scale
            for k in range(n_states):
                sums[i, k] += own * product[k]
        message[:] = 0.0
        for k in range(n_states):
            share = product[k]
            for i in range(n_states):  # over neighbouring entries, which is much faster
                message[i] += share * transposed[k, i]
        message /= message.sum()
    for i in range(n_states):
        for k in range(n_states):
            counts[i, k] += sums[i, k] * transition[i, k]
    return nats


@_kernel
def find_path(
    logs: Array,
    begins: Flags,
    log_transition: Array,
    log_initial: Array,
    first: int,
    last: int,
    path: Counts,
) -> None:
    """Fill in the likeliest path (Viterbi) from the state before the rows to that of the last."""
    n_rows, n_states = logs.shape
    origins = np.empty((n_rows, n_states), np.int32)
    scores, next_scores = np.full(n_states, -np.inf), np.empty(n_states)
    scores[first] = 0.0
    for n in range(n_rows):
        origin = int(scores.argmax())
        largest = scores[origin]
        for k in range(n_states):
            best = log_initial[k]
            if not begins[n]:
                best, origin = -np.inf, 0
                for i in range(n_states):
                    score = scores[i] - largest + log_transition[i, k]
                    if score > best:
                        best, origin = score, i
            origins[n, k] = origin
            next_scores[k] = best + logs[n, k]
        scores[:] = next_scores
    state = last
    for n in range(n_rows - 1, -1, -1):
        path[n] = state
        state = origins[n, state]


@_kernel
def draw_path(transition: Array, initial: Array, uniform: Array, path: Counts) -> None:
    """Fill in states of a sequence, drawn by numbers between 0 and 1."""
    own = initial
    for n in range(len(path)):
        rest, state = uniform[n], 0
        while state < len(initial) - 1 and rest >= own[state]:
            rest -= own[state]
            state += 1
        path[n] = state
        own = transition[state]
