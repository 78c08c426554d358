from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from pipeline.errors import FitError
from pipeline.models.autoencoder import Autoencoder
from pipeline.models.base import Model
from pipeline.models.settings import setting
from pipeline.params import NumberRange


@dataclass(frozen=True)
class Knobs(Model):
    """Settings of every kind."""

    name: ClassVar[str] = "knobs"
    n_components: int | None = None
    share: float = setting(0.5, above=0, below=1)
    width: float | None = setting(None, above=0)
    layers: tuple[int, ...] = setting((4, 2), minimum=1)
    draws: int = setting(0, minimum=20, or_zero=True)
    kind: Literal["plain", "fancy"] = "plain"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("n_components", (0, -1)),
        ("share", (0.0, 1.0, -0.1, np.nan, np.inf)),
        ("width", (0.0, np.inf)),
        ("layers", ((4, 0), (0,), ())),
        ("draws", (19, -1)),
        ("kind", ("other",)),
    ],
)
def test_settings_outside_their_range_are_refused(name: str, values: tuple[Any, ...]) -> None:
    parameter = "components" if name == "n_components" else name
    for value in values:
        expected = "finite" if str(value) in ("nan", "inf") else ".*"
        with pytest.raises(FitError, match=f"^{parameter} must be {expected}, but is "):
            Knobs(**{name: value})


def test_settings_within_their_range_are_taken() -> None:
    knobs = Knobs(1, 0.001, 2.5, (1,), 20, "fancy")
    assert (knobs.share, knobs.width, knobs.layers, knobs.draws) == (0.001, 2.5, (1,), 20)
    assert (Knobs().width, Knobs().draws) == (None, 0)


def test_a_range_is_described_in_words() -> None:
    assert str(NumberRange(above=0, below=1)) == "above 0 and below 1"
    assert str(NumberRange(minimum=2, maximum=20_000)) == "at least 2 and at most 20,000"
    assert str(NumberRange(minimum=20, or_zero=True)) == "0, or at least 20"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("rate", value) for value in (0.0, -1.0, np.inf, np.nan)),
        *((name, 0) for name in ("batch", "patience", "max_iter", "tol")),
        *(("momentum", value) for value in (1.0, -0.1)),
    ],
)
def test_settings_of_gradient_steps_out_of_range_are_refused(setting: str, value: float) -> None:
    with pytest.raises(FitError, match=f"^{setting} must be .*, but is {value}"):
        Autoencoder(**{setting: value})  # type: ignore[arg-type]
