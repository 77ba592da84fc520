"""Frames to the events table: by column into Arrow, compared with a plain loop over the same records."""

from __future__ import annotations

import time

from batonq.log.frames import Frame
from batonq.pipeline.events.decode import Decoder
from batonq.pipeline.events.plain import events
from batonq.pipeline.reading.history import open_history
from bench.context import Context
from bench.report import Sample

_TITLE = "events of a log to rows, without bodies"
_PART = 10  # the plain loop reads a tenth of each log: its rate does not depend on the length


def _logs(directory: str) -> list[list[Frame]]:
    history = open_history(directory)
    return [list(history.frames(span.shard, span.first)) for span in history.shards()]


def _by_columns(logs: list[list[Frame]]) -> int:
    return sum(batch.num_rows for log in logs for batch in Decoder().batches(log))


def _by_rows(logs: list[list[Frame]]) -> int:
    return sum(1 for log in logs for _ in events(log))


def decode(context: Context) -> None:
    """Events per second of both, in turn, by the CPU time of this process."""
    logs = _logs(context.lab.history(context.size(5_000_000, 200_000)))
    parts = [log[: len(log) // _PART] for log in logs]
    contestants = {"by columns into Arrow": (_by_columns, logs), "by a plain loop": (_by_rows, parts)}
    samples: dict[str, list[Sample]] = {name: [] for name in contestants}
    for number in range(context.rounds + 1):
        for name, (run, frames) in contestants.items():
            started = time.process_time()
            rows = run(frames)
            spent = time.process_time() - started
            assert rows == sum(frame.row_count for log in frames for frame in log)
            if number:  # the first round warms up
                samples[name].append({"events/s": rows / spent, "us/event": spent / rows * 1e6})
    table = context.report.table("decode", _TITLE, samples, "events/s")
    ratio = table.ratio("by columns into Arrow", "by a plain loop", "events/s")
    context.report.bar("decode", f"{_TITLE}, by columns ÷ by a plain loop", ratio, 10, at_least=True)
