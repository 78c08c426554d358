"""Logistic latent-trait models: quadrature, bounds, regression."""
