"""Distances, nearest neighbours, neighbour graphs and kernels of binary rows."""
