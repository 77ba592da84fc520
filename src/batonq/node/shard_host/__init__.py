"""One shard on the event loop: commands executed in groups, group commit, long polls, timers, recovery, upkeep."""
