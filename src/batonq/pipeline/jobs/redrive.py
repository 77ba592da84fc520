"""`baton pipeline redrive`: selects dead letters by a condition, shows them, and starts redrive jobs on the broker.

The broker gets the ids of the selected dead letters, at most 10,000 per job, one job after another. Moved messages are
no longer there, so an interrupted run can simply be repeated.
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

HELP = "redrive the dead letters that match an SQL condition"
IDS_MAX = 10_000  # per job of the broker
LOOK_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--where",
        required=True,
        metavar="SQL",
        help=(
            'condition over the columns of dead_letter_messages and dead_letters, for example "error_class = '
            "'Timeout' and last_seen > '2026-01-31'\""
        ),
    )
    parser.add_argument(
        "--yes", action="store_true", help="redrive them; without this option the selection is only shown"
    )
    parser.add_argument("--rate", type=int, default=10, metavar="N", help="messages per second (default 10)")
    parser.add_argument("--to", metavar="QUEUE", help="target queue (default: each message's source queue)")
    parser.add_argument(
        "--cluster", default="", metavar="NAME", help="cluster of the dead letters, as in `ingest --cluster`"
    )


@dataclass
class Progress:
    """The progress of all jobs together."""

    moved: int = 0
    not_found: int = 0
    passed_over: int = 0
    jobs: int = 0
    stopped: str = ""  # why it stopped early


def run(context: Context) -> Outcome:
    found = chosen(context).cache()
    try:
        return _redrive(context, found)
    finally:
        found.unpersist()


def _redrive(context: Context, found: DataFrame) -> Outcome:
    total, groups = _preview(found)
    summary: dict[str, Any] = {"chosen": total, "groups": groups}
    lines = [f"{total:,} dead letters are selected.", *group_lines(groups, count="chosen")]
    if not context.options.yes or not total:
        lines += ["Nothing was moved. Use --yes to redrive them."] if total else []
        return Outcome(0, {**summary, "moved": 0}, "\n".join(lines))
    selection = found.select("dead_letter_queue_name", "message_id", "shard", "sequence")
    selection = selection.orderBy("dead_letter_queue_name", "shard", "sequence")
    done = Progress()
    with context.client() as baton:
        hand_over(context, baton, chunks(selection.toLocalIterator()), done, total)
    summary |= {"moved": done.moved, "notFound": done.not_found, "passedOver": done.passed_over, "jobs": done.jobs}
    jobs = f"{done.jobs:,} job{'s' * (done.jobs != 1)}"
    lines.append(f"{done.moved:,} messages were moved, in {jobs}; {done.not_found:,} no longer existed.")
    if done.passed_over:
        lines.append(
            f"{done.passed_over:,} messages were skipped: a consumer holds them, or their source queue is unknown."
        )
    if done.stopped:
        summary["stopped"] = done.stopped
        lines.append(done.stopped)
    return Outcome(1 if done.stopped else 0, summary, "\n".join(lines))


def chosen(context: Context) -> DataFrame:
    """The waiting dead letters that match the condition, with the columns of both tables."""
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
    """(queue, ids of its dead letters), one pair per job. The rows are sorted by queue."""
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
    """Run one job after another. An interruption cancels the current one."""
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
    """Cancel the job and wait for the messages that are being moved."""
    job.cancel()
    while not job.done:
        sleep(LOOK_S)
        job.refresh()
