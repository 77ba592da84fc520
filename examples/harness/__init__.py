"""The harness of the examples: starts servers in a temporary directory, and reports what happens."""
