"""Logs in PostgreSQL: frames in a table, appended under a condition that the database checks."""
