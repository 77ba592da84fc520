"""The sections of a run. Each is a function that takes the context, measures, and reports."""
