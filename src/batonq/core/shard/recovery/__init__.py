"""The state from the log and back: replay, snapshots, truncation."""
