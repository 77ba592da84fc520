"""What the clients asked and were told, in the order in which it happened. The checkers read nothing else of a client.

A call has two instants, when it left its client and when the answer came back, each as time of the simulation and as
the node's clock showed it then. What was decided lies between the two. An outcome is `ok`, the code of the error that
came back, or `unknown`: no answer came, so it may or may not have happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypeVar

from batonq.priorities import NORMAL_PRIORITY

OK = "ok"
UNKNOWN = "unknown"
# Answers after which the change may have happened all the same: the commit was under way when the shard stopped.
UNCERTAIN = (UNKNOWN, "unavailable", "log_error")
LINES_MAX = 200_000


@dataclass(slots=True)
class Call:
    """One request of one client, under way while `ended_s` is negative."""

    number: int
    client: str
    queue: str
    started_s: float
    started_ms: int
    ended_s: float = -1.0
    ended_ms: int = 0
    outcome: str = UNKNOWN

    @property
    def uncertain(self) -> bool:
        return self.outcome in UNCERTAIN


@dataclass(slots=True)
class Sending(Call):
    """A batch of messages. A retry is a call of its own under the same invocation."""

    invocation: str = ""
    producer: str = ""  # who numbered the messages, when that is what names them
    once: bool = False  # the invocation is an Idempotency-Key
    messages: list[Outgoing] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)  # one a message, when the outcome is ok


@dataclass(slots=True, frozen=True)
class Outgoing:
    """A message as its producer means it. Its number is in its body, so that it is known wherever it turns up."""

    number: int
    body: bytes
    group: str = ""
    dedup_id: str = ""
    delay_ms: int | None = None
    ttl_ms: int | None = None
    priority: int = NORMAL_PRIORITY
    max_receives: int = 0


@dataclass(slots=True, frozen=True)
class Answer:
    outcome: str
    message_id: str = ""
    sequence: int = 0
    duplicate: bool = False


@dataclass(slots=True)
class Receiving(Call):
    visibility_ms: int | None = None
    wait_ms: int = 0
    attempt: str = ""
    deliveries: list[Delivered] = field(default_factory=list)


@dataclass(slots=True)
class Watching(Call):
    """A receive of many queues; `queue` is their names and patterns. What it got stands in a Receiving for each."""

    wait_ms: int = 0
    deliveries: list[Delivered] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Delivered:
    """One message as one consumer got it. The lease began at `began_ms` and runs until `deadline_ms` of shard time."""

    call: int
    queue: str
    number: int  # of the message; -1 when the body is nobody's
    body: bytes
    message_id: str
    receipt: str
    group: str
    sequence: int
    sent_ms: int
    began_ms: int
    deadline_ms: int
    receive_count: int
    priority: int
    shard: int | None = None  # None: the first of the queue's


@dataclass(slots=True)
class Holding(Call):
    """What a consumer does under a receipt: delete, change (to `value_ms`) or nack (with a delay of `value_ms`)."""

    kind: str = ""
    receipt: str = ""
    value_ms: int = 0
    dead_letter: bool = False


@dataclass(slots=True)
class Steering(Call):
    """What an operator does to a queue: purge, move, cancel, set."""

    kind: str = ""
    detail: str = ""


@dataclass(slots=True)
class PurgePoint(Call):
    """What a shard answered to a purge of the queue that began: the last message that the purge may remove."""

    shard: int = 0
    through: int = 0
    place: int = 0  # how many frames had been committed by then, on all shards


AnyCall = TypeVar("AnyCall", bound=Call)


class History:
    """Calls to be checked, and lines to be read and hashed: two runs are the same if their hashes are."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.lines: list[str] = []
        self._hash = sha256()

    def say(self, now_s: float, who: str, text: str) -> None:
        line = f"{now_s:12.6f} {who:<10} {text}"
        self._hash.update(line.encode() + b"\n")
        assert len(self.lines) < LINES_MAX, "a simulation that talks too much"
        self.lines.append(line)

    def digest(self) -> str:
        return self._hash.hexdigest()

    def add(self, call: AnyCall) -> AnyCall:
        self.calls.append(call)
        return call

    def next_number(self) -> int:
        return len(self.calls)

    def of(self, kind: type[AnyCall]) -> Iterator[AnyCall]:
        return (call for call in self.calls if isinstance(call, kind))

    def deliveries(self) -> Iterator[tuple[Receiving, Delivered]]:
        for call in self.of(Receiving):
            for delivered in call.deliveries:
                yield call, delivered


@dataclass(slots=True, frozen=True)
class Violation:
    """Something that must not happen did. `words` pick the lines of the history that tell how."""

    checker: str
    text: str
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.checker}: {self.text}"
