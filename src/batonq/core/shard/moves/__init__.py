"""Messages that leave their queue: returns, dead letters, redrives, and the way between shards."""
