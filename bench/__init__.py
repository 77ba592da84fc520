"""Benchmarks: Baton compared with a minimal durable server and with other queues, on the same work in one run."""
