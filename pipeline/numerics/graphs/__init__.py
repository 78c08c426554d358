"""Distances between rows, nearest neighbours and what is computed from them."""
