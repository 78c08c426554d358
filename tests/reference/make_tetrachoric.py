"""Writes tetrachoric.csv: 2 × 2 tables and their tetrachoric correlations to 17 digits.

    python tests/reference/make_tetrachoric.py

Method, with mpmath at 40 digits and sharing nothing with the package: the cell P(X > h, Y > k) is
∫_h^∞ φ(x) Φ((ρ x − k) / √(1 − ρ²)) dx by tanh-sinh quadrature, the thresholds are the exact normal
quantiles of the margins, and ρ is Newton's root. Every cell at a root is checked against its
neighbour (the two must add up to the margin) to 1e-25.

A row is first drawn as (h, k, ρ); its table is rounded to float64 (n = 1) or to whole numbers, and
the correlation written is the root of the rounded table, taken as exact. Rounding of the input is
therefore no part of the error of a method that is compared with it.

    plain    n = 1, h and k uniform on (−2, 2), |ρ| ≤ 0.95, every cell ≥ 1e-4
    hard     n = 1, |ρ| ≤ 0.9999, smallest cell between 1e-9 and 1e-4
    counts   whole numbers, n from 30 to 2^50, cells down to 1, |ρ| ≤ 0.9999
"""

import csv
from pathlib import Path

import numpy as np
from mpmath import mp, mpf
from scipy.special import ndtri

mp.dps = 40
FILE = Path(__file__).with_name("tetrachoric.csv")


def quantile(p):
    """Φ⁻¹(p) by Newton from the double-precision value."""
    x = mpf(float(ndtri(float(p))))
    for _ in range(4):
        x -= (mp.ncdf(x) - p) / mp.npdf(x)
    return x


def upper_corner(h, k, rho):
    """P(X > h, Y > k), the integral cut where the conditional probability turns over."""
    scale = mp.sqrt(1 - rho * rho)
    cuts = [h + step for step in (0, 1, 3, 6, 10, 16, 40)]
    if rho:
        cuts += [(k + step * scale) / rho for step in (-12, -6, -3, -1, 0, 1, 3, 6, 12)]
    cuts = sorted({cut for cut in cuts if h <= cut <= h + 40})

    def integrand(x):
        return mp.npdf(x) * mp.ncdf((rho * x - k) / scale)

    peak = max(integrand(cut) for cut in cuts)
    return peak * mp.quad(lambda x: integrand(x) / peak, cuts)


def density(h, k, rho):
    rest = 1 - rho * rho
    return mp.exp(-(h * h - 2 * rho * h * k + k * k) / (2 * rest)) / (2 * mp.pi * mp.sqrt(rest))


def root(table, rho):
    """The correlation of a table, by Newton from `rho`; None if that does not converge."""
    n, ones_i, ones_j, joint = (mpf(x) for x in table)
    h, k = -quantile(ones_i / n), -quantile(ones_j / n)
    rho = mpf(rho)
    for _ in range(12):
        step = (upper_corner(h, k, rho) - joint / n) / density(h, k, rho)
        rho -= step
        if abs(rho) >= 1:
            return None
        if abs(step) < mpf(10) ** -22:
            cells = upper_corner(h, k, rho) + upper_corner(h, -k, -rho)
            assert abs(cells - ones_i / n) < mpf(10) ** -25
            return float(rho)
    return None


def probabilities(h, k, rho):
    """n, p_i, p_j, p11 rounded to float64."""
    h, k, rho = mpf(h), mpf(k), mpf(rho)
    return 1.0, float(mp.ncdf(-h)), float(mp.ncdf(-k)), float(upper_corner(h, k, rho))


def smallest_cell(n, ones_i, ones_j, joint):
    return min(joint, ones_i - joint, ones_j - joint, n - ones_i - ones_j + joint) / n


def plain(rng):
    h, k = rng.uniform(-2, 2, 2)
    rho = rng.uniform(-0.95, 0.95)
    table = probabilities(h, k, rho)
    return (table, rho) if smallest_cell(*table) >= 1e-4 else None


def hard(rng):
    h, k = rng.uniform(-5.5, 5.5, 2)
    rho = np.tanh(rng.uniform(-4.95, 4.95))
    table = probabilities(h, k, rho)
    return (table, rho) if 1e-9 <= smallest_cell(*table) <= 1e-4 else None


def counts(rng):
    h, k = rng.uniform(-3, 3, 2)
    rho = np.tanh(rng.uniform(-4.95, 4.95))
    n = round(2 ** rng.uniform(5, 50))
    _, p_i, p_j, p11 = probabilities(h, k, rho)
    table = n, round(n * p_i), round(n * p_j), round(n * p11)
    return (table, rho) if smallest_cell(*table) > 0 else None


def rows(draw, size, rng):
    """`size` rows of a region, drawn again where the region or Newton's method refuses."""
    found = 0
    while found < size:
        drawn = draw(rng)
        correlation = root(*drawn) if drawn else None
        if correlation is not None and abs(correlation) <= 0.9999:
            found += 1
            yield [draw.__name__, *drawn[0], correlation]


def main():
    rng = np.random.default_rng(20240607)
    with FILE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["region", "n", "ones_i", "ones_j", "joint", "correlation"])
        for draw, size in ((plain, 150), (hard, 150), (counts, 100)):
            writer.writerows(rows(draw, size, rng))


if __name__ == "__main__":
    main()
