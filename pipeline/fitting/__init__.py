"""The training loop, and the pair work that precedes it."""
