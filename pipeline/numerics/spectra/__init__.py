"""Eigenvalues and eigenvectors of symmetric matrices, and linear independent components."""
