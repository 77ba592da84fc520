"""One node of a cluster: it follows every log, owns some shards, and asks the other nodes about the rest."""
