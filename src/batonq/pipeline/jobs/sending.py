"""What backfill and replay share: they show what they would send, and with --yes send it through the sink, once."""

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
    parser.add_argument("--to", required=True, metavar="QUEUE", help="the queue that gets the messages")
    parser.add_argument("--where", metavar="SQL", help="only rows of which this condition is true")
    parser.add_argument("--rate", type=float, metavar="N", help="messages a second (default: as quick as it goes)")
    parser.add_argument(
        "--producer",
        metavar="NAME",
        help="the same choice is sent once, unless another name is given here",
    )
    parser.add_argument("--yes", action="store_true", help="do it; without this the choice is only shown")


def sink_options(context: Context, url: str, *, tasks: int) -> dict[str, str]:
    options = {"url": url, "accessKey": context.keys.access, "secretKey": context.keys.secret}
    options |= {"queue": context.options.to, "refused": "drop"}
    if context.options.rate is not None:
        options |= {"rate": str(context.options.rate), "tasks": str(tasks)}
    return {name: value for name, value in options.items() if value}


def producer_name(context: Context, kind: str, selection: dict[str, Any]) -> str:
    """A name that stands for what is chosen: the same choice, the same name. Another --producer makes another one."""
    text = json.dumps({**selection, "to": context.options.to, "where": context.options.where}, sort_keys=True)
    return f"{context.options.producer or kind}-{sha256(text.encode()).hexdigest()[:16]}"


def chosen(frame: DataFrame, condition: str | None) -> DataFrame:
    """Raises InvalidInput for a condition that Spark cannot read."""
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
    """How many messages there are, and a few of them. Bodies are shown as text, cut short."""
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
        lines.append("Nothing was sent. Say --yes to send them.")
    return Outcome(0, {"chosen": total, "sample": sample, "producer": producer, "sent": 0}, "\n".join(lines))


def send(context: Context, frame: DataFrame, url: str, producer: str, *, tasks: int) -> Outcome:
    """Send the frame, whose rows name their producers. Exit code 1 when some were refused."""
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
        lines.append(f"{counts.duplicates:,} were there already: an earlier run of {producer} had sent them.")
    if counts.refused:
        summary["reasons"] = counts.reasons
        lines.append(counts.problem)
    return Outcome(1 if counts.refused else 0, summary, "\n".join(lines))


@contextmanager
def _watched(context: Context, settings: Settings) -> Iterator[None]:
    """While Spark sends, the queue itself says how far it is."""
    over = threading.Event()

    def watch() -> None:
        with settings.baton() as baton:
            first: int | None = None
            while not over.wait(LOOK_S):
                try:
                    stats = baton.queue(settings.queue).stats()
                except BatonError:
                    continue  # what matters is told by those who send
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
