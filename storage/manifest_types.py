"""Types of what manifests hold, as pydantic checks them."""

from __future__ import annotations

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


Names = Annotated[list[str], AfterValidator(_distinct)]


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
