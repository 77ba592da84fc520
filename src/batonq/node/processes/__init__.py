"""Several processes that serve one data directory: each has whole shards, and they call each other over Unix
sockets.
"""
