"""What a fit is made of: its stages, and what they leave on disk."""
