"""Which JSON values have a type, and what the error of others names."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from storage.format.manifest_schemas import JsonTypeError, Limits, check_json_type


class Page(TypedDict):
    number: Annotated[int, Limits(1, 9)]
    title: NotRequired[str]


class Book(TypedDict, total=False):
    pages: list[Page]
    price: float | None
    cover: Literal["hard", "soft"]
    copies: dict[str, int]


class NovelBook(Book):
    author: str


NOVEL = {
    "author": "Zoë",
    "pages": [{"number": 1}, {"number": 2, "title": "b"}],
    "price": 3,
    "cover": "soft",
    "copies": {"shelf": 2},
    "unknown": object(),
}


def test_a_valid_value_is_accepted() -> None:
    check_json_type(NOVEL, NovelBook)
    check_json_type({"author": ""}, NovelBook)
    check_json_type("lone surrogate \ud800", str)
    check_json_type((1, 2), tuple[int, ...] | None)


@pytest.mark.parametrize(
    ("value", "kind", "place", "rule"),
    [
        (True, int, (), "should be a whole number"),
        (1.0, int, (), "should be a whole number"),
        (True, float, (), "should be a number"),
        ("1", float, (), "should be a number"),
        (1, bool, (), "should be true or false"),
        (1, Literal["1"], (), "should be '1'"),
        (b"a", str, (), "should be text"),
        (float("nan"), Annotated[float, Limits(0, 1)], (), "should be from 0 to 1"),
        (10**400, Annotated[float, Limits(0, 1)], (), "should be from 0 to 1"),
        ([1, 2, "x"], list[int], (2,), "should be a whole number"),
        ("ab", list[str], (), "should be a list"),
        ({"author": "a", "pages": [{"number": 10}]}, NovelBook, ("pages", 0, "number"), "from 1"),
        ({"author": "a", "pages": [{"title": 1}]}, NovelBook, ("pages", 0, "number"), "exist"),
        ({"author": "a", "pages": [3]}, NovelBook, ("pages", 0), "should be a mapping"),
        ({"author": "a", "price": "3"}, NovelBook, ("price",), "should be a number"),
        ({"author": "a", "cover": "no"}, NovelBook, ("cover",), "should be 'hard' or 'soft'"),
        ({"author": "a", "copies": {"shelf": None}}, NovelBook, ("copies", "shelf"), "whole"),
        ({}, NovelBook, ("author",), "should exist"),
        ([], NovelBook, (), "should be a mapping"),
        ({"number": "1"}, list[int] | Page, ("number",), "should be a whole number"),
    ],
)
def test_another_value_is_refused_with_its_place(
    value: Any, kind: Any, place: tuple[Any, ...], rule: str
) -> None:
    with pytest.raises(JsonTypeError, match=rule) as refused:
        check_json_type(value, kind)
    assert refused.value.place == place
    assert refused.value.is_missing == (rule.endswith("exist"))
