"""Several processes that serve one data directory: each has whole shards, and calls the others over Unix sockets."""
