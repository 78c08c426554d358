"""What `flows.export` and `flows.transform` write for other programs: tables in files."""
