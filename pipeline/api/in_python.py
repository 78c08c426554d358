"""Says as Python what messages say as options of commands.

Models and datasets name options in what they tell: `--components 3`, `--set repair=nearest`.
`pipeline.api.functions` takes the same names as arguments; `use_argument_names` gives some of them others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from pipeline.errors import FitError, FitWarning

_VALUE = r"[\w.,+-]*\w"
_SEGMENTS = "Ingest with --segment-by COLUMN"
_OPTION = re.compile(
    rf"{_SEGMENTS}|--(?:set (?P<setting>\w+)(?:=(?P<value>{_VALUE}))?"
    r"|(?P<argument>model|components|layers|seed|split|label)\b"
    r"(?: (?P<number>\d+(?:,\d+)*|auto)\b)?)"
)
_WORDS = {"yes": "True", "no": "False"}
_NAMES: ContextVar[Mapping[str, str]] = ContextVar("names", default=MappingProxyType({}))


def translate_options(text: str) -> str:
    """Write options as arguments: `--set repair=nearest` is `repair="nearest"`."""
    return _OPTION.sub(_translate_match, text)


def _translate_match(found: re.Match[str]) -> str:
    if found[0] == _SEGMENTS:
        return f"Give the segment of each row by {_get_argument_name('segment')}"
    name, value = found["setting"] or found["argument"], found["value"] or found["number"]
    name = _get_argument_name(name)
    return name if value is None else f"{name}={_format_literal(value)}"


def _get_argument_name(argument: str) -> str:
    return _NAMES.get().get(argument, argument)


def _format_literal(value: str) -> str:
    if "," in value:
        return f"({', '.join(map(_format_literal, value.split(',')))})"
    try:
        float(value)
    except ValueError:
        return _WORDS.get(value, f'"{value}"')
    return value


@contextmanager
def use_argument_names(names: Mapping[str, str]) -> Iterator[None]:
    """Let what is said inside call arguments by other names: those of an estimator."""
    token = _NAMES.set(names)
    try:
        yield
    finally:
        _NAMES.reset(token)


def format_for_python(
    notice: FitWarning, features: Sequence[str] | None = None, segments: Sequence[str] | None = None
) -> str:
    """Write a notice out; names in it stay as they are."""
    spoken = FitWarning(translate_options(notice.text), notice.features, notice.segments)
    return spoken.render(features, segments)


@contextmanager
def translate_errors(
    features: Sequence[str] | None = None, segments: Sequence[str] | None = None
) -> Iterator[None]:
    """Let errors inside name features and segments, and arguments instead of options."""
    try:
        yield
    except FitError as error:
        raise FitError(format_for_python(error.message, features, segments)) from error
    except ValueError as error:
        if (said := translate_options(str(error))) == str(error):
            raise
        raise type(error)(said) from error
