"""Kernels on packed bits."""
