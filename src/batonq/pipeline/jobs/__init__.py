"""The jobs of `baton pipeline`: each reads, calls pure functions of data frames, writes, and reports the result."""
