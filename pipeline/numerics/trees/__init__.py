"""Distributions that factorize over a tree of features."""
