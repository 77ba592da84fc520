"""Spark looks into packages of such a name by itself: with it, any session knows format("baton")."""

from batonq.pipeline.spark.source import BatonSource as DefaultSource

__all__ = ["DefaultSource"]
