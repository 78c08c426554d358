"""Eigenvalues and eigenvectors of symmetric matrices."""
