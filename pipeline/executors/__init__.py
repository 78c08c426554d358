"""Executors: an ordered map over keys, run serially, on threads or on a Dask cluster."""
