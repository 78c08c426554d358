"""Rows in memory: blocks, tables, features and segments."""
