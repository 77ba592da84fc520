"""Programs to read and to run: each is a small system built on Baton, with nothing left out."""
