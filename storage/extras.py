"""Optional packages, and the extra of latentbits that installs each."""

from __future__ import annotations

from importlib.util import find_spec

from storage.errors import DataError

_EXTRAS = {
    "anndata": "cells",
    "bed_reader": "genotypes",
    "bokeh": "dashboard",
    "contourpy": "report",
    "cryptography": "tls",
    "jinja2": "report",
    "matplotlib": "report",
    "obstore": "stores",
    "openpyxl": "excel",
    "PIL": "report",
    "prefect": "flows",
    "pyreadstat": "statistics",
    "slugify": "report",
    "xarray": "notebooks",
    "xlsxwriter": "excel",
}
"""The extra that installs each importable package."""
REPORT_PACKAGES = tuple(name for name, extra in _EXTRAS.items() if extra == "report")


def check_installed(purpose: str, *packages: str) -> None:
    """Raise `DataError` unless all packages can be imported; `purpose` is what needs them."""
    for package in packages:
        if find_spec(package) is None:
            raise DataError(
                f"{purpose} needs the package {package}. "
                f"Run: pip install 'latentbits[{_EXTRAS[package]}]'"
            )
