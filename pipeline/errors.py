"""Errors and warnings that call features, segments and parameters by the names their reader uses.

The text of an error or a warning may contain placeholders:

| placeholder | command line | Python |
|---|---|---|
| `{features}`, `{segments}` | their names | their names |
| `{components}` | `--components` | `components` |
| `{components=3}` | `--components 3` | `components=3` |
| `{repair=nearest}` | `--set repair=nearest` | `repair="nearest"` |
| `{reverse=FEATURES}` | `fit with --reverse N5,E2`, the features' names | `… reverse="N5,E2"` |

A text about no feature or segment may mean an argument of that name, `segments` of estimators.
Python's spelling is the default; `flows.cli.errors` spells for the command line. Braces inside a
path or a quoted value, such as `data/{year}.csv`, are not placeholders.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

SpellParameter = Callable[[str, str | None], str]
"""Spells a parameter, given its name and, if the text suggests one, its value."""

# Quoted names and values may contain braces, as in {levels="{x}"<y}.
_VALUE = r"((?:(?<=[=:,<])\"(?:[^\"]|\"\")*+\"(?=[=:,<}])|[^{}])*+)"
_PLACEHOLDER = re.compile(rf"(?<![\w/.'\"-])\{{([A-Za-z_]\w*)(?:={_VALUE})?\}}(?![\w/]|\.\w)")
_NUMBER = re.compile(r"[+-]?\d+\.?\d*(e[+-]?\d+)?")
_LITERALS = {"yes": "True", "no": "False"}
_MAX_NAMES = 8
FEATURES = "FEATURES"
"""The value of a placeholder that stands for advice to reverse the message's features."""
REVERSED = " (reversed)"
"""The end of the name of a reversed feature."""
_MAX_PASTED = 100  # names in an option
LEAVE_OUT = "Leave them out by {drop=NAME}"
"""Advice about features that cannot be used, without a full stop."""


def spell_in_python(name: str, value: str | None) -> str:
    """Spell a parameter as a Python argument: `components`, `repair="nearest"`."""
    return name if value is None else f"{name}={_format_literal(value)}"


def keep_placeholder(name: str, value: str | None) -> str:
    """Leave a parameter as a placeholder, to be spelled by `spell_parameters` later."""
    return f"{{{name}}}" if value is None else f"{{{name}={value}}}"


def spell_parameters(text: str, spell: SpellParameter = spell_in_python) -> str:
    """Replace the placeholders of parameters in a text, such as a warning in a manifest."""
    return _PLACEHOLDER.sub(lambda match: spell(match[1], match[2]), text)


def _format_literal(value: str) -> str:
    numbers = value.split(",")
    if all(map(_NUMBER.fullmatch, numbers)):
        return value if len(numbers) == 1 else f"({', '.join(numbers)})"
    return _LITERALS.get(value, repr(value) if '"' in value else f'"{value}"')


@dataclass(frozen=True)
class FitWarning:
    """A message about some features, segments or a parameter.

    Attributes
    ----------
    text
        The message; this module's docstring lists the placeholders.
    features, segments
        Indices of the features and segments it concerns, or their names. The features are those of
        blocks: planes, if features have several levels.
    parameter
        Name of the argument or setting it concerns. If `text` does not mention it, the message
        begins with it: `components: …`.
    """

    text: str
    features: tuple[int, ...] | tuple[str, ...] = ()
    segments: tuple[int, ...] | tuple[str, ...] = ()
    parameter: str | None = None

    def render(
        self,
        features: Sequence[str] | None = None,
        segments: Sequence[str] | None = None,
        spell: SpellParameter = spell_in_python,
    ) -> str:
        """Return the message with its placeholders replaced.

        Parameters
        ----------
        features, segments
            The names that indices stand for, (n_features,) and (n_segments,); None shows indices.
        spell
            Spells a parameter.
        """
        names = {"features": (self.features, features), "segments": (self.segments, segments)}
        mentioned = set()

        def replace_placeholder(match: re.Match[str]) -> str:
            name, value = match.groups()
            if value == FEATURES:
                own = [str(name) for name in _find_names(self.features, features or ())]
                return _advise_reversal(own, name, spell)
            if name in names and names[name][0]:
                return _format_names(*names[name])
            mentioned.add(name)
            return spell(name, value)

        message = _PLACEHOLDER.sub(replace_placeholder, self.text)
        if self.parameter is None or self.parameter in mentioned:
            return message
        return f"{spell(self.parameter, None)}: {message}"

    def with_names(self, features: Sequence[str], segments: Sequence[str] = ()) -> FitWarning:
        """Return the warning with names in place of indices; without names, indices stay."""
        return replace(
            self,
            features=_find_names(self.features, features),
            segments=_find_names(self.segments, segments),
        )

    def with_parameter_names(self, names: Mapping[str, str]) -> FitWarning:
        """Return the warning with other names of parameters, such as `n_components`."""
        text = spell_parameters(
            self.text, lambda name, value: keep_placeholder(names.get(name, name), value)
        )
        parameter = self.parameter and names.get(self.parameter, self.parameter)
        return replace(self, text=text, parameter=parameter)


