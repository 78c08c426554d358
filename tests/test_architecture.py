"""The rules of the architecture: who may import whom, docstrings, and no pickles."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "latentbits", "pipeline", "storage")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]

TOP_LEVEL = {
    *("flows", "pipeline", "storage", "tests", "deploy", "latentbits"),
    *("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "CHANGELOG.md"),
    *("CITATION.cff", "CONTRIBUTING.md", "MANIFEST.in", "SECURITY.md"),
}
SHARED = "pipeline.words"
"""It imports nothing, so that `storage` may import it too."""
FORBIDDEN = {
    "flows": {"latentbits", "tests"},
    "pipeline": {"prefect", "zarr", "storage", "flows", "latentbits", "tests"},
    "storage": {"prefect", "dask", "distributed", "pipeline", "flows", "latentbits", "tests"},
    "latentbits": {"prefect", "zarr", "dask", "distributed", "tests"},
}
DASK = {"dask", "distributed"}
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}

# Within `pipeline`, from the ground up: a package imports only those on its line or above.
LAYERS = (
    {"errors", "random", "params", "arrays", "words"},
    {"executors"},
    {"numerics"},
    {"data"},
    {"statistics"},
    {"passes", "learning"},
    {"models"},
    {"fitting", "inference"},
    {"evaluation"},
)

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class FoundImport(NamedTuple):
    """An imported top-level package or `SHARED`, and the function or condition around it."""

    package: str
    scope: str


@lru_cache(maxsize=1)  # several rules look at all of a tree
def list_nodes(tree: ast.AST) -> list[Any]:
    """All parts of a syntax tree."""
    return [*ast.walk(tree)]


def iter_imports(tree: ast.AST, scope: str = "") -> Iterator[FoundImport]:
    """All imports, wherever they are."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (FoundImport(name.name.partition(".")[0], scope) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            module = node.module or ""
            yield FoundImport(SHARED if module == SHARED else module.partition(".")[0], scope)
        elif not isinstance(node, ast.expr):
            yield from iter_imports(node, _scope(node, scope))


def _scope(node: ast.AST, scope: str) -> str:
    if isinstance(node, Definition):
        return f"{scope}.{node.name}".lstrip(".")
    is_condition = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    return "TYPE_CHECKING" if is_condition else scope


MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in FILES
}


def iter_imported_files(tree: ast.AST) -> Iterator[str]:
    """Names of the project's files that a file imports, wherever in it that happens."""
    for node in list_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            named = (f"{node.module}.{name.name}" for name in node.names)
            yield from (full if full in MODULES else node.module for full in named)


