"""Posteriors, likelihoods and scores of binary rows under probit models with Gaussian latents."""
