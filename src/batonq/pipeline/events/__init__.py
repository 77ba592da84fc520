"""Frames as the events table: its schema, and frames to Arrow by columns and, to compare, by a plain loop."""