def iter_public_definitions(tree: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    """Classes, functions and methods that others may call; `__init__` needs no words."""
    for node in tree.body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from iter_public_definitions(node)


def iter_pickle_uses(tree: ast.Module) -> Iterator[str]:
    """Whatever writes or reads pickles."""
    yield from (found.package for found in iter_imports(tree) if found.package in PICKLES)
    keywords = (node for node in list_nodes(tree) if isinstance(node, ast.keyword))
    words = (ast.unparse(node) for node in keywords if node.arg == "allow_pickle")
    yield from (word for word in words if word != "allow_pickle=False")


OPTION = re.compile(r"--[a-z]")


def iter_option_mentions(tree: ast.Module) -> Iterator[str]:
    """Strings other than docstrings that mention an option of a command."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {
        id(node.body[0].value)
        for node in list_nodes(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in list_nodes(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docstrings and OPTION.search(node.value):
            yield node.value


def iter_undocumented(tree: ast.Module) -> Iterator[str]:
    """Names of public definitions without a docstring."""
    if not ast.get_docstring(tree):
        yield "the file"
    nodes = iter_public_definitions(tree)
    yield from (node.name for node in nodes if not ast.get_docstring(node))


class FileSummary(NamedTuple):
    """What the rules are about; the syntax trees of all files would take much memory."""

    imports: list[FoundImport]
    modules: list[str]
    undocumented: list[str]
    public_classes: list[str]
    pickle_uses: list[str]
    options: list[str]


@cache
def summarize_file(path: Path) -> FileSummary:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = (node.name for node in list_nodes(tree) if isinstance(node, ast.ClassDef))
    return FileSummary(
        [*iter_imports(tree)],
        [name for name in iter_imported_files(tree) if name in MODULES],
        [*iter_undocumented(tree)],
        [name for name in classes if not name.startswith("_")],
        [*iter_pickle_uses(tree)],
        [*iter_option_mentions(tree)],
    )


def format_path(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def is_allowed(path: Path, found: FoundImport) -> bool:
    """The import rule for one import of one file."""
    name, package = format_path(path), format_path(path).partition("/")[0]
    if name == "storage/dataset/dataset.py" and found.package == "dask":
        return found.scope in ("BinaryDataset.to_dask", "TYPE_CHECKING")
    if package == "pipeline" and found.package in DASK:
        return name in ("pipeline/executors/dask.py", "pipeline/executors/dask_monitor.py")
    if name.startswith("pipeline/models/"):
        named = {"numba", "numpy", "scipy", "pipeline", "docstring_parser"}
        return found.package in named | {*sys.stdlib_module_names}
    if name.startswith("pipeline/statistics/"):
        return found.package in {"numpy", "scipy", "pipeline", *sys.stdlib_module_names}
    return found.package not in FORBIDDEN[package]


def test_imports_keep_the_rule() -> None:
    found = [(path, one) for path in FILES for one in summarize_file(path).imports]
    assert len(found) > len(FILES)
    assert [(format_path(path), *one) for path, one in found if not is_allowed(path, one)] == []


def test_what_storage_shares_with_pipeline_imports_nothing() -> None:
    imports = summarize_file(MODULES[SHARED]).imports
    assert {found.package for found in imports} == {"__future__"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("storage/dataset/dataset.py", "import dask.array"),
        ("storage/dataset/dataset.py", "class BinaryDataset:\n def verify(self):\n  import dask"),
        (
            "storage/dataset/writer.py",
            "def write():\n from pipeline.data.blocks import BinaryBlock",
        ),
        ("pipeline/fitting/loop.py", "from typing import Any\nif Any:\n import zarr.codecs"),
        ("pipeline/fitting/loop.py", "from distributed import Client"),
        ("pipeline/models/clipped_pca/model.py", "import sklearn"),
        ("pipeline/statistics/counts.py", "import numba"),
        ("flows/fit.py", "import tests.support.strategies"),
    ],
)
def test_the_rule_sees_what_breaks_it(name: str, text: str) -> None:
    assert not all(is_allowed(ROOT / name, found) for found in iter_imports(ast.parse(text)))


@pytest.fixture(scope="module")
def file_imports() -> dict[str, set[str]]:
    """What each file imports."""
    return {name: {*summarize_file(path).modules} - {name} for name, path in MODULES.items()}


def test_no_files_import_each_other_in_a_circle(file_imports: dict[str, set[str]]) -> None:
    assert sum(map(len, file_imports.values())) > len(file_imports)
    assert {*TopologicalSorter(file_imports).static_order()} == {
        *MODULES
    }  # else it names the circle


def folder_of(module: str) -> str:
    """The folder of a file. An `__init__` or `__main__` stands above its folder: it lists it."""
    name = MODULES[module].stem
    return module if name in ("__init__", "__main__") else module.rpartition(".")[0]


def test_no_folders_import_each_other_in_a_circle(file_imports: dict[str, set[str]]) -> None:
    entries = {name for name, path in MODULES.items() if path.stem in ("__init__", "__main__")}
    folders: dict[str, set[str]] = {}
    for name, others in file_imports.items():
        if name not in entries:
            found = {folder_of(other) for other in others - entries} - {folder_of(name)}
            folders.setdefault(folder_of(name), set()).update(found)
    assert sum(map(len, folders.values())) > len(folders)
    assert {*folders} <= {*TopologicalSorter(folders).static_order()}  # else it names the circle


def test_packages_of_pipeline_import_only_what_lies_below(
    file_imports: dict[str, set[str]],
) -> None:
    rank = {name: height for height, names in enumerate(LAYERS) for name in names}
    pipeline = {
        name: {other for other in others if other.count(".") and other.startswith("pipeline.")}
        for name, others in file_imports.items()
        if name.startswith("pipeline.")
    }
    assert {name.split(".")[1] for name in pipeline} == {*rank}
    upward = [
        (name, other)
        for name, others in pipeline.items()
        for other in others
        if rank[other.split(".")[1]] > rank[name.split(".")[1]]
    ]
    assert upward == []


def test_what_flows_are_made_of_imports_no_flow(file_imports: dict[str, set[str]]) -> None:
    flows = {f"flows.{path.stem}" for path in (ROOT / "flows").glob("[!_]*.py")}
    assert flows >= {"flows.fit", "flows.ingest"}
    rooms = {name: others for name, others in file_imports.items() if name not in flows}
    assert {name: others & flows for name, others in rooms.items() if others & flows} == {}


@pytest.mark.parametrize(
    ("package", "unwanted"),
    [
        ("storage", {"prefect", "dask", "distributed", "pipeline", "flows"}),
        ("pipeline.models", {"prefect", "dask", "distributed", "zarr", "storage", "flows"}),
    ],
)
def test_a_fresh_interpreter_loads_only_what_is_needed(package: str, unwanted: set[str]) -> None:
    program = (
        "import importlib, pkgutil, sys\n"
        f"package = importlib.import_module({package!r})\n"
        "for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "    importlib.import_module(module.name)\n"
        f"others = {{*sys.modules}} - {{'pipeline', {SHARED!r}}}\n"
        "print(*{name.partition('.')[0] for name in others})"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert package.partition(".")[0] in loaded
    assert loaded & unwanted == set()


def test_the_library_loads_nothing_until_it_is_asked() -> None:
    program = "import sys, latentbits; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert "latentbits" in loaded
    assert loaded & {"numpy", "pipeline", "storage", "flows", "zarr", "sklearn", "prefect"} == set()


def test_the_top_level_holds_what_the_design_lists() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    names = {line.partition("/")[0] for line in listed.stdout.splitlines()}
    assert {name for name in names - TOP_LEVEL if not name.startswith(".")} == set()


def test_every_public_definition_has_a_docstring() -> None:
    undocumented = {format_path(path): summarize_file(path).undocumented for path in FILES}
    assert {path: names for path, names in undocumented.items() if names} == {}


def test_a_public_class_name_has_one_meaning() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for name in summarize_file(path).public_classes:
            places.setdefault(name, []).append(format_path(path))
    assert len(places) > 100
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_nothing_is_pickled() -> None:
    uses = {format_path(path): summarize_file(path).pickle_uses for path in FILES}
    assert {path: words for path, words in uses.items() if words} == {}
    assert [*iter_pickle_uses(ast.parse("np.load(path, allow_pickle=True)"))] == [
        "allow_pickle=True"
    ]


@pytest.mark.parametrize("package", ["pipeline", "storage"])
def test_only_flows_mention_options(package: str) -> None:
    found = {
        format_path(path): summarize_file(path).options
        for path in FILES
        if format_path(path).startswith(f"{package}/")
    }
    assert {path: texts for path, texts in found.items() if texts} == {}
