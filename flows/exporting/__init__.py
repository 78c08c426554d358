"""Tables for other programs, as `flows.export` and `flows.transform` write them."""
