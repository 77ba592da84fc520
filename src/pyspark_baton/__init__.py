"""Spark discovers packages with this name prefix automatically, so that any session knows format("baton")."""

from batonq.pipeline.spark.source import BatonSource as DefaultSource

__all__ = ["DefaultSource"]
