"""Logs in NATS JetStream: one stream per shard, one message per frame, appended with its expected sequence."""
