"""Errors that the user can correct.

Like messages in `pipeline.errors`, they name parameters by placeholders, such as `{overwrite}` or
`{missing=NA}`, which `flows.cli.errors` spells as options.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from storage.quoting import RAW_OPTIONS, unquote

# Quoted names and values may contain braces, as in {levels="{x}"<y}.
_VALUE = r"((?:(?<=[=:,<])\"(?:[^\"]|\"\")*+\"(?=[=:,<}])|[^{}])*+)"
_PLACEHOLDER = re.compile(rf"(?<![\w/.'\"-])\{{([A-Za-z_]\w*)(?:={_VALUE})?\}}(?![\w/]|\.\w)")

_OUT_OF_MEMORY_SIGNS = ("can't start new thread", "failed to map segment")


class DataError(ValueError):
    """The data cannot be used; the message states problem, place and remedy.

    Parameters
    ----------
    text
        The message, with placeholders for parameters; `str(error)` spells them as Python does.
    parameter
        Name of the parameter it concerns. A message that does not mention it begins with it.
    """

    def __init__(self, text: str, *, parameter: str | None = None) -> None:
        self.text, self.parameter = text, parameter
        message = self.render(_spell_in_python)
        super().__init__(" ".join(message.split()) if "\n" in message else message)

    def render(self, spell: Callable[[str, str | None], str]) -> str:
        """Return the message; `spell` takes a parameter's name and the value suggested, if any."""
        names = {match[1] for match in _PLACEHOLDER.finditer(self.text)}
        message = _PLACEHOLDER.sub(lambda match: spell(match[1], _read_value(match)), self.text)
        if self.parameter is None or self.parameter in names:
            return message
        return f"{spell(self.parameter, None)}: {message}"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.text, parameter=self.parameter), ()


def _read_value(placeholder: re.Match[str]) -> str | None:
    name, value = placeholder.groups()
    return unquote(value) if value and name in RAW_OPTIONS else value


def _spell_in_python(name: str, value: str | None) -> str:
    if value is None:
        return name
    if value.replace(".", "").isdecimal():
        return f"{name}={value}"
    return f"{name}={value!r}" if '"' in value else f'{name}="{value}"'


class FolderInUseError(DataError):
    """Another process is writing to the folder."""


class LeaseLostError(DataError):
    """Another process took over a folder, because this one was suspended or cut off."""


class DataChangedError(DataError):
    """A dataset or artifact was updated or replaced since it was opened."""


class DamagedChunkError(DataError):
    """A chunk of a dataset is missing or does not have the recorded checksum."""


class StoreUnreachableError(DataError):
    """An object store refuses the request or does not answer, so its contents are unknown."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether memory is exhausted, perhaps for a thread or for code that is loaded."""
    if isinstance(error, ImportError | RuntimeError):
        return any(sign in str(error) for sign in _OUT_OF_MEMORY_SIGNS)
    return isinstance(error, MemoryError)
