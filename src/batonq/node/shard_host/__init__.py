"""One shard on the event loop: grouped execution of commands, group commit, long polls, timers, recovery,
maintenance.
"""
