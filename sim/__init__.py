"""The simulator: whole nodes in one process, over a faulty disk, log and clock, replayable from a seed."""
