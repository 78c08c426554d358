"""The stages of a fit, and what they store: checkpoints, kept statistics, provenance."""
