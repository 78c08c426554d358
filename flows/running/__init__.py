"""Run flows: executors, clusters, the Prefect server, stages and their resource usage."""
