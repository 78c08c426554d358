"""Datasets that need no file."""
