"""Redrive jobs: starts, pauses and cancels jobs; selects, filters and edits messages; enforces the rate."""
