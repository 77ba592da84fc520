"""Intermediate results of an audit: computed once, and used by several rules.

They are cached, not checkpointed: Spark keeps the way to compute them again, so that a lost executor costs time and not
the audit. A local checkpoint would be lost with its executor, and a reliable one needs a directory that all share.

A cached data frame still has its whole plan, and every query that uses it analyses that plan again, which takes longer
than most rules do. So rules get the cached rows under a new plan, which reads them and says nothing of their origin.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.storagelevel import StorageLevel


class Steps:
    """Close it when the audit is done: this drops what it kept."""

    def __init__(self) -> None:
        self._kept: list[DataFrame] = []

    def keep(self, frame: DataFrame) -> DataFrame:
        """The same rows, computed now."""
        kept = result(frame)
        self._kept.append(kept)
        session: Any = frame.sparkSession
        cached: Any = kept
        rows = cached._jdf.queryExecution().toRdd()
        return ClassicDataFrame(
            session._jsparkSession.internalCreateDataFrame(rows, cached._jdf.schema(), False), session
        )

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
