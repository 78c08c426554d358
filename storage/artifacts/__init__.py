"""Fitted models on disk, and the folders of runs that contain them."""
