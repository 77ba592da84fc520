"""What the examples are run with: servers of their own in a temporary directory, and a report of what happens."""
