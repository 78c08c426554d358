"""Ordered levels of features: how options define them, and which of the candidates occur."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from storage.dataset.feature_levels import BINARY_LEVELS, MAX_LEVELS, format_levels
from storage.errors import DataError
from storage.quoting import (
    join_levels,
    parse_float,
    quote,
    quote_prefix,
    quote_raw,
    split_features,
    split_quoted,
    unquote,
)
from storage.sources.value_codes import (
    MISSING,
    ReadOptions,
    ValueMap,
    find_map,
    parse_number,
)

_RANGE = re.compile(r"(.*):(-?\d+)-(-?\d+)")
_AUTO = ":auto"
_INTEGER = re.compile(r"-?\d+")
_POSITIVE_CODE, _NEGATIVE_CODE = (re.compile(p) for p in (r"9*[789]|7+|8+", r"-(9*[789]|7+|8+|1)"))
_CANDIDATES = tuple(map(str, range(-100, 150)))  # as many as there are codes of levels


def parse_levels(text: str) -> ValueMap:
    """Parse `LEVEL<LEVEL<LEVEL`, or `FEATURES:LEVEL<LEVEL<LEVEL` for some features only.

    Raises `DataError` if these are not 2 to 16 different levels.
    """
    columns, order = split_features(text, "<")
    levels = [*map(unquote, split_quoted(order, "<"))]
    return make_level_map(columns, levels, f"{{levels={text}}}")


def parse_nominal(text: str) -> ValueMap:
    """Parse `FEATURES:CATEGORY,CATEGORY,CATEGORY`, or integers as `parse_ordinal` does.

    Raises `DataError` if these are not 2 to 16 different categories.
    """
    columns, listed = split_features(text, ",")
    categories = [*map(unquote, split_quoted(listed, ","))]
    if len(categories) == 1:
        return replace(parse_ordinal(text, "nominal"), is_nominal=True)
    if listed == text:
        raise DataError(
            f"{{nominal={text}}}: there is no feature before the categories. Write "
            "FEATURES:CATEGORY,CATEGORY, with * for all features, and repeat the option for others."
        )
    return make_level_map(columns, categories, f"{{nominal={text}}}", is_nominal=True)


def parse_ordinal(text: str, option: str = "ordinal") -> ValueMap:
    """Parse `FEATURES:LOW-HIGH`, whose levels are these integers, `FEATURES` or `FEATURES:auto`.

    Without a range, the map has candidates, or is automatic. `option` is the name in messages.

    Raises `DataError` if the range is not 2 to 16 integers.
    """
    if text.endswith(_AUTO) and option == "ordinal":
        return ValueMap(unquote(text.removesuffix(_AUTO)), (), is_continuous=True, is_auto=True)
    match = _RANGE.fullmatch(text)
    if match is None:
        codes = {value: code for code, value in enumerate(_CANDIDATES)}
        return ValueMap(unquote(text), tuple(codes.items()), _CANDIDATES)
    low, high = int(match[2]), int(match[3])
    if not 1 <= high - low < MAX_LEVELS:
        raise DataError(
            f"{{{option}={text}}}: {low}-{high} is not a range of 2 to {MAX_LEVELS} integers. "
            "Write FEATURES:LOW-HIGH."
        )
    levels = [*map(str, range(low, high + 1))]
    value_map = make_level_map(unquote(match[1]), levels, f"{{{option}={text}}}")
    return replace(value_map, is_range=True)


def make_level_map(
    columns: str,
    levels: Sequence[str],
    place: str,
    codes: Sequence[tuple[str, int]] | None = None,
    *,
    is_nominal: bool = False,
) -> ValueMap:
    """Make the map of features with these levels.

    Parameters
    ----------
    columns
        Name or pattern of the features.
    levels
        Names of the levels, in increasing order.
    place
        Where the levels come from, for messages.
    codes
        Values and their levels, by default the names of the levels.
    is_nominal
        Whether the levels are categories without an order.

    Raises
    ------
    DataError
        If a name is empty, or these are not 2 to 16 different levels.
    """
    if any(level.strip() == "" for level in levels):
        raise DataError(f"{place}: a level has no name. Name every level.")
    words = [level.strip().casefold() for level in levels]
    numbers = map(parse_number, words)
    names = [
        word if number is None or math.isnan(number) else number
        for word, number in zip(words, numbers, strict=True)
    ]
    if len({*names}) < len(names):
        second = next(k for k, name in enumerate(names) if name in names[:k])
        first, repeated = levels[names.index(names[second])], levels[second]
        problem = f"the level {repeated!r} occurs twice"
        if first != repeated:  # such as 1 and true
            problem = f"the levels {first!r} and {repeated!r} cannot be told apart"
        raise DataError(f"{place}: {problem}. Name each level once, or rename one.")
    noun = "categories" if is_nominal else "levels"
    if len(levels) == 1:
        order = "A,B,C" if is_nominal else "LOW<MIDDLE<HIGH"
        raise DataError(
            f"{place}: there is one level, {levels[0]!r}, but a feature needs at least two. "
            f"Name all {noun}{' in increasing order' * (not is_nominal)}, as in {order}."
        )
    if len(levels) > MAX_LEVELS:
        raise DataError(
            f"{place}: there are {len(levels)} {noun}, but at most {MAX_LEVELS} are possible. "
            "Merge some of them, use {threshold} for numbers, or leave the feature out."
        )
    own = [(word, code) for code, word in enumerate(words)]
    return ValueMap(columns, tuple(codes or own), tuple(levels), is_nominal=is_nominal)


def match_labels(
    labels: Mapping[str, str], option: ValueMap, stated: ValueMap | None, name: str, place: str
) -> ValueMap:
    """Return the map of a column whose codes have labels: all values by code, or all by label.

    The codes count for a range and for maps to 0 and 1, the labels for other levels, if any of
    them matches. Values without a label are named by their code.

    Parameters
    ----------
    labels
        Labels of the codes, from the lowest code.
    option
        The map of the feature; it has no candidates.
    stated
        The map that the options state; None if the levels are those of earlier rows.
    name, place
        The feature, and where it is, for messages.

    Raises
    ------
    DataError
        If codes and labels fit with different results, and no option names the feature.
    """
    by_code = {code: option.find_code(code) for code in labels}
    by_label = {code: option.find_code(label) for code, label in labels.items()}
    fits = [None not in found.values() for found in (by_code, by_label)]
    matches = [{*found.values()} != {None} for found in (by_code, by_label)]
    is_known = stated is None or stated.has_candidates
    is_range = stated is not None and stated.is_range
    reads_codes = is_range or not matches[1] or (fits == [True, False] and is_known)
    if not option.levels:
        reads_codes = fits[0] or not matches[1]
    differ = any(
        None not in pair and pair[0] != pair[1]
        for pair in zip(by_code.values(), by_label.values(), strict=True)
    )
    if option.levels and differ:
        # Known levels that increase with the codes were named by their labels.
        is_certain = is_known and [*by_label.values()] == sorted(c or 0 for c in by_label.values())
        is_certain |= stated is not None and stated.columns == name
        if (all(fits) and not is_certain) or not (reads_codes or fits[1]):
            integers = [n for n in map(parse_number, option.levels) if n is not None]
            low, high = int(min(integers)), int(max(integers))
            raise DataError(
                f"{place}: its codes and its labels are both levels, but different ones. Use "
                f"{{ordinal={quote_prefix(name)}{low}-{high}}} for the codes, or "
                f"{{levels={quote_prefix(name)}{join_levels(option.levels)}}} for the labels."
            )
    if reads_codes:
        return option
    known = {code: level for code, level in by_label.items() if level is not None}
    numbers = {*map(parse_float, (*labels, *labels.values()))} - {None}
    own = ((word, code) for word, code in option.codes if parse_float(word) not in numbers)
    return replace(option, codes=(*known.items(), *own), labels=tuple(labels.items()))


def merge_orders(orders: Sequence[Sequence[str]], columns: str, place: str) -> Sequence[str]:
    """Return the longest order of categories, of which all others are parts.

    `columns` are the features, for the option in messages. Raises `DataError` if there is none.
    """
    longest = max(orders, key=len, default=())
    for order in orders:
        if [category for category in longest if category in order] != [*order]:
            raise DataError(
                f"{place} has the categories {join_levels(longest)} and, in other rows, "
                f"{join_levels(order)}. Name their order: "
                f"{{levels={quote_prefix(columns)}{join_levels(longest)}}}."
            )
    return longest


def check_same_order(order: Sequence[str], known: ValueMap, columns: str, place: str) -> None:
    """Raise `DataError` if categories are in another order than the known levels of a feature.

    Categories that are no level are left out: an error about their values says more.
    """
    found = (known.find_code(category) for category in order)
    codes = [code for code in found if code is not None]
    if codes != sorted(codes):
        raise DataError(
            f"{place} has the categories {join_levels(order)}, but earlier rows have the levels "
            f"{join_levels(known.levels)}. To read all rows with these, use "
            f"{{levels={quote_prefix(columns)}{join_levels(known.levels)}}}."
        )


def make_feature_maps(
    levels: Mapping[str, tuple[str, ...]], nominal: Set[str] = frozenset()
) -> dict[str, ValueMap]:
    """Make the maps of features whose levels are known before reading; equal ones are shared.

    `nominal` are the names of the nominal features.
    """
    kinds = {name: (own, name in nominal) for name, own in levels.items()}
    distinct = {
        (own, is_nominal): make_level_map("*", own, "levels", is_nominal=is_nominal)
        if own
        else ValueMap("*", (), is_continuous=True)
        for own, is_nominal in {*kinds.values()}
    }
    return {name: distinct[kind] for name, kind in kinds.items()}


def check_same_levels(
    names: Sequence[str],
    levels: Mapping[str, tuple[str, ...]],
    nominal: Set[str],
    options: ReadOptions,
    place: str,
) -> None:
    """Raise `DataError` if options define other levels than a dataset has.

    `levels` has the levels of its features with other levels than 0 and 1, of which `nominal` are
    the nominal ones; `place` is its path.
    """
    for name in names:
        option, own = find_map(options.maps, name), levels.get(name, BINARY_LEVELS)
        if option is None or option.has_candidates or option.is_auto:
            continue
        if option.is_continuous or not own:
            if option.is_continuous and not own:
                continue
            raise DataError(
                f"{{continuous}}: feature {name!r} has {format_levels(own)} in {place}. Read it as "
                "such, or ingest all rows again with {overwrite}."
            )
        is_alike = len(own) == 2 or option.is_nominal == (name in nominal)
        if not option.levels or (option.levels == own and is_alike):
            continue
        used = "{nominal}" if option.is_nominal else "{levels}"
        raise DataError(
            f"{used}: feature {name!r} has {format_levels(own, name in nominal)} in {place}, not "
            f"{format_levels(option.levels, option.is_nominal)}. Leave {used} out, or ingest all "
            "rows again with {overwrite}."
        )


def select_occurring_levels(
    values: Mapping[str, Sequence[str]], options: ReadOptions
) -> dict[str, tuple[str, ...]]:
    """Return the levels of features, given the values that occur, from the lowest to the highest.

    Features with no other value than 0 and 1 are binary. Automatic ones with too many values are
    continuous, which have no levels. Raises `DataError` if a feature has a single value, or too
    many.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, own in values.items():
        option, levels = options.find_map(name), tuple(own)
        assert option is not None
        if {*levels} <= {*BINARY_LEVELS}:
            found[name] = BINARY_LEVELS
            continue
        kind = "nominal" if option.is_nominal else "ordinal"
        remedy = "{levels=FEATURES:LOW<HIGH}" if option.is_auto else f"{{{kind}=FEATURES:LOW-HIGH}}"
        place = f"{{{kind}={quote(option.columns)}{_AUTO * option.is_auto}}}: feature {name!r}"
        if len(levels) == 1:
            raise DataError(
                f"{place} has no other value than {levels[0]}. Leave it out with "
                f"{{drop={quote_raw(name)}}}, or name the values that are possible: {remedy}."
            )
        if len(levels) > MAX_LEVELS and option.is_auto:
            levels = ()
        elif len(levels) > MAX_LEVELS:
            raise DataError(
                f"{place} has {len(levels)} distinct values, but at most {MAX_LEVELS} levels are "
                f"possible. Read measurements with {{continuous={quote(name)}}}, or leave it out "
                f"with {{drop={quote_raw(name)}}} or {{keep={quote_raw(name)}}}."
            )
        found[name] = levels
    return found


