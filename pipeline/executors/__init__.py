"""Where a map over keys runs: serial, threads, Dask."""
