"""Latent-variable models of large binary data, for notebooks and programs.

    import latentbits as lb

    votes = lb.from_dataframe(frame, keep=["id"], map=["yea=1,nay=0"])
    fitted = lb.fit(votes, "latent-trait", components=2)
    lb.transform(fitted, votes)["mean"]
    lb.evaluate(fitted, votes)

What is asked for is imported then.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipeline.api import evaluate, fit, transform
    from storage.artifacts import load_artifact
    from storage.codes import open_codes
    from storage.dataset import open_dataset
    from storage.frames import from_dataframe, from_numpy

__all__ = [
    "evaluate",
    "fit",
    "from_dataframe",
    "from_numpy",
    "load_artifact",
    "open_codes",
    "open_dataset",
    "transform",
]

_MODULES = {
    "evaluate": "pipeline.api",
    "fit": "pipeline.api",
    "from_dataframe": "storage.frames",
    "from_numpy": "storage.frames",
    "load_artifact": "storage.artifacts",
    "open_codes": "storage.codes",
    "open_dataset": "storage.dataset",
    "transform": "pipeline.api",
}


def __getattr__(name: str) -> object:
    """Import what is asked for."""
    if name == "__version__":
        from importlib.metadata import version

        return version("latentbits")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Name what can be asked for."""
    return [*__all__, "__version__"]
