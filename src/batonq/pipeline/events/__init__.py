"""The events table: its schema, and the conversion of frames to Arrow, by column and, for
comparison, by a plain loop.
"""
