"""Whole clusters in one process: real nodes on a JetStream in memory and a network that loses, cuts and repeats."""
