"""One pass over all chunks: a function is mapped over tasks, and their results are merged."""
