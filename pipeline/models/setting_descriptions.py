"""What the settings of a model are, as its documentation says."""

from __future__ import annotations

from collections import defaultdict

from docstring_parser import DocstringStyle, parse

from pipeline.models.base import Model


def describe_settings(model: type[Model]) -> defaultdict[str, str]:
    """Take what the class, or one it inherits from, says of each setting under "Attributes"."""
    described: defaultdict[str, str] = defaultdict(str)
    docs = [kind.__doc__ or "" for kind in reversed(model.__mro__)]
    for found in (p for doc in docs for p in parse(doc, DocstringStyle.NUMPYDOC).params):
        if said := " ".join((found.description or "").split()):
            described |= dict.fromkeys(found.arg_name.split(", "), said)
    return described
