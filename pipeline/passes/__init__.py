"""One sweep over all chunks: map a function over tasks and merge the results."""
