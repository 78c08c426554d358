"""Facts about all models, those of `tests.models` too."""

from collections.abc import Mapping

from tests.conformance.facts import Facts
from tests.conformance.models import (
    bernoulli_mixture,
    binary_ica_likelihood,
    blica,
    clipped_pca,
    hidden_markov,
    hidden_tree,
    ising,
    latent_trait,
    linear_ivae,
    noisy_or,
    rbm,
    simple,
    tree_mixture,
)

REPRESENTATIVE = ("bernoulli-mixture", "blica", "clipped-pca", "latent-trait", "rbm")
"""Models for which all laws are checked by default; of the others, the matrix checks the rest."""

FACTS: Mapping[str, Facts] = {
    facts.name: facts
    for facts in (
        latent_trait.FACTS,
        tree_mixture.FACTS,
        binary_ica_likelihood.FACTS,
        hidden_markov.FACTS,
        hidden_tree.FACTS,
        ising.FACTS,
        bernoulli_mixture.FACTS,
        blica.FACTS,
        clipped_pca.FACTS,
        linear_ivae.FACTS,
        noisy_or.FACTS,
        rbm.FACTS,
        simple.AUTOENCODER,
        simple.BOTTLENECK,
        simple.CLIMBER,
        simple.FASTICA,
        simple.KERNEL_PCA,
        simple.LABELLED,
        simple.LAPLACIAN_EIGENMAP,
        simple.NEIGHBOURS,
        simple.STACK,
    )
}
