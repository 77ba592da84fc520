"""Benchmarks: Baton beside the smallest honest server and beside Redis streams, on the same work in one run."""
