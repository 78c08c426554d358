"""Facts about models that need no functions."""

from __future__ import annotations

from tests.conformance.facts import Facts

AUTOENCODER = Facts(
    "autoencoder",
    plain={"max_iter": 30},
    variants=(
        {"loss": "squared", "optimizer": "momentum", "corruption": "mask"},
        {"sparsity": 0.1, "corruption": "flip", "max_iter": 20},
        {"sparsity": 0.01, "penalty": "l1", "max_iter": 20},
    ),
    rising=(),
    follows_cause=True,
    slow=("test_codes_do_not_depend_on_how_rows_are_cut",),
)
BOTTLENECK = Facts(
    "bottleneck",
    plain={"max_iter": 20},
    variants=({"column": "label", "optimizer": "momentum"}, {"column": "label", "kind": "number"}),
    rising=(),
    follows_cause=True,
)
CLIMBER = Facts("tests.models.climber:Climber", plain={"tol": 1e-9})
FASTICA = Facts("fastica", variants=({"n_components": None},))
KERNEL_PCA = Facts(
    "kernel-pca",
    variants=({"landmarks": 20}, {"width": 1.0, "landmarks": 50}),
    slow=("test_codes_do_not_depend_on_how_rows_are_cut",),
)
LABELLED = Facts("tests.models.labelled:Labelled")
LAPLACIAN_EIGENMAP = Facts(
    "laplacian-eigenmap",
    variants=({"k": 3}, {"weights": "heat"}, {"landmarks": 20, "n_components": 3}),
    n_rows=1000,
    n_varied=4000,
    slow=("test_codes_do_not_depend_on_how_rows_are_cut",),
)
NEIGHBOURS = Facts("tests.models.neighbours:Neighbours", variants=({"k": 1},), n_varied=4000)
STACK = Facts(
    "stack",
    plain={"pretrain": 4, "max_iter": 20},
    variants=(
        {"block": "rbm", "layers": (5, 3, 2), "corruption": "flip"},
        {"pretrain": 0, "optimizer": "momentum", "corruption": "none"},
    ),
    rising=(),
    follows_cause=True,
    slow=("test_chunks_do_not_matter",),
)
