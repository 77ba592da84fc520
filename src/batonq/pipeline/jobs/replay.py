"""`baton pipeline replay`: sends the messages of a queue and a time span in the history to a queue again.

They go through the sink, because the history may be in an archive that no node has any more. The producer of a message
is derived from the selection and from a block of its shard's sequence numbers; its number is its position there, so an
interrupted run can be repeated and sends nothing twice.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from batonq.errors import InvalidInput, LogGap
from batonq.pipeline.jobs import sending
from batonq.pipeline.jobs.context import Context, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from batonq.pipeline.reading.history import History

HELP = "send messages from history to a queue again"
BLOCK_BITS = 14  # sequence numbers of a shard that share a producer: a task sends whole blocks, in order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", required=True, dest="source", metavar="QUEUE", help="source queue: name or number")
    parser.add_argument(
        "--since",
        required=True,
        metavar="TIME",
        help="only messages sent at or after this time, for example 2026-01-31T12:00:00Z",
    )
    parser.add_argument("--until", required=True, metavar="TIME", help="only messages sent before this time")
    parser.add_argument("--url", help="URL of the target node (default: --history, if it is a node)")
    parser.add_argument("--keep-dedup-keys", action="store_true", help="also send deduplication keys")
    sending.add_arguments(parser)


def run(context: Context) -> Outcome:
    from batonq.pipeline.spark import sink
    from batonq.pipeline.spark.options import time_ms

    options = context.options
    times = {"since": options.since, "until": options.until}
    since_ms, until_ms = time_ms(times, "since"), time_ms(times, "until")
    assert since_ms is not None and until_ms is not None
    if since_ms >= until_ms:
        raise InvalidInput(f"--since {options.since} must be before --until {options.until}.")
    url = options.url or context.history
    if not url.startswith(("http://", "https://")):
        raise InvalidInput(f"The target node is unknown, because {url} is not a node. Use --url http://host:port.")
    check_whole(_history(context), since_ms, context.history)
    selection = {"from": options.source, "since": since_ms, "until": until_ms, "keys": options.keep_dedup_keys}
    producer = sending.producer_name(context, "replay", selection)
    source = context.spark.read.format("baton").options(**context.source_options, **times)
    rows = source.options(read="replay", queue=options.source).load()
    tasks = context.spark.sparkContext.defaultParallelism
    frame = messages(sending.chosen(rows, options.where), producer, keys=options.keep_dedup_keys)
    checked = sink.Settings.of(sending.sink_options(context, url, tasks=tasks))
    checked.check(frame.drop("sequence").schema, overwrite=False)
    if not options.yes:
        total, sample = sending.preview(frame.drop("sequence"))
        what = f"{sending.counted(total, 'message')} of {options.source} would be sent to {options.to} at {url}."
        return sending.only_shown(total, sample, what, producer)
    return sending.send(context, ordered(frame, tasks), url, producer, tasks=tasks)


def _history(context: Context) -> History:
    from batonq.pipeline.reading.history import open_history

    return open_history(context.history, access_key=context.keys.access, secret_key=context.keys.secret)


def check_whole(history: History, since_ms: int, source: str) -> None:
    """Raises LogGap if history begins later, because missing messages would shift the numbers of the others."""
    for span in history.shards():
        if span.first == 1 or span.first >= span.next:
            continue
        first = next(history.frames(span.shard, span.first, span.first + 1))
        if first.time_ms > since_ms:
            begins = datetime.fromtimestamp(first.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
            raise LogGap(
                f"The history of shard {span.shard} at {source} begins at {begins}, which is after --since. "
                "Use a later --since, or read the archive."
            )


def messages(rows: DataFrame, producer: str, *, keys: bool) -> DataFrame:
    """Messages in the format of the sink, each with its producer, and their sequence number for sorting."""
    from pyspark.sql import functions as f

    shard = f.substring("message_id", 5, 4)  # of the id, see core/ids.py
    block = f.shiftright("sequence", BLOCK_BITS).cast("string")
    columns = ["body", "content", "group", "priority", "attributes", "trace", *(["dedup_key"] if keys else [])]
    return rows.select(*columns, "sequence", f.concat_ws(".", f.lit(producer), shard, block).alias("producer"))


def ordered(frame: DataFrame, tasks: int) -> DataFrame:
    """Every block in one task, in log order."""
    return frame.repartition(tasks, "producer").sortWithinPartitions("producer", "sequence").drop("sequence")
