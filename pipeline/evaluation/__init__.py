"""Measure how well a fitted model describes data."""
