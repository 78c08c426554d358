"""Types of what manifests hold, as pydantic checks them."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

from pydantic import AfterValidator, Field

LARGEST = 2**63 - 1
_NUMBERS = frozenset(
    {"bool", *(f"{kind}{8 * size}" for kind in ("int", "uint") for size in (1, 2, 4, 8))}
    | {f"float{8 * size}" for size in (2, 4, 8, 12, 16)}
)
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Checksum = Annotated[int, Field(ge=0, lt=2**32)]


def _distinct(names: list[str]) -> list[str]:
    if len(names) != len({*names}):
        raise ValueError("names that differ")
    return names


def _text(value: Any) -> Any:
    """Take any text: what a person wrote may hold half of a pair of surrogates."""
    if not isinstance(value, str):
        raise ValueError("text")
    return value


Names = Annotated[list[str], AfterValidator(_distinct)]
Texts = Annotated[list[Annotated[Any, AfterValidator(_text)]], AfterValidator(_distinct)]


def _growing(pages: list[list[int]]) -> list[list[int]]:
    """Take pages that end behind each other: so many texts, so many bytes."""
    ends = [[0, 0], *(page[:2] for page in pages)]
    if not all(a < c and b < d for (a, b), (c, d) in pairwise(ends)):
        raise ValueError("pages of texts that end behind each other")
    return pages


Pages = Annotated[
    list[Annotated[list[Count], Field(min_length=3, max_length=3)]],
    Field(min_length=1),
    AfterValidator(_growing),
]
"""Of the texts of a column: numbers of texts and of bytes up to the end, and a checksum."""


def _plain(value: Any, depth: int = 0) -> Any:
    """Take what can be shown: text, finite numbers of 64 bits, and these in lists and mappings."""
    if depth > 20 or (isinstance(value, int) and abs(value) > LARGEST):
        raise ValueError("numbers of 64 bits in lists that are not deep")
    inner = (*value, *value.values()) if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for one in inner:
            _plain(one, depth + 1)
    if isinstance(value, str):
        value.encode()  # half of a pair of surrogates is text to JSON, and to nothing else
    return value


Plain = Annotated[Any, AfterValidator(_plain)]


def _packed(described: list[Any]) -> list[Any]:
    """Take name, type and shape of an array among those packed in one."""
    match described:
        case [str(), str(dtype), [*shape]] if dtype in _NUMBERS:
            if all(type(size) is int and 0 <= size <= LARGEST for size in shape):
                return described
    raise ValueError("name, type and shape of an array of numbers")


PackedArray = Annotated[list[Any], AfterValidator(_packed)]
