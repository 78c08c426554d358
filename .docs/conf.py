"""Sphinx configuration of the documentation. Building it needs no network."""

from __future__ import annotations

import os
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "extensions")]
os.environ["LATENTBITS_PROGRAM"] = "latentbits"  # help pages call commands by this name
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])  # for the kernels of the tutorials
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

from docutils import nodes  # noqa: E402
from tutorial_data import has_data  # noqa: E402

project = "latentbits"
author = "the latentbits authors"
copyright = f"2026, {author}"
release = metadata.version("latentbits")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "generated_tables",
    "mathml",
]
exclude_patterns = [
    "_build",
    "jupyter_execute",
    "reference/benchmark_results.md",
    "extensions",
    "templates",
]

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Tutorials whose data are missing are shown without results; LATENTBITS_DATA names the folder.
TUTORIAL_DATA = {
    "roll-calls": "unvotes_core",
    "questionnaire": "verbal_aggression",
    "models-on-problems": "usps16_train",
    "spikes": "spikes15",
    "nightly": "unvotes_core",
    "scoring-service": "verbal_aggression",
    "baskets": "groceries",
}
nb_execution_excludepatterns = [
    f"tutorials/{page}.md" for page, name in TUTORIAL_DATA.items() if not has_data(name)
]
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "notebooks")
nb_execution_timeout = 120
nb_execution_raise_on_error = True
nb_merge_streams = True

templates_path = ["templates"]
autosummary_generate = True
default_role = "code"  # single backticks in docstrings
autodoc_typehints = "none"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

highlight_language = "none"  # indented blocks are commands
html_theme = "pydata_sphinx_theme"
html_title = "latentbits"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_show_sphinx = False
html_theme_options = {
    "show_prev_next": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
}


def skip_member(
    app: Any, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out the methods by which scikit-learn routes metadata."""
    return True if name.startswith("set_") and name.endswith("_request") else None


def remove_empty_outputs(app: Any, doctree: nodes.document) -> None:
    """Remove outputs of cells that are blank, such as a progress line that was erased."""
    for block in list(doctree.findall(nodes.literal_block)):
        if not block.astext().strip():
            block.parent.remove(block)


def setup(app: Any) -> None:
    """Connect the handlers above."""
    app.connect("doctree-read", remove_empty_outputs)
    app.connect("autodoc-skip-member", skip_member)
