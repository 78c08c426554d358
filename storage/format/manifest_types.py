"""Types of what manifests hold, as pydantic checks them."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any

from pydantic import AfterValidator, Field

MAX_INT64 = 2**63 - 1
_NUMBER_DTYPES = frozenset(
    {"bool", *(f"{kind}{8 * size}" for kind in ("int", "uint") for size in (1, 2, 4, 8))}
    | {f"float{8 * size}" for size in (2, 4, 8, 12, 16)}
)
Count = Annotated[int, Field(ge=0, le=MAX_INT64)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Checksum = Annotated[int, Field(ge=0, lt=2**32)]


def _check_unique(names: list[str]) -> list[str]:
    if len(names) != len({*names}):
        raise ValueError("names that differ")
    return names


def _check_text(value: Any) -> Any:
    """Take any text: what a person wrote may hold half of a pair of surrogates."""
    if not isinstance(value, str):
        raise ValueError("text")
    return value


UniqueNames = Annotated[list[str], AfterValidator(_check_unique)]
UniqueTexts = Annotated[
    list[Annotated[Any, AfterValidator(_check_text)]], AfterValidator(_check_unique)
]


def _check_pages(pages: list[list[int]]) -> list[list[int]]:
    """Take pages that end behind each other: so many texts, so many bytes."""
    ends = [[0, 0], *(page[:2] for page in pages)]
    if not all(a < c and b < d for (a, b), (c, d) in pairwise(ends)):
        raise ValueError("pages of texts that end behind each other")
    return pages


TextPages = Annotated[
    list[Annotated[list[Count], Field(min_length=3, max_length=3)]],
    Field(min_length=1),
    AfterValidator(_check_pages),
]
"""Of the texts of a column: numbers of texts and of bytes up to the end, and a checksum."""


def _check_json_value(value: Any, depth: int = 0) -> Any:
    """Take what can be shown: text, finite numbers of 64 bits, and these in lists and mappings."""
    if depth > 20 or (isinstance(value, int) and abs(value) > MAX_INT64):
        raise ValueError("numbers of 64 bits in lists that are not deep")
    inner = (*value, *value.values()) if isinstance(value, dict) else value
    if isinstance(value, dict | list):
        for one in inner:
            _check_json_value(one, depth + 1)
    if isinstance(value, str):
        value.encode()  # half of a pair of surrogates is text to JSON, and to nothing else
    return value


JsonValue = Annotated[Any, AfterValidator(_check_json_value)]


def _check_packed_array(described: list[Any]) -> list[Any]:
    """Take name, type and shape of an array among those packed in one."""
    match described:
        case [str(), str(dtype), [*shape]] if dtype in _NUMBER_DTYPES:
            if all(type(size) is int and 0 <= size <= MAX_INT64 for size in shape):
                return described
    raise ValueError("name, type and shape of an array of numbers")


PackedArrayRecord = Annotated[list[Any], AfterValidator(_check_packed_array)]
