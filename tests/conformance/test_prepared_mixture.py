"""A model with parameters that are prepared after the fit keeps the laws."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conformance.facts import Facts
from tests.conformance.laws import *  # noqa: F403
from tests.conformance.test_bernoulli_mixture import FACTS as MIXTURE

pytestmark = pytest.mark.matrix  # most of it is the mixture, whose laws always run

FACTS: Facts = replace(MIXTURE, name="tests.models.prepared:PreparedMixture")
