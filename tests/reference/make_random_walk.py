"""Make `random_walk.csv`: positions over time by a long Gibbs sampler, with NumPy and SciPy alone.

A court of 9 members decides 40 cases in each of 8 terms; some members leave and others replace
them. The votes follow the model that is fitted: P(yes) = Φ(w x + b), w and b ~ N(0, 1), the first
position of a member ~ N(0, 1), and each change of a position per term ~ N(0, 0.1). The sampler is
that of A. D. Martin & K. M. Quinn, Political Analysis 10 (2002): latent utilities (J. H. Albert,
S. Chib, JASA 88, 1993), items given positions, and positions by forward filtering and backward
sampling. 15,000 draws after 2,000.

    python tests/reference/make_random_walk.py random_walk.csv
"""

from __future__ import annotations

import sys

import numpy as np
from scipy.special import ndtr, ndtri

N_TERMS, N_CASES, INNOVATION = 8, 40, 0.1


def draw_votes(seed: int = 7):
    """Return members and terms of rows, votes (NaN where a case is of another term), and x."""
    rng = np.random.default_rng(seed)
    careers = [(0, 8)] * 5 + [(0, 3), (3, 8), (0, 5), (5, 8), (0, 2), (2, 8), (0, 6), (6, 8)]
    w, b = rng.standard_normal((2, N_TERMS, N_CASES))
    members, terms, votes, positions = [], [], [], []
    for member, (start, stop) in enumerate(careers):
        x = rng.standard_normal()
        for term in range(start, stop):
            if term > start:
                x += np.sqrt(INNOVATION) * rng.standard_normal()
            row = np.full((N_TERMS, N_CASES), np.nan)
            row[term] = rng.random(N_CASES) < ndtr(w[term] * x + b[term])
            members.append(member)
            terms.append(term)
            votes.append(row.ravel())
            positions.append(x)
    votes, terms = np.array(votes), np.array(terms)
    split = np.nanmin(votes, axis=0) != np.nanmax(votes, axis=0)  # without unanimous cases
    return np.array(members), terms, votes[:, split], np.array(positions)


def sample(members, terms, votes, n_draws, n_burn, seed, sign_row=0):
    """Return mean and standard deviation of each position, positive in the mean in `sign_row`."""
    rng = np.random.default_rng(seed)
    observed = ~np.isnan(votes)
    yes = np.where(observed, votes, 0.0)
    n_rows, n_items = votes.shape
    w, b = np.zeros((2, n_items))
    # A chain hardly ever changes the sign of one term against the next: start from one position
    # of each member, that of the largest variance of their agreement.
    is_of_member = np.arange(members.max() + 1)[:, None] == members
    signs = is_of_member @ np.where(observed, 2 * yes - 1, 0.0)
    agreement = signs @ signs.T / np.maximum(np.abs(signs) @ np.abs(signs).T, 1)
    agreement -= agreement.mean()
    x = 2 * np.linalg.eigh(agreement)[1][members, -1]
    total, squares, n_kept = np.zeros(n_rows), np.zeros(n_rows), 0
    for draw in range(n_draws + n_burn):
        eta = x[:, None] * w + b if draw else np.zeros(votes.shape)
        low = np.where(yes == 1, ndtr(-eta), 0.0)
        high = np.where(yes == 1, 1.0, ndtr(-eta))
        u = low + rng.random(eta.shape) * (high - low)
        z = np.where(observed, eta + ndtri(np.clip(u, 1e-15, 1 - 1e-15)), 0.0)
        # items: normal regression of z on (x, 1), prior N(0, I)
        xx, x1 = (observed.T @ x**2) + 1, observed.T @ x
        n1 = observed.sum(axis=0) + 1
        zx, z1 = z.T @ x, z.sum(axis=0)
        det = xx * n1 - x1**2
        mw, mb = (n1 * zx - x1 * z1) / det, (xx * z1 - x1 * zx) / det
        e1, e2 = rng.standard_normal((2, n_items))
        w = mw + np.sqrt(n1 / det) * e1
        b = mb - x1 / n1 * (w - mw) + e2 / np.sqrt(n1)
        # positions: sites from z − b = w x + e
        precision = observed @ w**2
        linear = ((z - b) * observed) @ w
        mean, variance = np.empty(n_rows), np.empty(n_rows)
        for n in range(n_rows):
            is_first = n == 0 or members[n] != members[n - 1]
            m, v = (
                (0.0, 1.0)
                if is_first
                else (mean[n - 1], variance[n - 1] + INNOVATION * (terms[n] - terms[n - 1]))
            )
            variance[n] = 1 / (1 / v + precision[n])
            mean[n] = variance[n] * (m / v + linear[n])
        noise = rng.standard_normal(n_rows)
        for n in range(n_rows - 1, -1, -1):
            m, v = mean[n], variance[n]
            if n + 1 < n_rows and members[n + 1] == members[n]:
                q = INNOVATION * (terms[n + 1] - terms[n])
                v = 1 / (1 / variance[n] + 1 / q)
                m = v * (mean[n] / variance[n] + x[n + 1] / q)
            x[n] = m + np.sqrt(v) * noise[n]
        if draw >= n_burn:
            s = 1.0 if x[sign_row] > 0 else -1.0
            total += s * x
            squares += x**2
            n_kept += 1
    mean = total / n_kept
    return mean, np.sqrt(squares / n_kept - mean**2)


def main(path: str) -> None:
    """Run the sampler, and write the table."""
    members, terms, votes, truth = draw_votes()
    row = int(np.argmax(np.abs(truth)))
    mean, deviation = sample(members, terms, votes, 15_000, 2_000, 1, row)
    columns = np.column_stack([members, terms, np.sign(truth[row]) * mean, deviation])
    header = "member,term,mean,sd"
    formats = ["%d", "%d", "%.4f", "%.4f"]
    np.savetxt(path, columns, formats, ",", header=header, comments="")


if __name__ == "__main__":
    main(sys.argv[1])
