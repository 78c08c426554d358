"""Models that only tests use: each needs a part of the contract that no model here needs yet.

They go through every command and every law, named by where they are: `tests.models.coder:Coder`.
"""
