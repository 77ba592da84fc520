"""Intermediate results of an audit: computed once, and used by several rules.

They are cached, not checkpointed: Spark keeps the way to compute them again, so that a lost executor costs time and not
the audit. A local checkpoint would be lost with its executor, and a reliable one needs a directory that all share.
"""

from __future__ import annotations

from types import TracebackType

from pyspark.sql import DataFrame
from pyspark.storagelevel import StorageLevel


class Steps:
    """Close it when the audit is done: this drops what it kept."""

    def __init__(self) -> None:
        self._kept: list[DataFrame] = []

    def keep(self, frame: DataFrame) -> DataFrame:
        """The same rows, computed now."""
        kept = result(frame)
        self._kept.append(kept)
        return kept

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: TracebackType | None) -> None:
        for frame in self._kept:
            frame.unpersist()


def result(frame: DataFrame) -> DataFrame:
    """The same rows, computed now and cached until the caller unpersists them."""
    kept = frame.persist(StorageLevel.MEMORY_AND_DISK)
    kept.count()
    return kept
