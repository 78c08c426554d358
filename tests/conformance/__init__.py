"""Laws that every registered model keeps, one file per topic, checked for every model.

`tests.conformance.models` lists the facts that laws need about each model: often no more than
`Facts("my-model")`, else settings to try, codes to integrate over, or what no data can tell.
`pytest tests/conformance -k my-model` checks that model alone.
"""

import pytest

pytest.register_assert_rewrite("tests.conformance.checks")