def find_far_levels(value_map: ValueMap) -> dict[str, str]:
    """Return the levels whose numbers look like codes for missing values, by number.

    Such codes are negative or the highest numbers, up to three of them, such as 8 and 9, or 99, and
    far from the others.
    """
    if not value_map.levels:
        return {}
    levels = {value: value_map.levels[code] for value, code in value_map.codes if code != MISSING}
    texts = {int(value): value for value in levels if _INTEGER.fullmatch(value)}
    if len(texts) < len(levels):
        return {}
    values = sorted(texts)
    n_low = sum(value < 0 for value in values)
    low, scale = values[:n_low], values[n_low:]
    high = next((scale[-n:] for n in (3, 2, 1) if _are_far_above(scale[:-n], scale[-n:])), [])
    scale = scale[: len(scale) - len(high)]
    are_codes = 0 < n_low <= 3 and all(_NEGATIVE_CODE.fullmatch(texts[value]) for value in low)
    if not are_codes or len(scale) < 2 or scale[0] - low[-1] <= max(np.diff(scale)):
        low = []
    return {texts[value]: levels[texts[value]] for value in (*low, *high)}


def _are_far_above(scale: Sequence[int], codes: Sequence[int]) -> bool:
    """Return whether integers are codes for missing values, given those below them.

    The highest levels of a scale may be rare: single digits need a 9, and another code or a gap
    that is as long as the scale.
    """
    if len(scale) < 2 or not all(_POSITIVE_CODE.fullmatch(str(code)) for code in codes):
        return False
    gap = codes[0] - scale[-1]
    if gap <= 2 * max(np.diff(scale)):
        return False
    is_long = gap >= max(4, scale[-1] - scale[0])
    return codes[0] > 9 or (9 in codes and (len(codes) > 1 or is_long))
