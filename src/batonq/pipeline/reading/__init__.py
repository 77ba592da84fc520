"""History from wherever it lies: a node, a data directory, an archive; and the archive itself."""
