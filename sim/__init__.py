"""The simulator: whole nodes in one process, on a faulty disk, log and clock. A seed reproduces a run."""
