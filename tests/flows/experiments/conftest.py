"""How experiments are called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest


@pytest.fixture
def call(plain_cli: Callable[..., Any]) -> Callable[..., Any]:
    """Call an experiment in this process, in a folder of its own."""
    return partial(plain_cli, "experiments")
