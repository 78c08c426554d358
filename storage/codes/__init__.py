"""Latent codes, and other results as long as the data."""
