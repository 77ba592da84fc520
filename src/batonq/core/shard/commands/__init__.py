"""What a shard is asked to do, one module per kind of command."""
