"""History from a node, a data directory or an archive; and the archive itself."""
