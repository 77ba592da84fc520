"""Routes a command to its shard: on this node, on another node or process, or on several shards at once."""
