"""The training loop, and the pair work before it."""
