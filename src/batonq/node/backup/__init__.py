"""Online backups: a consistent point over all logs, and the check of a backup's state."""
