"""Ising model: logistic regressions of all features, choice of edges, likelihood and errors."""
