"""Curves of items with several levels, their fit at nodes, and the scores of rows."""
