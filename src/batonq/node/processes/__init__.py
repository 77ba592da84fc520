"""Several processes that serve one data directory: each has whole shards, and they ask each other by Unix sockets."""
