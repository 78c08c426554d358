"""What models learn with: convergence, acceleration, rows held out."""
