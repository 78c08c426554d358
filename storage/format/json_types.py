"""Check JSON values against types: numbers, text, lists, mappings and `TypedDict`.

Checks are strict: True is not a whole number, and 1.0 is none either. Entries that a `TypedDict`
does not name are allowed. `Annotated[T, rule]` adds a rule: a function that raises `ValueError`
with a text such as "should be at least 1".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

Check = Callable[[Any], None]
_TYPE_RULES = {
    bool: "should be true or false",
    int: "should be a whole number",
    float: "should be a number",
    str: "should be text",
    list: "should be a list",
    dict: "should be a mapping",
    NoneType: "should be null",
}


class JsonTypeError(ValueError):
    """A value does not have its type.

    Attributes
    ----------
    place
        Keys and indices that lead to the value.
    value
        The value.
    rule
        What it should be.
    is_missing
        Whether there is no value.
    """

    def __init__(
        self, value: Any, rule: str, place: tuple[str | int, ...] = (), is_missing: bool = False
    ) -> None:
        self.value, self.rule, self.place, self.is_missing = value, rule, place, is_missing
        super().__init__(rule)


class Limits(NamedTuple):
    """A rule for numbers: from `low` to `high`, both included."""

    low: float
    high: float

    def __call__(self, value: float) -> None:
        """Raise `ValueError` if the number is outside, or not a number."""
        if not self.low <= value <= self.high:
            raise ValueError(f"should be from {self.low} to {self.high}")


def check_json_type(value: Any, kind: Any) -> None:
    """Raise `JsonTypeError` if a JSON value does not have the type."""
    _make_check(kind)(value)


@cache
def _make_check(kind: Any) -> Check:
    """Return the check of a type. It is made once, because manifests have long lists."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda value: None
    if is_typeddict(kind):
        return _make_record_check(kind)
    if origin is Annotated:
        return _make_rule_check(_make_check(arguments[0]), kind.__metadata__)
    if origin is Literal:
        rule = f"should be {' or '.join(map(repr, arguments))}"
        return lambda value: _require(value in arguments, value, rule)
    if origin in (Union, UnionType):
        return _make_union_check([_make_check(argument) for argument in arguments])
    if origin in (list, tuple):
        return _make_list_check(origin, _make_check(arguments[0]))
    if origin is dict:
        return _make_mapping_check(_make_check(arguments[0]), _make_check(arguments[1]))
    return _make_simple_check(kind)


def _require(is_valid: bool, value: Any, rule: str) -> None:
    if not is_valid:
        raise JsonTypeError(value, rule)


def _make_simple_check(kind: type) -> Check:
    """Check for a plain type. Text may have lone surrogates, as the data may contain them."""
    rule = _TYPE_RULES[kind]
    kinds = (float, int) if kind is float else (kind,)
    return lambda value: _require(type(value) in kinds, value, rule)


def _make_rule_check(check_type: Check, rules: Iterable[Check]) -> Check:
    def check(value: Any) -> None:
        check_type(value)
        try:
            for rule in rules:
                rule(value)
        except ValueError as error:
            raise JsonTypeError(value, str(error)) from None

    return check


def _make_union_check(checks: list[Check]) -> Check:
    """Accept a value of any of the types; the error is that of the type it resembles most."""

    def check(value: Any) -> None:
        errors = []
        for check_type in checks:
            try:
                return check_type(value)
            except JsonTypeError as error:
                errors.append(error)
        raise max(errors, key=lambda error: len(error.place))

    return check


def _make_list_check(kind: type, check_item: Check) -> Check:
    def check(value: Any) -> None:
        _require(isinstance(value, kind), value, _TYPE_RULES[list])
        for index, item in enumerate(value):
            _check_inside(check_item, item, index)

    return check


def _make_mapping_check(check_key: Check, check_item: Check) -> Check:
    def check(value: Any) -> None:
        _require(isinstance(value, dict), value, _TYPE_RULES[dict])
        for key, item in value.items():
            check_key(key)
            _check_inside(check_item, item, key)

    return check


def _make_record_check(kind: Any) -> Check:
    hints = get_type_hints(kind, include_extras=True)
    # `__required_keys__` counts NotRequired entries of annotations that are strings.
    is_optional = {
        name: get_origin(hint) is NotRequired or name not in kind.__required_keys__
        for name, hint in hints.items()
    }
    kinds = {
        name: get_args(hint)[0] if get_origin(hint) is NotRequired else hint
        for name, hint in hints.items()
    }

    def check(value: Any) -> None:
        _require(isinstance(value, dict), value, _TYPE_RULES[dict])
        for name, entry_kind in kinds.items():
            if name in value:
                _check_inside(_make_check(entry_kind), value[name], name)
            elif not is_optional[name]:
                raise JsonTypeError(None, "should exist", (name,), is_missing=True)

    return check


def _check_inside(check: Check, value: Any, key: str | int) -> None:
    try:
        check(value)
    except JsonTypeError as error:
        error.place = (key, *error.place)
        raise
