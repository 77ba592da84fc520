"""The common part of backfill and replay: show what would be sent, and with --yes send it through the sink, once."""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from batonq.errors import BatonError, InvalidInput
from batonq.pipeline.jobs.context import Context, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from batonq.pipeline.spark.sink import Settings
    from batonq.pipeline.spark.sink_sending import Counts

SHOWN = 3  # messages of a preview
SHOWN_LETTERS = 200
LOOK_S = 0.5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--to", required=True, metavar="QUEUE", help="target queue")
    parser.add_argument("--where", metavar="SQL", help="only rows that match this condition")
    parser.add_argument("--rate", type=float, metavar="N", help="messages per second (default: unlimited)")
    parser.add_argument(
        "--producer",
        metavar="NAME",
        help="name of the producer: the same selection is sent once per name",
    )
    parser.add_argument("--yes", action="store_true", help="send them; without this option the selection is only shown")


def sink_options(context: Context, url: str, *, tasks: int) -> dict[str, str]:
    options = {"url": url, "accessKey": context.keys.access, "secretKey": context.keys.secret}
    options |= {"queue": context.options.to, "refused": "drop"}
    if context.options.rate is not None:
        options |= {"rate": str(context.options.rate), "tasks": str(tasks)}
    return {name: value for name, value in options.items() if value}


def producer_name(context: Context, kind: str, selection: dict[str, Any]) -> str:
    """A name derived from the selection: the same selection has the same name. Another
    --producer gives another name.
    """
    text = json.dumps({**selection, "to": context.options.to, "where": context.options.where}, sort_keys=True)
    return f"{context.options.producer or kind}-{sha256(text.encode()).hexdigest()[:16]}"


def chosen(frame: DataFrame, condition: str | None) -> DataFrame:
    """Raises InvalidInput for a condition that Spark cannot parse."""
    if condition is None:
        return frame
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    from batonq.pipeline.jobs.problems import sentence

    try:
        return frame.where(f.expr(condition))
    except (AnalysisException, ParseException) as problem:
        raise InvalidInput(f"--where cannot be read: {sentence(problem).removeprefix('Spark failed: ')}") from None


def preview(frame: DataFrame) -> tuple[int, list[dict[str, Any]]]:
    """The number of messages, and a few of them. Bodies are shown as shortened text."""
    from pyspark.sql import functions as f

    body = frame.schema["body"].dataType.typeName()
    shown = f.to_json("body") if body in ("struct", "array", "map") else f.col("body").cast("string")
    rows = frame.drop("producer").withColumn("body", f.substring(shown, 1, SHOWN_LETTERS)).limit(SHOWN).collect()
    return frame.count(), [{name: value for name, value in row.asDict().items() if value is not None} for row in rows]


def counted(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def only_shown(total: int, sample: list[dict[str, Any]], what: str, producer: str) -> Outcome:
    lines = [what, *(f"  {json.dumps(row, default=str, ensure_ascii=False)}" for row in sample)]
    if total:
        lines.append("Nothing was sent. Use --yes to send them.")
    return Outcome(0, {"chosen": total, "sample": sample, "producer": producer, "sent": 0}, "\n".join(lines))


def send(context: Context, frame: DataFrame, url: str, producer: str, *, tasks: int) -> Outcome:
    """Send the frame, whose rows have producers. Exit code 1 if some were refused."""
    from batonq.pipeline.spark import sink

    options = sink_options(context, url, tasks=tasks)
    with _watched(context, sink.Settings.of(options)):
        counts = sink.send(frame, options)
    return sent(counts, context.options.to, producer)


def sent(counts: Counts, queue: str, producer: str) -> Outcome:
    summary: dict[str, Any] = {
        "sent": counts.sent,
        "duplicates": counts.duplicates,
        "refused": counts.refused,
        "producer": producer,
    }
    lines = [f"{counted(counts.sent, 'message')} {'was' if counts.sent == 1 else 'were'} sent to {queue}."]
    if counts.duplicates:
        lines.append(f"{counts.duplicates:,} already existed: an earlier run of {producer} had sent them.")
    if counts.refused:
        summary["reasons"] = counts.reasons
        lines.append(counts.problem)
    return Outcome(1 if counts.refused else 0, summary, "\n".join(lines))


@contextmanager
def _watched(context: Context, settings: Settings) -> Iterator[None]:
    """While Spark sends, show the progress from the queue's statistics."""
    over = threading.Event()

    def watch() -> None:
        with settings.baton() as baton:
            first: int | None = None
            while not over.wait(LOOK_S):
                try:
                    stats = baton.queue(settings.queue).stats()
                except BatonError:
                    continue  # errors that matter are reported by the sender
                seen = stats.sent + stats.duplicates
                first = seen if first is None else first
                context.progress(f"sending to {settings.queue}", seen - first)

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LOOK_S * 4)
        context.progress("")
