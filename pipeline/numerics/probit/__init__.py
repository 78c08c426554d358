"""Probit factor models: expectation propagation, quadrature and orthant probabilities."""
