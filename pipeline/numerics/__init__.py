"""Numerical kernels and special functions."""
