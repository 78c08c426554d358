"""Hidden states of rows in order: how long they last and which follow, as graph and table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from flows.report.figures.causes import TextTable
from flows.report.figures.colours import COLOURS, GREY
from flows.report.figures.marks import Axis, Figure, LineMarks, Plot, PointMarks, TextMarks
from flows.report.figures.text import format_number, format_shown_count
from pipeline.arrays import Array
from pipeline.errors import format_share
from storage.artifacts.artifacts import Artifact

_MAX_STATES, _MAX_NAMES = 24, 3
_LEAST_SHARE = 0.05  # of the rows that leave a state, of a state that is named or joined
_NODE_SIZES = 14.0, 44.0  # pixels, of states without rows and with all
_NODE_OPACITY = 0.35  # so that numbers on nodes can be read
_MIN_WIDTH, _MAX_WIDTH = 0.8, 5.0  # of lines
_CURVE_POINTS, _BEND = 25, 0.14
_GAP = 0.1  # between the end of an arrow and its state, in units of the radius
_HEAD = 0.06  # length of an arrow's head


def find_transitions(artifact: Artifact) -> Array | None:
    """Return P(state l follows state k), (n_states, n_states); None if rows are not in order."""
    return artifact.get("transition")


def compute_stays(transition: Array) -> Array:
    """Return the mean number of rows that each state lasts, (n_states,)."""
    return np.asarray(1.0 / np.maximum(1.0 - np.diag(transition), 1e-300))


def _compute_followers(transition: Array) -> Array:
    """Return the share of each other state among those that follow, (n_states, n_states)."""
    others = transition * (1 - np.eye(len(transition)))
    return np.asarray(others / np.maximum(others.sum(axis=1, keepdims=True), 1e-300))


def plot_transitions(artifact: Artifact) -> Iterator[Figure]:
    """Plot states on a circle, and arrows to the states that follow them."""
    transition = find_transitions(artifact)
    if transition is None or len(transition) == 1:
        return
    n = min(len(transition), _MAX_STATES)
    followers, stays = _compute_followers(transition)[:n, :n], compute_stays(transition)
    angles = np.pi / 2 - 2 * np.pi * np.arange(n) / n
    places, weights = np.stack([np.cos(angles), np.sin(angles)], axis=1), artifact["weights"][:n]
    pairs = [tuple(pair) for pair in np.argwhere(followers >= _LEAST_SHARE).tolist()]
    pairs.sort(key=lambda pair: followers[pair])
    curves = [_draw_arrow(places[k], places[other]) for k, other in pairs]
    shares = np.array([followers[pair] for pair in pairs])
    facts = [
        ("from state", [f"{k + 1}" for k, _ in pairs]),
        ("to state", [f"{other + 1}" for _, other in pairs]),
        ("of those that leave", [format_share(share, 1) for share in shares]),
        ("per row", [format_number(float(transition[pair]), 2) for pair in pairs]),
    ]
    small, large = _NODE_SIZES
    nodes = [
        ("state", [f"{k + 1}" for k in range(n)]),
        ("share of rows", [format_share(weight, 1) for weight in weights]),
        ("mean duration in rows", [format_number(float(stay), 3) for stay in stays[:n]]),
    ]
    x, y = places.T
    widths = np.maximum(_MAX_WIDTH * shares, _MIN_WIDTH)
    plot = Plot(
        Axis(-1.3, 1.3, has_lines=False),
        Axis(-1.3, 1.3, has_lines=False),
        (
            LineMarks(curves, [GREY] * len(curves), widths, facts=facts),
            PointMarks(
                *(x, y, COLOURS[0]),
                size=small + (large - small) * np.sqrt(weights),
                opacity=_NODE_OPACITY,
                facts=nodes,
            ),
            TextMarks(x, y, [f"{k + 1}" for k in range(n)]),
        ),
    )
    note = (
        "Larger circles: states of more rows. Arrows lead to the states that follow at least "
        f"{format_share(_LEAST_SHARE)} of the time when a state ends; thicker ones are more "
        "frequent. "
    )
    note += format_shown_count("states", n, len(transition), ", the largest")
    alt = f"Transitions between {n} states: {len(pairs)} arrows."
    yield Figure("Transitions between states", alt, plot, note=note.strip(), width=520)


def _draw_arrow(start: Array, end: Array) -> Array:
    """Return points of a curve from a state to another, bent to its right, with a head."""
    along = end - start
    t = np.linspace(0, 1, _CURVE_POINTS)[:, None]
    line = start + t * along + 4 * _BEND * t * (1 - t) * np.array([along[1], -along[0]])
    is_free = (np.linalg.norm(line - start, axis=1) > _GAP) & (
        np.linalg.norm(line - end, axis=1) > _GAP
    )
    line = line[is_free]
    direction = line[-1] - line[-2]
    direction = _HEAD * direction / np.linalg.norm(direction)
    across = 0.5 * np.array([direction[1], -direction[0]])
    tip = line[-1]
    return np.vstack([line, tip - direction + across, tip, tip - direction - across, tip])


def make_state_table(artifact: Artifact) -> TextTable | None:
    """List for each state its share of the rows, how long it lasts and what follows."""
    transition = find_transitions(artifact)
    if transition is None:
        return None
    stays, followers = compute_stays(transition), _compute_followers(transition)
    rows = list[tuple[str, ...]]()
    columns = ["state", "share of rows", "mean duration", "followed by", "first of a sequence"]
    for k, (own, stay) in enumerate(zip(followers, stays.tolist(), strict=True)):
        order = [i for i in np.argsort(-own, kind="stable") if own[i] >= _LEAST_SHARE]
        named = ", ".join(f"{i + 1} ({format_share(own[i])})" for i in order[:_MAX_NAMES])
        share = format_share(artifact["weights"][k], 1)
        begins = format_share(artifact["initial"][k], 1)
        rows.append((f"{k + 1}", share, format_number(stay, 3), named or "–", begins))
    if artifact.manifest["diagnostics"].get("sequences", 1) == 1:  # it only says where it begins
        rows, columns = [own[:-1] for own in rows], columns[:-1]
    note = (
        "The mean duration, in rows, is 1 / (1 − P(the state follows itself)). After the states "
        "that follow: their share of the times when the state ends."
    )
    return TextTable("States", tuple(columns), tuple(rows), note)


def iter_state_sentences(artifact: Artifact) -> Iterator[str]:
    """Yield a sentence about the durations of states."""
    transition = find_transitions(artifact)
    if transition is None or len(transition) == 1:
        return
    stays = compute_stays(transition)
    longest, shortest = int(stays.argmax()), int(stays.argmin())
    yield (
        f"State {longest + 1} lasts longest, {format_number(float(stays[longest]), 3)} rows on "
        f"average, and state {shortest + 1} shortest, {format_number(float(stays[shortest]), 3)}."
    )
