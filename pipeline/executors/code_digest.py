"""Digests of source code: all processes of a run must have the same, or results could differ."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

_LIBRARIES = ("numpy", "scipy", "numba", "distributed")
_RECORDED_LIBRARIES = ("latentbits", "numpy", "scipy", "numba", "scikit-learn")
_IMPORT = re.compile(r"^[ \t]*import (?P<names>[\w., ]+)", re.MULTILINE)
_FROM = re.compile(
    r"^[ \t]*from (?P<module>[\w.]+) import (?P<names>\([^)]*\)|[\w, ]+)", re.MULTILINE
)


def list_versions() -> dict[str, str]:
    """Return the versions of latentbits and of the numerical libraries."""
    return {name: _find_version(name) for name in _RECORDED_LIBRARIES}


_find_version = cache(version)  # it reads a file


@cache  # a process keeps the code that it has loaded, even if the files change
def digest_modules(*modules: str) -> str:
    """Return a digest of the source files of modules and of all modules that they import.

    Only `pipeline` and the modules' own packages count; other packages are identified by their
    versions. A new model or experiment therefore does not change the digests of the others.
    """
    roots = {
        top: str(_find_package_root(top))
        for top in ("pipeline", *(m.partition(".")[0] for m in modules))
    }
    found: set[str] = set()
    pending, names = [*modules], {*modules}
    while pending:
        name = pending.pop()
        if (root := roots.get(name.partition(".")[0])) is None:
            continue
        for path in _find_source_files(name, root):
            if path not in found:
                found.add(path)
                new = _read_source(path)[1] - names
                names |= new
                pending += new
    return _digest_sources(_read_source(path)[0] for path in sorted(found))


@cache  # models share most of their files
def _read_source(path: str) -> tuple[bytes, frozenset[str]]:
    """Return the content of a file and what it imports."""
    source = Path(path).read_bytes()
    return source, frozenset(_iter_imports(source.decode()))


def _iter_imports(source: str) -> Iterator[str]:
    """Yield the modules that a file imports, and `module.name` for `from module import name`.

    This uses patterns because parsing fifty files takes as long as a small fit. At worst, a line
    of text that looks like an import adds a file.
    """
    for match in _IMPORT.finditer(source):
        yield from (name.split()[0] for name in match["names"].split(",") if name.strip())
    for match in _FROM.finditer(source):
        names = match["names"].strip("()").split(",")
        yield from (f"{match['module']}.{n.split()[0]}" for n in names if n.strip())


@cache
def _find_source_files(name: str, root: str) -> tuple[str, ...]:
    """Return the files that importing a name loads: its parent packages and the module."""
    parts = name.split(".")[1:]
    folders = ("/".join((root, *parts[:n_parts])) for n_parts in range(len(parts) + 1))
    files = (path for folder in folders for path in (f"{folder}/__init__.py", f"{folder}.py"))
    return tuple(path for path in files if os.path.isfile(path))


@cache
def digest_package(package: str) -> str:
    """Return a digest of all source files of a package."""
    return _digest_sources(
        path.read_bytes() for path in sorted(_find_package_root(package).rglob("*.py"))
    )


def _find_package_root(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:  # a plain folder of that name has no origin
        raise ModuleNotFoundError(f"No module named {package!r}")
    path = Path(spec.origin)
    return path.parent if path.name == "__init__.py" else path.with_suffix("")


def _digest_sources(sources: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source)
    return digest.hexdigest()


def describe_environment(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and libraries, and digests of our own packages."""
    versions = {name: version(name) for name in _LIBRARIES}
    digests = {f"latentbits ({name}/)": digest_package(name)[:12] for name in packages}
    return {"python": ".".join(platform.python_version_tuple()[:2]), **versions, **digests}
