"""The asyncio shell around the core: hosts, timers, long polls, limits, group commit, channels."""
