"""The front doors: bytes to commands and back, nothing else."""
