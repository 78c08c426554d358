"""Experiments that reproduce published figures."""
