"""What a person is told, naming features by their own names where these are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_NAMED = 8


@dataclass(frozen=True)
class Notice:
    """A sentence about some features.

    Attributes
    ----------
    text
        The sentence; `{features}` in it stands for their names.
    features
        Indices of the features.
    """

    text: str
    features: tuple[int, ...] = ()

    def render(self, names: Sequence[str] | None = None) -> str:
        """Write the sentence out; without names, indices stand for them."""
        shown = [repr(names[i]) if names else str(i) for i in self.features[:_NAMED]]
        more = len(self.features) - len(shown)
        listed = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
        return self.text.replace("{features}", listed)


class FitError(ValueError):
    """What was asked cannot be computed; the message says what, where and what to do."""

    def __init__(self, text: str, features: Sequence[int] = ()) -> None:
        self.notice = Notice(text, tuple(int(i) for i in features))
        super().__init__(self.notice.render())

    def __reduce__(self) -> tuple[type[FitError], tuple[str, tuple[int, ...]]]:
        return FitError, (self.notice.text, self.notice.features)


class ClusterLost(RuntimeError):
    """The cluster went away under a pass; the message says how to go on."""