def _find_names(indices: Sequence[int] | Sequence[str], names: Sequence[str]) -> Any:
    return tuple(names[i] if names and isinstance(i, int) else i for i in indices)


def _advise_reversal(features: Sequence[str], name: str, spell: SpellParameter) -> str:
    """Return advice on features to reverse by a parameter, and on those reversed by mistake."""
    again = [own.removesuffix(REVERSED) for own in features if own.endswith(REVERSED)]
    others = [own for own in features if not own.endswith(REVERSED)]
    advice = []
    if others:
        value = None if len(others) > _MAX_PASTED else ",".join(map(quote_name, others))
        advice.append(f"fit with {spell(name, value)}")
    if again:
        names = "them" if len(again) > _MAX_PASTED else ", ".join(map(quote_name, again))
        advice.append(f"leave {names} out of the reversed items")
    return " and ".join(advice)


def _format_names(indices: Sequence[int] | Sequence[str], names: Sequence[str] | None) -> str:
    first = _find_names(indices[:_MAX_NAMES], names or ())
    n_more = len(indices) - len(first)
    return ", ".join(map(repr, first)) + (f" and {n_more} more" if n_more > 0 else "")


def quote_name(name: str) -> str:
    """Quote a name for an option, if necessary; quotes inside are doubled."""
    is_plain = name == name.strip() and not {*name} & {*',:<="{}'}
    return name if is_plain else '"' + name.replace('"', '""') + '"'


def find_similar(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice most similar to the word, or None if there is none."""
    choices = list(choices)
    spellings = {choice.casefold(): choice for choice in choices}
    same = spellings.get(word.casefold())
    matches = [same] if same else difflib.get_close_matches(word, choices, n=1)
    return matches[0] if matches else None


def format_suggestion(word: str, choices: Iterable[str]) -> str:
    """Return ` Did you mean …?` with the choice most similar to the word, or an empty text."""
    similar = find_similar(word, choices)
    return "" if similar is None else f" Did you mean {similar!r}?"


def format_share(share: float, decimals: int = 0) -> str:
    """Format a share as a percentage, with more decimals where rounding would hide a difference.

    Only shares of 0 and 1, but for rounding errors of arithmetic, are `0%` and `100%`.
    """
    if not 1e-9 < share < 1 - 1e-9:
        return f"{share:.{decimals}%}"
    texts = (f"{share:.{n}%}" for n in range(decimals, 9))
    return next(text for text in texts if float(text[:-1]) not in (0, 100))


class FitError(ValueError):
    """A computation is impossible as requested; the message states problem, place and remedy.

    Parameters
    ----------
    text, features, segments, parameter
        See `FitWarning`. `str(error)` spells parameters as Python does.

    Attributes
    ----------
    message
        The message as a `FitWarning`, which can be rendered with names or with another spelling.
    """

    def __init__(
        self,
        text: str,
        features: Sequence[int] | Sequence[str] = (),
        segments: Sequence[int] | Sequence[str] = (),
        *,
        parameter: str | None = None,
    ) -> None:
        self.message = FitWarning(text, _to_tuple(features), _to_tuple(segments), parameter)
        message = self.message.render()
        super().__init__(" ".join(message.split()) if "\n" in message else message)

    @classmethod
    def from_message(cls, message: FitWarning) -> Self:
        """Return an error with this message."""
        return cls(message.text, message.features, message.segments, parameter=message.parameter)

    def with_names(self, features: Sequence[str], segments: Sequence[str] = ()) -> Self:
        """Return the error with names in place of indices; without names, indices stay."""
        return self.from_message(self.message.with_names(features, segments))

    def with_parameter_names(self, names: Mapping[str, str]) -> Self:
        """Return the error with other names of parameters, such as `n_components`."""
        return self.from_message(self.message.with_parameter_names(names))

    def with_prefix(self, prefix: str) -> Self:
        """Return the error with `prefix: ` before its text."""
        text = self.message.text
        if (name := self.message.parameter) and not re.search(rf"\{{{name}[=}}]", text):
            text = f"{{{name}}}: {text}"
        return self.from_message(replace(self.message, text=f"{prefix}: {text}"))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(self.from_message, self.message), ()


def _to_tuple(values: Sequence[int] | Sequence[str]) -> Any:
    return tuple(value if isinstance(value, str) else int(value) for value in values)


class ClusterLost(RuntimeError):
    """The cluster was lost during a pass; the message may contain placeholders."""
