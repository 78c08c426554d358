"""Datasets and artifacts in Zarr."""
