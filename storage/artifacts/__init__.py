"""Fitted models on disk, and the folders that hold them."""
