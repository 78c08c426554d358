"""Rows in memory: blocks, tables, datasets, and matching them with a fit by name."""
