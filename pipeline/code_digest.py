"""What code computes: the same in every process of a run, or results could differ."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

_LIBRARIES = ("numpy", "scipy", "numba", "distributed")


@cache  # what a process has loaded does not change when its files do
def code_digest(package: str = "pipeline") -> str:
    """Digest of a package's source files: a fit begun by other code is not gone on with.

    Raises
    ------
    ModuleNotFoundError
        If the package is not there.
    """
    found = find_spec(package)
    if found is None or found.origin is None:  # a mere folder of that name has no origin
        raise ModuleNotFoundError(f"No module named {package!r}")
    digest = hashlib.sha256()
    for path in sorted(Path(found.origin).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def computing_with(packages: Sequence[str]) -> dict[str, str]:
    """Versions of Python and libraries, and digests of our own packages, in this process."""
    versions = {name: version(name) for name in _LIBRARIES}
    digests = {f"latentbits ({name}/)": code_digest(name)[:12] for name in packages}
    return {"python": ".".join(platform.python_version_tuple()[:2]), **versions, **digests}
