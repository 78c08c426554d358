"""Draws models of two latent dimensions into given axes: codes, items, posteriors.

All take arrays, so any model's can be drawn. Codes and weights are drawn in one plane, with the
first dimension to the right. Views are square: with the layout `compressed` a figure leaves room
for the legends beside them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pipeline.errors import FitError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

# Okabe & Ito's colours, told apart by the colour-blind; yellow is too pale for white paper.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_GREY, _LINE, _PALE = "#999999", "#777777", "#bbbbbb"
MAX_LABEL_STYLES = 2 * len(_COLOURS)
"""Labels that have a colour and marker of their own."""
_ROW_AREA, _MAX_AREA, _MIN_AREA = 18.0, 450.0, 3.0  # square points: of one row; bounds
_MAX_NAMED_LINES = 24
_NAME_POSITIONS = np.linspace(0.04, 0.96, 47)
_MASS_SHARES = (0.5, 0.9, 0.99)


class _RowGroup(NamedTuple):
    """Rows drawn alike."""

    name: str
    rows: Indices
    colour: str
    marker: str


class _Glyphs(NamedTuple):
    """Places where rows of a kind lie, (n, 2), and how many, (n,)."""

    places: Array
    counts: NDArray[np.intp]


def plot_codes(
    axes: Axes, codes: ArrayLike, labels: Sequence[str] | None = None, title: str = ""
) -> None:
    """Draw latent codes; rows with the same code are one glyph, whose area is their number.

    The `MAX_LABEL_STYLES` most frequent labels have a colour and marker each, and the others, if any,
    are grey together, as the legend says. The view is square and holds all codes.

    Parameters
    ----------
    axes
        Where to draw.
    codes
        (n_rows, 2).
    labels
        Name of each row's label or segment, (n_rows,).
    title
        What stands above.

    Raises
    ------
    FitError
        If the codes are not pairs of finite numbers, or there are not as many labels.
    """
    points = _check_codes(codes)
    kinds = _group_rows(labels, len(points))
    glyphs = [_merge_points(points[kind.rows]) for kind in kinds]
    most = max(int(found.counts.max()) for found in glyphs)
    for kind, found in zip(kinds, glyphs, strict=True):
        areas = _compute_areas(found.counts, most)
        x, y = found.places.T
        axes.scatter(
            x,
            y,
            s=areas,
            c=kind.colour,
            marker=kind.marker,
            alpha=0.75,
            edgecolors="white",
            # An outline would hide what is small.
            linewidths=np.where(areas < _ROW_AREA / 2, 0.0, 0.4).tolist(),
            label=kind.name,
        )
    _set_square_view(axes, points)
    axes.set(title=title, xlabel="latent dimension 1", ylabel="latent dimension 2")
    _add_legends(axes, kinds, most)


def _check_codes(codes: ArrayLike) -> Array:
    points = np.asarray(codes, np.float64)
    if points.ndim != 2 or points.shape[1] != 2 or not len(points):
        raise FitError(f"Expected codes (n_rows, 2), got {points.shape}. Fit two components.")
    if not np.isfinite(points).all():
        row = int(np.argmin(np.isfinite(points).all(axis=1)))
        raise FitError(f"Expected finite codes, got {points[row]} in row {row}. Check the fit.")
    return points


def _group_rows(labels: Sequence[str] | None, n_rows: int) -> list[_RowGroup]:
    """Group rows by label, in order of first appearance; grey ones come first, to lie below."""
    if labels is None:
        return [_RowGroup("", np.arange(n_rows), _COLOURS[0], _MARKERS[0])]
    if len(labels) != n_rows:
        raise FitError(f"Expected a label for each of {n_rows} rows, got {len(labels)}.")
    names = np.asarray(labels).astype(str)
    counts = Counter(names.tolist())
    own = {name for name, _ in counts.most_common(MAX_LABEL_STYLES)}
    others = sorted(set(counts) - own)
    shown = [name for name in counts if name in own]
    kinds = [
        _RowGroup(name, np.flatnonzero(names == name), *_choose_style(k))
        for k, name in enumerate(shown)
    ]
    if others:
        rows = np.flatnonzero(np.isin(names, others))
        kinds.insert(0, _RowGroup(f"{len(others)} other labels", rows, _GREY, _MARKERS[0]))
    return kinds


def _choose_style(k: int) -> tuple[str, str]:
    """Give the k-th colour and marker: the second round has each colour with another marker."""
    n, turn = len(_COLOURS), k // len(_COLOURS)
    return _COLOURS[k % n], _MARKERS[(k + 3 * turn) % n]


def _merge_points(points: Array) -> _Glyphs:
    """Merge coinciding rows; large glyphs come first, so that small ones lie on them."""
    places, counts = np.unique(points, axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    return _Glyphs(places[order], counts[order])


def _compute_areas(counts: ArrayLike, most: int) -> Array:
    """Areas in square points; a glyph too small to be seen is drawn larger."""
    unit = min(_ROW_AREA, _MAX_AREA / most)
    return np.maximum(unit * np.asarray(counts), _MIN_AREA)


def _set_square_view(axes: Axes, points: Array) -> None:
    """Show all points, both dimensions to the same scale."""
    low, high = points.min(axis=0), points.max(axis=0)
    half = 0.56 * max(float((high - low).max()), 1e-3)
    middle = (low + high) / 2
    axes.set(xlim=(middle[0] - half, middle[0] + half), ylim=(middle[1] - half, middle[1] + half))
    axes.set_aspect("equal")


def _add_legends(axes: Axes, kinds: Sequence[_RowGroup], most: int) -> None:
    """Name labels beside the view at the top, and areas at the bottom."""
    if kinds[0].name:
        # Grey comes last here.
        order = sorted(range(len(kinds)), key=lambda k: kinds[k].colour == _GREY)
        marks = [_make_mark(kinds[k].colour, kinds[k].marker, _ROW_AREA * 2) for k in order]
        names = [f"{kinds[k].name} (n = {len(kinds[k].rows):,})" for k in order]
        named = axes.legend(marks, names, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        axes.add_artist(named)
        # Room is made for what the axes do not clip.
        named.set_clip_on(False)
    if most > 1:
        counts = sorted({1, round(most**0.5), most})
        marks = [_make_mark(_GREY, "o", area) for area in _compute_areas(counts, most)]
        names = [f"{count:,} row{'s' * (count > 1)}" for count in counts]
        style: Any = {"labelspacing": 1.1, "handletextpad": 1.0, "borderpad": 0.8}
        axes.legend(marks, names, loc="lower left", bbox_to_anchor=(1.0, 0.0), **style)


def _make_mark(colour: str, marker: str, area: float) -> Any:
    from matplotlib.lines import Line2D

    size = float(np.sqrt(area))
    style: Any = {"linestyle": "none", "markeredgecolor": "white", "markeredgewidth": 0.4}
    return Line2D([], [], color=colour, marker=marker, markersize=size, alpha=0.75, **style)


def plot_item_lines(
    axes: Axes, weights: Array, offsets: Array, names: Sequence[str] | None = None
) -> Indices:
    """Draw where P(t_i = 1 | x) = ½, the line w_i·x + b_i = 0, of items whose line is in view.

    A name stands on the side where 1 is the likelier value. More than 24 lines are paler and have
    no names. The view stays as it is.

    Parameters
    ----------
    axes
        Where to draw; its view must be set.
    weights, offsets
        w (n_features, 2) and b (n_features,).
    names
        Of the items, (n_features,).

    Returns
    -------
    ndarray
        Indices of the items drawn.
    """
    view = np.array([axes.get_xlim(), axes.get_ylim()])
    ends = [_clip_line(w, float(b), view) for w, b in zip(weights, offsets, strict=True)]
    drawn = np.array([i for i, pair in enumerate(ends) if pair is not None], np.intp)
    few = len(drawn) <= _MAX_NAMED_LINES
    style: Any = {"color": _LINE if few else _PALE, "linewidth": 0.7 if few else 0.5}
    for i in drawn:
        axes.plot(*ends[i].T, **style, zorder=0.5, scalex=False, scaley=False)
    if names is not None and few and len(drawn):
        _label_lines(axes, np.array([ends[i] for i in drawn]), weights[drawn], names, drawn)
    return drawn


def _clip_line(weight: Array, offset: float, view: Array) -> Array | None:
    """Cut the line w·x + b = 0 to a view [[left, right], [bottom, top]]: two ends, (2, 2)."""
    length = float(np.linalg.norm(weight))
    distance = -offset / length if length else np.inf
    if not np.isfinite(distance):
        return None
    unit = weight / length
    point, along = distance * unit, np.array([-unit[1], unit[0]])
    moving = along != 0
    if ((point < view[:, 0]) | (point > view[:, 1]))[~moving].any():
        return None
    times = (view[moving] - point[moving, None]) / along[moving, None]
    first, last = times.min(axis=1).max(), times.max(axis=1).min()
    return None if first >= last else point + np.array([[first], [last]]) * along


def _label_lines(
    axes: Axes, ends: Array, weights: Array, names: Sequence[str], drawn: Indices
) -> None:
    """Put each name beside its line, where other names and lines are far."""
    from matplotlib.patheffects import withStroke

    taken = np.zeros((0, 2))
    units = weights / np.linalg.norm(weights, axis=1, keepdims=True)
    shifts = (units * ends[:, 0]).sum(axis=1)
    for k, (first, last) in enumerate(ends):
        places = first + _NAME_POSITIONS[:, None] * (last - first)
        names_away = np.linalg.norm(places[:, None] - taken, axis=2).min(axis=1, initial=np.inf)
        gaps = np.abs(places @ units.T - shifts)
        gaps[:, k] = np.inf
        place = places[np.argmax(np.minimum(names_away, 3 * gaps.min(axis=1)))]
        taken = np.vstack([taken, place])
        axes.annotate(
            names[drawn[k]],
            place,
            xytext=7 * units[k],
            textcoords="offset points",
            ha="center",
            va="center",
            size=7,
            color="#333333",
            path_effects=[withStroke(linewidth=1.6, foreground="white")],
        )


def plot_posteriors(
    axes: Axes, x: Array, y: Array, density: Array, mean: Array, covariance: Array, title: str = ""
) -> None:
    """Draw a row's exact posterior over its Gaussian approximation: where 50, 90 and 99 % lie.

    Parameters
    ----------
    axes
        Where to draw.
    x, y, density
        Coordinates of a grid with equal steps, (n_x,) and (n_y,), and the exact density there,
        (n_y, n_x), up to a factor; what it leaves out must be negligible.
    mean, covariance
        Of the Gaussian, (2,) and (2, 2).
    title
        What stands above.
    """
    exact, gaussian = _COLOURS[:2]
    levels = _compute_levels(density)
    ellipses = [_compute_ellipse(mean, covariance, share) for share in _MASS_SHARES]
    axes.contour(x, y, density, levels, colors=exact, linewidths=(0.9, 1.3, 1.8))
    for outline in ellipses:
        axes.plot(*outline, color=gaussian, ls="--", lw=1.2)
    shares = density / density.sum()
    axes.plot(shares.sum(axis=0) @ x, shares.sum(axis=1) @ y, "o", color=exact, ms=5)
    axes.plot(*mean, "x", color=gaussian, ms=7, mew=1.8)
    rows, columns = np.nonzero(density >= levels[0])
    _set_square_view(axes, np.vstack([np.column_stack([x[columns], y[rows]]), ellipses[-1].T]))
    axes.set(title=title, xlabel="latent dimension 1", ylabel="latent dimension 2")


def _compute_levels(density: Array) -> list[float]:
    """Densities above which lie the shares of all mass, ascending."""
    falling = np.sort(density.ravel())[::-1]
    sums = np.cumsum(falling) / falling.sum()
    found = np.searchsorted(sums, _MASS_SHARES[::-1])
    # A posterior that the grid hardly resolves has fewer levels.
    return sorted(set(falling[np.minimum(found, falling.size - 1)].tolist()))


def _compute_ellipse(mean: Array, covariance: Array, share: float) -> Array:
    """Give the outline that holds a share of a Gaussian's mass, (2, n)."""
    angles = np.linspace(0, 2 * np.pi, 181)
    circle = np.sqrt(-2 * np.log(1 - share)) * np.array([np.cos(angles), np.sin(angles)])
    outline: Array = mean[:, None] + np.linalg.cholesky(covariance) @ circle
    return outline


def add_posterior_legend(axes: Axes) -> None:
    """Name what `plot_posteriors` draws."""
    from matplotlib.lines import Line2D

    exact, gaussian = _COLOURS[:2]
    marks = [
        Line2D([], [], color=exact, marker="o", ms=5, lw=1.3),
        Line2D([], [], color=gaussian, marker="x", ms=7, mew=1.8, ls="--", lw=1.2),
    ]
    axes.legend(marks, ["exact", "variational"], loc="upper left", bbox_to_anchor=(1.0, 1.0))
