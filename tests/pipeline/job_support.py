"""Running jobs in the session of the tests."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batonq.cli.main import build_parser
from batonq.pipeline.jobs.context import Context, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def options(job: str, *words: str, lake: Path | str, history: str = "") -> argparse.Namespace:
    given = ["pipeline", job, *words, "--lake", str(lake), "--quiet", *(["--history", history] if history else [])]
    return build_parser("pipeline").parse_args(given)


def run_job(spark: SparkSession, job: Any, *words: str, lake: Path | str, history: str = "") -> Outcome:
    """`job` is its module."""
    name = job.__name__.rpartition(".")[2].replace("_", "-")
    context = Context(options(name, *words, lake=lake, history=history), spark=spark)
    try:
        outcome: Outcome = job.run(context)
    finally:
        context.close()
    return outcome


def comparable(frame: DataFrame) -> DataFrame:
    """Maps cannot be compared as sets of rows are: as sorted texts they can."""
    from pyspark.sql import functions as f

    if "attributes" not in frame.columns:
        return frame
    return frame.withColumn("attributes", f.to_json("attributes"))


def assert_same_rows(one: DataFrame, other: DataFrame) -> None:
    """As often as each is there, in any order. A few thousand rows are counted here sooner than Spark plans it."""
    assert sorted(one.columns) == sorted(other.columns)
    mine, theirs = counted(comparable(one)), counted(comparable(other).select(*one.columns))
    missing, extra = list(theirs - mine)[:3], list(mine - theirs)[:3]
    assert not missing and not extra, f"missing: {missing}\nextra: {extra}"


def counted(frame: DataFrame) -> Counter[str]:
    return Counter(map(repr, frame.toArrow().to_pylist()))
