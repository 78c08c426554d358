"""What code computes: the same in every process of a run, or results could differ."""

from __future__ import annotations

import hashlib
import platform
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

_LIBRARIES = ("numpy", "scipy", "numba", "distributed")
_IMPORT = re.compile(r"^[ \t]*import (?P<names>[\w., ]+)", re.MULTILINE)
_FROM = re.compile(
    r"^[ \t]*from (?P<module>[\w.]+) import (?P<names>\([^)]*\)|[\w, ]+)", re.MULTILINE
)


@cache  # what a process has loaded does not change when its files do
def digest_modules(*modules: str) -> str:
    """Digest of the source files of modules and of all that they import.

    What lies outside `pipeline` and the modules' own packages is left out: versions tell of that.
    So a new model, or an experiment, changes the digest of no other.

    Raises
    ------
    ModuleNotFoundError
        If a package is not there.
    """
    roots = {
        top: _find_package_root(top)
        for top in ("pipeline", *(m.partition(".")[0] for m in modules))
    }
    found: dict[str, bytes] = {}
    pending = [path for module in modules for path in _iter_source_files(module, roots)]
    while pending:
        path = pending.pop()
        if str(path) not in found:
            found[str(path)] = path.read_bytes()
            names = _iter_imports(found[str(path)].decode())
            pending += [file for name in names for file in _iter_source_files(name, roots)]
    return _digest_sources(found[path] for path in sorted(found))


def _iter_imports(source: str) -> Iterator[str]:
    """Name all that a file imports, wherever it does; of what it takes from modules each name.

    By patterns: parsing fifty files takes as long as a small fit. A line of text that looks like
    an import adds a file at the worst.
    """
    for found in _IMPORT.finditer(source):
        yield from (name.split()[0] for name in found["names"].split(",") if name.strip())
    for found in _FROM.finditer(source):
        names = found["names"].strip("()").split(",")
        yield from (f"{found['module']}.{n.split()[0]}" for n in names if n.strip())


def _iter_source_files(name: str, roots: dict[str, Path]) -> Iterator[Path]:
    """Give the files that importing a name loads: packages on the way, and the module."""
    parts = name.split(".")
    if parts[0] not in roots:
        return
    for n_parts in range(1, len(parts) + 1):
        path = roots[parts[0]].joinpath(*parts[1:n_parts])
        yield from (p for p in (path / "__init__.py", path.with_suffix(".py")) if p.is_file())


@cache
def digest_package(package: str) -> str:
    """Digest of all source files of a package.

    Raises
    ------
    ModuleNotFoundError
        If the package is not there.
    """
    return _digest_sources(
        path.read_bytes() for path in sorted(_find_package_root(package).rglob("*.py"))
    )


def _find_package_root(package: str) -> Path:
    found = find_spec(package)
    if found is None or found.origin is None:  # a mere folder of that name has no origin
        raise ModuleNotFoundError(f"No module named {package!r}")
    path = Path(found.origin)
    return path.parent if path.name == "__init__.py" else path.with_suffix("")


def _digest_sources(sources: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source)
    return digest.hexdigest()


def describe_environment(packages: Sequence[str]) -> dict[str, str]:
    """Versions of Python and libraries, and digests of our own packages, in this process."""
    versions = {name: version(name) for name in _LIBRARIES}
    digests = {f"latentbits ({name}/)": digest_package(name)[:12] for name in packages}
    return {"python": ".".join(platform.python_version_tuple()[:2]), **versions, **digests}
