"""Schedules: when a recurring message is due, sending it, and managing schedules for the front doors."""
