"""Baton: a self-hosted message queue of the SQS class."""

__version__ = "0.1.0"
