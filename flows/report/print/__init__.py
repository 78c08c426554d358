"""Figures as still pictures: PNG, SVG and PDF."""
