"""Shared parts of fitting: convergence, acceleration, batches, held-out rows, gradient steps."""
