"""Whole clusters in one process: real nodes over a JetStream in memory and a network that loses, cuts and repeats."""
