"""Queues and keys: hosts the catalog on this node, and tells the shards about its changes."""
