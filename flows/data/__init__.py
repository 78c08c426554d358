"""Read sources into datasets, and find the datasets and fitted models that options name."""
