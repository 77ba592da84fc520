"""One node of several: it follows every log, owns some shards, and asks the others about the rest."""
