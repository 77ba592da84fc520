"""Append-only logs: one interface, several implementations, and the ownership of a log."""
