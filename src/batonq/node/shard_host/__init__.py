"""One shard on the event loop: execution in groups, group commit, long polls, timers, recovery, maintenance."""
