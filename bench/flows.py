"""The work of the benchmarks, in terms that every contestant supports: send, receive, delete, wait.

A `Work` is one queue of one contestant. The flows are written once, so that all contestants do the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from bench.clients import Flow, Request

ARMED_S = 0.005  # a poll has certainly reached its server after this time


class Prepared(NamedTuple):
    """A send, built in advance."""

    data: bytes
    messages: int
    batch: bool


class Work(Protocol):
    """One queue of one contestant."""

    @property
    def port(self) -> int | str: ...

    def complete(self, data: bytes, answers: int) -> bool:
        """Whether `data` is the whole response to a request."""

    def prepare(self, bodies: Sequence[str]) -> Prepared: ...
    def prepare_one(self, body: str) -> Prepared: ...
    def send(self, prepared: Prepared) -> Request: ...
    def receive(self, count: int, wait_s: int = 0) -> Request: ...
    def delete(self, receipts: list[bytes]) -> Request: ...
    def delete_one(self, receipt: bytes) -> Request: ...

    def receipts(self, answer: bytes) -> list[bytes]:
        """The receipts in the response to a receive; raises BenchError if it is not a success."""

    def check(self, answer: bytes) -> None:
        """Raises BenchError unless the response to a send or delete is a success for every entry."""


@dataclass(slots=True)
class Tally:
    """The combined counts of the flows of one measurement."""

    target: int = 0
    sent: int = 0
    received: int = 0
    deleted: int = 0
    latencies_s: dict[str, list[float]] = field(default_factory=dict)

    def note(self, what: str, seconds: float) -> None:
        self.latencies_s.setdefault(what, []).append(seconds)


def send_flow(work: Work, supply: Iterator[Prepared], tally: Tally) -> Flow:
    """Send from a supply that all flows share."""
    for prepared in supply:
        work.check((yield work.send(prepared)))
        tally.sent += prepared.messages


def greeted(hello: Request, flow: Flow) -> Flow:
    """A flow on a connection that starts with a greeting."""
    yield hello
    yield from flow


def consume_flow(work: Work, tally: Tally, batch: int = 10) -> Flow:
    """Receive and delete in batches until the flows together have received the tally's target."""
    while tally.received < tally.target:
        receipts = work.receipts((yield work.receive(batch)))
        if receipts:
            tally.received += len(receipts)
            work.check((yield work.delete(receipts)))
            tally.deleted += len(receipts)


def send_one_flow(work: Work, supply: Iterator[Prepared], tally: Tally) -> Flow:
    """Send one message at a time, timed."""
    clock = time.perf_counter
    for prepared in supply:
        request = work.send(prepared)
        started = clock()
        answer = yield request
        tally.note("send", clock() - started)
        work.check(answer)
        tally.sent += 1


def life_of_one_flow(work: Work, supply: Iterator[Prepared], tally: Tally) -> Flow:
    """Send, receive and delete one message after another, each call timed."""
    clock = time.perf_counter
    for prepared in supply:
        request = work.send(prepared)
        started = clock()
        answer = yield request
        tally.note("send", clock() - started)
        work.check(answer)
        tally.sent += 1
        request = work.receive(1)
        started = clock()
        answer = yield request
        tally.note("receive", clock() - started)
        receipts = work.receipts(answer)
        if not receipts:
            continue
        tally.received += 1
        request = work.delete_one(receipts[0])
        started = clock()
        answer = yield request
        tally.note("delete", clock() - started)
        work.check(answer)
        tally.deleted += 1


@dataclass(slots=True)
class Bell:
    """Synchronizes a waiting poll with the flow that sends to it."""

    armed_at: float = 0.0  # when the poll was sent; 0: no poll is waiting
    rung_at: float = 0.0
    rings: int = 0


def poll_flow(work: Work, bell: Bell, tally: Tally) -> Flow:
    """Long-poll, record the time from the send to the response, and delete the message."""
    clock = time.perf_counter
    while tally.received < tally.target:
        request = work.receive(1, wait_s=20)
        bell.armed_at = clock()
        answer = yield request
        now = clock()
        receipts = work.receipts(answer)
        if receipts:
            tally.note("wake", now - bell.rung_at)
            tally.received += 1
            work.check((yield work.delete_one(receipts[0])))


def ring_flow(work: Work, ring: Prepared, background: Flow, bell: Bell, target: int) -> Flow:
    """Continue the background work, and send a message to the poll whenever it is certainly waiting."""
    clock = time.perf_counter
    answer: bytes | None = None
    while True:
        if bell.rings < target and bell.armed_at and clock() - bell.armed_at > ARMED_S:
            request = work.send(ring)
            bell.armed_at = 0.0
            bell.rings += 1
            bell.rung_at = clock()
            work.check((yield request))
        try:
            following = next(background) if answer is None else background.send(answer)
        except StopIteration:
            if bell.rings >= target:
                return
            raise RuntimeError("the background work ended before the last ring") from None
        answer = yield following
