"""The computation: pure functions and frozen dataclasses."""
