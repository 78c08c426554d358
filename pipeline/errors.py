"""What a person is told, naming features and segments by their own names where these are known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_MAX_NAMES = 8


@dataclass(frozen=True)
class FitWarning:
    """A sentence about some features or segments.

    Attributes
    ----------
    text
        The sentence; `{features}` and `{segments}` in it stand for their names.
    features, segments
        Indices of those that it is about.
    """

    text: str
    features: tuple[int, ...] = ()
    segments: tuple[int, ...] = ()

    def render(
        self, features: Sequence[str] | None = None, segments: Sequence[str] | None = None
    ) -> str:
        """Write the sentence out; without names, indices stand for them."""
        text = self.text.replace("{features}", _format_names(self.features, features))
        return text.replace("{segments}", _format_names(self.segments, segments))


def _format_names(indices: Sequence[int], names: Sequence[str] | None) -> str:
    shown = [repr(names[i]) if names else str(i) for i in indices[:_MAX_NAMES]]
    more = len(indices) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def format_suggestion(word: str, known: Iterable[str]) -> str:
    """Guess what was meant."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""


class FitError(ValueError):
    """What was asked cannot be computed; the message says what, where and what to do."""

    def __init__(
        self, text: str, features: Sequence[int] = (), segments: Sequence[int] = ()
    ) -> None:
        indices = (tuple(int(i) for i in some) for some in (features, segments))
        self.message = FitWarning(text, *indices)
        super().__init__(self.message.render())

    def __reduce__(self) -> tuple[type[FitError], tuple[str, tuple[int, ...], tuple[int, ...]]]:
        return FitError, (self.message.text, self.message.features, self.message.segments)


class ClusterLost(RuntimeError):
    """The cluster went away under a pass; the message says how to go on."""
