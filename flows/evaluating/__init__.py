"""What `flows.evaluate` does beside scoring rows."""
