"""Models that only tests use: each needs a part of the contract that no model here needs yet.

They go through every command and every law, and are named by where they are, as
`tests.models.climber:Climber`.
"""
