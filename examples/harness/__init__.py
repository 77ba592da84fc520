"""Runs the examples: starts their servers in a temporary directory and reports what happens."""
