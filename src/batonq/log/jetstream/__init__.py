"""Logs in NATS JetStream: a stream a shard, a JetStream message a frame, appended under its expected sequence."""
