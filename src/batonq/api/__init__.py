"""The front doors: they decode bytes into commands and encode outcomes, and do nothing else."""
