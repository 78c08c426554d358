"""The stages of a fit, its checkpoints, kept statistics and provenance."""
