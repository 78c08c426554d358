"""What serves the experiments alone."""
