"""Latent-variable models of binary and ordered data that are too large for one array in memory.

`fit`, `transform` and `evaluate` take arrays, data frames, paths and datasets. `open_dataset` opens
a dataset; `from_numpy` and `from_dataframe` make one with segments, splits and other columns. Every
model is also a scikit-learn estimator, such as `ClippedPCA` and `LatentTrait`; see
`latentbits.estimators`. `load` loads a fit. `query` computes probabilities of features, given
others. `compare` compares fits. `Scorer` computes the codes of single rows for a service.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latentbits.data import from_dataframe, from_numpy, open_dataset
    from latentbits.estimators import (
        BLICA,
        RBM,
        Autoencoder,
        BernoulliMixture,
        BinaryICALikelihood,
        Bottleneck,
        ClippedPCA,
        FastICA,
        HiddenMarkov,
        HiddenTree,
        Ising,
        KernelPCA,
        LaplacianEigenmap,
        LatentTrait,
        LinearIVAE,
        NoisyOr,
        RestrictedBoltzmannMachine,
        Stack,
        TreeMixture,
    )
    from latentbits.fitted import Fitted, load
    from latentbits.functions import (
        compare,
        evaluate,
        fit,
        fit_scales,
        link_items,
        query,
        transform,
    )
    from latentbits.scorer import Scorer, contrast
    from storage import load_artifact, open_codes

__all__ = [
    "BLICA",
    "RBM",
    "Autoencoder",
    "BernoulliMixture",
    "BinaryICALikelihood",
    "Bottleneck",
    "ClippedPCA",
    "FastICA",
    "Fitted",
    "HiddenMarkov",
    "HiddenTree",
    "Ising",
    "KernelPCA",
    "LaplacianEigenmap",
    "LatentTrait",
    "LinearIVAE",
    "NoisyOr",
    "RestrictedBoltzmannMachine",
    "Scorer",
    "Stack",
    "TreeMixture",
    "compare",
    "contrast",
    "evaluate",
    "fit",
    "fit_scales",
    "from_dataframe",
    "from_numpy",
    "link_items",
    "load",
    "load_artifact",
    "open_codes",
    "open_dataset",
    "query",
    "transform",
]

_MODULES = {
    **dict.fromkeys(("load_artifact", "open_codes"), "storage"),
    **dict.fromkeys(
        ("compare", "evaluate", "fit", "fit_scales", "transform"), "latentbits.functions"
    ),
    **dict.fromkeys(("from_dataframe", "from_numpy", "open_dataset"), "latentbits.data"),
    **dict.fromkeys(("Fitted", "load"), "latentbits.fitted"),
    "contrast": "latentbits.scorer",
    "link_items": "latentbits.functions",
    "query": "latentbits.functions",
    "Scorer": "latentbits.scorer",
}


def _refuse_hidden_packages() -> None:
    """Raise ImportError if the current folder, say, has other packages with the names of ours."""
    for name in ("pipeline", "storage"):
        spec, own = find_spec(name), Path(__file__).parents[1] / name / "__init__.py"
        if spec and spec.origin and Path(spec.origin).resolve() != own.resolve():
            raise ImportError(
                f"{spec.origin} hides the package {name!r} of latentbits. "
                "Rename it, or start Python in another folder."
            )


_refuse_hidden_packages()


def __getattr__(name: str) -> Any:
    """Import attributes on first use, because compiled code and Zarr are slow to import."""
    if name == "__version__":
        from importlib.metadata import version

        return version("latentbits")
    module = _MODULES.get(name, "latentbits.estimators" if name[:1].isupper() else "")
    value: Any = getattr(import_module(module), name, None) if module else None
    if value is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return value


def __dir__() -> list[str]:
    """List the functions and the estimators."""
    return sorted([*__all__, "__version__"])
