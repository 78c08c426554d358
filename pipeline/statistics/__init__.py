"""Mergeable statistics of binary blocks."""
