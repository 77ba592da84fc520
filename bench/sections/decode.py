"""Frames to the events table: by columns into Arrow, beside a plain loop over the same records."""

from __future__ import annotations

import time

from batonq.core.commands import Claim, Nack, Send
from batonq.core.policy import QueuePolicy
from batonq.core.shard.machine import Shard
from batonq.log.frames import NO_DIGEST, Frame, build
from batonq.pipeline.events.decode import Decoder
from batonq.pipeline.events.plain import events
from bench.context import Context
from bench.report import Sample

_QUEUE = 1
_BATCH = 100
_T0 = 1_700_000_000_000
_TITLE = "events of a log to rows, without bodies"


class History:
    """Messages sent, leased by a few workers, some of them given back with an error once, and deleted."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.rows = 0
        self._shard = Shard(0)
        self._shard.begin_frame(1)
        self._shard.take_ownership(1, _T0, 0)
        self._shard.set_policy(QueuePolicy(_QUEUE, "000000000000", "jobs"), _T0)
        self._now = _T0

    def grow(self, rounds: int) -> None:
        for number in range(rounds):
            body = f"{number:08}".encode() * 25
            self._shard.send(_QUEUE, [Send(body, b"", sender="key@127.0.0.1") for _ in range(_BATCH)], self._now)
            self._seal()
            leases = self._shard.receive(_QUEUE, _BATCH, None, self._now, f"worker-{number % 50}", "")
            self._seal()
            claims = [Claim(lease.slot, lease.sequence, lease.epoch) for lease in leases]
            self._shard.nack(_QUEUE, [Nack(claim, 0, "timed out", "TimeoutError") for claim in claims[:5]], self._now)
            self._shard.delete(_QUEUE, claims[5:], self._now, False)
            self._seal()
            self._now += 7

    def _seal(self) -> None:
        rows, variable = self._shard.seal()
        number = len(self.frames) + 1
        frame = build(
            cluster=1,
            region=0,
            shard=0,
            epoch=1,
            number=number,
            time_ms=self._now,
            previous_digest=self.frames[-1].digest if self.frames else NO_DIGEST,
            rows=rows,
            variable=variable,
        )
        self.frames.append(frame)
        self.rows += frame.row_count
        self._shard.begin_frame(number + 1)


def _by_columns(history: History) -> int:
    return sum(batch.num_rows for batch in Decoder().batches(history.frames))


def _by_rows(history: History) -> int:
    return sum(1 for _ in events(history.frames))


def decode(context: Context) -> None:
    """Events a second of both, in turn, by the CPU time of this process."""
    history = History()
    history.grow(context.size(3_300, 330))
    contestants = {"by columns into Arrow": _by_columns, "by a plain loop": _by_rows}
    samples: dict[str, list[Sample]] = {name: [] for name in contestants}
    for number in range(context.rounds + 1):
        for name, run in contestants.items():
            started = time.process_time()
            rows = run(history)
            spent = time.process_time() - started
            assert rows == history.rows
            if number:  # the first round warms up
                samples[name].append({"events/s": rows / spent, "us/event": spent / rows * 1e6})
    table = context.report.table("decode", _TITLE, samples, "events/s")
    ratio = table.ratio("by columns into Arrow", "by a plain loop", "events/s")
    context.report.bar("decode", f"{_TITLE}, by columns ÷ by a plain loop", ratio, 10, at_least=True)
