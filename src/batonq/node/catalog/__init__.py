"""Queues and keys: the catalog served by this node, and its changes told to the shards."""
