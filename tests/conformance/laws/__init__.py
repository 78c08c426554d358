"""All laws: the file of a model takes them by `from tests.conformance.laws import *`."""

from tests.conformance.laws.codes import *  # noqa: F403
from tests.conformance.laws.degenerate import *  # noqa: F403
from tests.conformance.laws.fits import *  # noqa: F403
from tests.conformance.laws.identification import *  # noqa: F403
from tests.conformance.laws.levels import *  # noqa: F403
from tests.conformance.laws.parameters import *  # noqa: F403
from tests.conformance.laws.predictions import *  # noqa: F403
from tests.conformance.laws.samples import *  # noqa: F403
from tests.conformance.laws.settings import *  # noqa: F403
from tests.conformance.laws.statistics import *  # noqa: F403
from tests.conformance.laws.truths import *  # noqa: F403
from tests.conformance.laws.weights import *  # noqa: F403

__all__ = [name for name in globals() if name.startswith("test_")]
