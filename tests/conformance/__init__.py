"""Laws that every registered model keeps, and a file for each model.

The file of a model `my-model` is `test_my_model.py`, and often no more than this::

    # My model keeps the laws.

    from tests.conformance.facts import Facts
    from tests.conformance.laws import *  # noqa: F403

    FACTS = Facts("my-model")

`Facts` has what else the laws may need to know: settings to try, codes to integrate over, what no
data can tell. `pytest tests/conformance/test_my_model.py` checks that model alone.
"""

import pytest

pytest.register_assert_rewrite("tests.conformance.checks", "tests.conformance.laws")
