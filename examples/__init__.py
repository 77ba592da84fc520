"""Complete example systems built on Baton, to read and to run."""
