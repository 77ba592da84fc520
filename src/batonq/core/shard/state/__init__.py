"""What a shard keeps: messages, queues, the ready order, timers, and what it remembers."""
