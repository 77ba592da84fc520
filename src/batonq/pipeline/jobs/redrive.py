"""`baton pipeline redrive`: dead letters chosen by a condition, shown, and then handed to the broker's job engine.

The broker gets the ids of the chosen dead letters, at most 10,000 in one job, one job after the other. What was moved
is not there any more, so a run that was cut short is simply run again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from batonq.errors import InvalidInput
from batonq.pipeline.jobs.context import Context, Outcome
from batonq.pipeline.jobs.dead_letters import SHOWN_MAX, group_lines
from batonq.pipeline.jobs.problems import sentence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from batonq.client.blocking.jobs import Job
    from batonq.sync import Baton

HELP = "redrive the dead letters that a SQL condition chooses"
IDS_MAX = 10_000  # in one job of the broker's
LOOK_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--where",
        required=True,
        metavar="SQL",
        help="which: a condition over the columns of dead_letter_messages and dead_letters, "
        "such as \"error_class = 'Timeout' and last_seen > '2026-01-31'\"",
    )
    parser.add_argument("--yes", action="store_true", help="do it; without this the choice is only shown")
    parser.add_argument("--rate", type=int, default=10, metavar="N", help="messages a second (default 10)")
    parser.add_argument("--to", metavar="QUEUE", help="where to (default: each to where it came from)")
    parser.add_argument("--cluster", default="", metavar="NAME", help="whose dead letters, as `ingest --cluster` said")


@dataclass
class Progress:
    """What all jobs together have done so far."""

    moved: int = 0
    not_found: int = 0
    passed_over: int = 0
    jobs: int = 0
    stopped: str = ""  # why before the end


def run(context: Context) -> Outcome:
    found = chosen(context).cache()
    try:
        return _redrive(context, found)
    finally:
        found.unpersist()


def _redrive(context: Context, found: DataFrame) -> Outcome:
    total, groups = _preview(found)
    summary: dict[str, Any] = {"chosen": total, "groups": groups}
    lines = [f"{total:,} dead letters are chosen.", *group_lines(groups, count="chosen")]
    if not context.options.yes or not total:
        lines += ["Nothing was moved. Say --yes to redrive them."] if total else []
        return Outcome(0, {**summary, "moved": 0}, "\n".join(lines))
    selection = found.select("dead_letter_queue_name", "message_id", "shard", "sequence")
    selection = selection.orderBy("dead_letter_queue_name", "shard", "sequence")
    done = Progress()
    with context.client() as baton:
        hand_over(context, baton, chunks(selection.toLocalIterator()), done, total)
    summary |= {"moved": done.moved, "notFound": done.not_found, "passedOver": done.passed_over, "jobs": done.jobs}
    jobs = f"{done.jobs:,} job{'s' * (done.jobs != 1)}"
    lines.append(f"{done.moved:,} were moved, in {jobs}; {done.not_found:,} were not there any more.")
    if done.passed_over:
        lines.append(f"{done.passed_over:,} were passed over: somebody holds them, or they came from nowhere.")
    if done.stopped:
        summary["stopped"] = done.stopped
        lines.append(done.stopped)
    return Outcome(1 if done.stopped else 0, summary, "\n".join(lines))


def chosen(context: Context) -> DataFrame:
    """The dead letters that wait and that the condition is true of, with the columns of both tables."""
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    from batonq.pipeline.tables.dead_letters import with_groups

    lake, spark, options = context.lake, context.spark, context.options
    messages = lake.read(spark, "dead_letter_messages").where(f.col("source") == options.cluster)
    both = with_groups(messages.where("fate = 'waiting'"), lake.read(spark, "dead_letters"))
    try:
        return both.where(f.expr(options.where))
    except (AnalysisException, ParseException) as problem:
        raise InvalidInput(f"--where cannot be read: {sentence(problem).removeprefix('Spark failed: ')}") from None


def _preview(found: DataFrame) -> tuple[int, list[dict[str, Any]]]:
    from pyspark.sql import functions as f

    groups = found.groupBy("queue_name", "error_class", "shape").agg(
        f.count("*").alias("chosen"),
        f.min("died_at").alias("first_seen"),
        f.max("died_at").alias("last_seen"),
        f.max_by(f.struct("message_id", "body"), f.struct("died_at", "message_id"), 3).alias("examples"),
    )
    largest = groups.orderBy(f.desc("chosen"), "queue_name", "error_class", "shape").limit(SHOWN_MAX)
    rows = [row.asDict(recursive=True) for row in largest.collect()]
    return found.count(), rows


def chunks(rows: Iterator[Any], most: int = 0) -> Iterator[tuple[str, list[str]]]:
    """(queue, ids of its dead letters), each for one job. The rows come sorted by queue."""
    for queue, of_queue in groupby(rows, key=lambda row: row["dead_letter_queue_name"]):
        while ids := [row["message_id"] for row in islice(of_queue, most or IDS_MAX)]:
            yield queue, ids


def hand_over(
    context: Context,
    baton: Baton,
    parts: Iterator[tuple[str, list[str]]],
    done: Progress,
    total: int,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """One job after the other. An interruption cancels the one that runs."""
    from batonq.client.models import RedriveFilter

    options = context.options
    for queue, ids in parts:
        job = baton.queue(queue).redrive(options.to, rate=options.rate, filter=RedriveFilter(message_ids=ids))
        done.jobs += 1
        before = done.moved
        try:
            while not job.done and job.state != "PAUSED":
                context.progress(f"redriving {queue}", before + job.moved, total)
                sleep(LOOK_S)
                job.refresh()
        except KeyboardInterrupt:
            _cancel(job, sleep)
        done.moved += job.moved
        done.not_found += job.not_found
        done.passed_over += max(0, job.examined - job.matched - job.not_found)
        if job.state != "COMPLETED":
            done.stopped = f"Job {job.id} on {queue} is {job.state}: {job.why or 'it was cancelled'}"
            return


def _cancel(job: Job, sleep: Callable[[float], None]) -> None:
    """What is on its way arrives; wait for that."""
    job.cancel()
    while not job.done:
        sleep(LOOK_S)
        job.refresh()
