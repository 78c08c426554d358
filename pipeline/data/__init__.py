"""Rows in memory: blocks, datasets, tables, features and segments."""
