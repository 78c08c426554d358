"""Latent codes, and other results with one entry per row of the data."""
