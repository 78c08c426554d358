"""Where flows run: executors, clusters, the Prefect server, retries, what a stage took."""
