"""`baton pipeline replay`: the messages that history has of a queue and a span of time, sent to a queue again.

They go through the sink, for the history may lie in an archive that no node has any more. A message's producer is made
of the choice and of a block of its shard's sequences, its number is its place there, so that a run that was cut short
is run again and sends nothing twice.
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

HELP = "send the messages of a span of history to a queue again"
BLOCK_BITS = 14  # sequences of a shard that share a producer: a task sends whole blocks, in order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", required=True, dest="source", metavar="QUEUE", help="whose messages: name or number")
    parser.add_argument("--since", required=True, metavar="TIME", help="sent at or after, such as 2026-01-31T12:00:00Z")
    parser.add_argument("--until", required=True, metavar="TIME", help="sent before")
    parser.add_argument("--url", help="the node that gets them (default: --history, if it is a node)")
    parser.add_argument("--keep-dedup-keys", action="store_true", help="send deduplication keys along, not only bodies")
    sending.add_arguments(parser)


def run(context: Context) -> Outcome:
    from batonq.pipeline.spark import sink
    from batonq.pipeline.spark.options import time_ms

    options = context.options
    times = {"since": options.since, "until": options.until}
    since_ms, until_ms = time_ms(times, "since"), time_ms(times, "until")
    assert since_ms is not None and until_ms is not None
    if since_ms >= until_ms:
        raise InvalidInput(f"--since {options.since} is not before --until {options.until}.")
    url = options.url or context.history
    if not url.startswith(("http://", "https://")):
        raise InvalidInput(f"Which node gets the messages? {url} is none: give --url http://host:port.")
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
    """Raises LogGap when history begins later: what is missing would shift the numbers of what is there."""
    for span in history.shards():
        if span.first == 1 or span.first >= span.next:
            continue
        first = next(history.frames(span.shard, span.first, span.first + 1))
        if first.time_ms > since_ms:
            begins = datetime.fromtimestamp(first.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
            raise LogGap(
                f"The history of shard {span.shard} at {source} begins at {begins}, which is after --since: "
                "begin later, or read the archive."
            )


def messages(rows: DataFrame, producer: str, *, keys: bool) -> DataFrame:
    """Messages as the sink takes them, each with its producer; and their sequence, to be sorted by."""
    from pyspark.sql import functions as f

    shard = f.substring("message_id", 5, 4)  # of the id, see core/ids.py
    block = f.shiftright("sequence", BLOCK_BITS).cast("string")
    columns = ["body", "content", "group", "priority", "attributes", "trace", *(["dedup_key"] if keys else [])]
    return rows.select(*columns, "sequence", f.concat_ws(".", f.lit(producer), shard, block).alias("producer"))


def ordered(frame: DataFrame, tasks: int) -> DataFrame:
    """Every block in one task, in the order of the log."""
    return frame.repartition(tasks, "producer").sortWithinPartitions("producer", "sequence").drop("sequence")
