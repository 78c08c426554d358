"""Says as Python what messages say as options of commands.

Models and datasets name options in what they tell: `--components 3`, `--set repair=nearest`.
`pipeline.api.functions` takes the same names as arguments; `naming` gives some of them others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType

from pipeline.errors import FitError, Notice

_VALUE = r"[\w.,+-]*\w"
_SEGMENTS = "Ingest with --segment-by COLUMN"
_OPTION = re.compile(
    rf"{_SEGMENTS}|--(?:set (?P<setting>\w+)(?:=(?P<value>{_VALUE}))?"
    r"|(?P<argument>model|components|layers|seed|split|label)\b"
    r"(?: (?P<number>\d+(?:,\d+)*|auto)\b)?)"
)
_WORDS = {"yes": "True", "no": "False"}
_NAMES: ContextVar[Mapping[str, str]] = ContextVar("names", default=MappingProxyType({}))


def in_python(text: str) -> str:
    """Write options as arguments: `--set repair=nearest` is `repair="nearest"`."""
    return _OPTION.sub(_argument, text)


def _argument(found: re.Match[str]) -> str:
    if found[0] == _SEGMENTS:
        return f"Give the segment of each row by {_named('segment')}"
    name, value = found["setting"] or found["argument"], found["value"] or found["number"]
    name = _named(name)
    return name if value is None else f"{name}={_literal(value)}"


def _named(argument: str) -> str:
    return _NAMES.get().get(argument, argument)


def _literal(value: str) -> str:
    if "," in value:
        return f"({', '.join(map(_literal, value.split(',')))})"
    try:
        float(value)
    except ValueError:
        return _WORDS.get(value, f'"{value}"')
    return value


@contextmanager
def naming(names: Mapping[str, str]) -> Iterator[None]:
    """Let what is said inside call arguments by other names: those of an estimator."""
    token = _NAMES.set(names)
    try:
        yield
    finally:
        _NAMES.reset(token)


def told_in_python(
    notice: Notice, features: Sequence[str] | None = None, segments: Sequence[str] | None = None
) -> str:
    """Write a notice out; names in it stay as they are."""
    spoken = Notice(in_python(notice.text), notice.features, notice.segments)
    return spoken.render(features, segments)


@contextmanager
def speaking_python(
    features: Sequence[str] | None = None, segments: Sequence[str] | None = None
) -> Iterator[None]:
    """Let errors inside name features and segments, and arguments instead of options."""
    try:
        yield
    except FitError as error:
        raise FitError(told_in_python(error.notice, features, segments)) from error
    except ValueError as error:
        if (said := in_python(str(error))) == str(error):
            raise
        raise type(error)(said) from error
