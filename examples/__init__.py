"""Example programs: each is a small but complete system built on Baton."""
