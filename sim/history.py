"""The clients' calls and answers, in the order in which they happened. Checkers know nothing else about the clients.

A call has two instants: when it left its client, and when the answer returned. Each is recorded in simulation time and
by the node's clock. The decision was made between the two instants. An outcome is `ok`, the code of the returned error,
or `unknown`: no answer came, so the call may or may not have taken effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypeVar

from batonq.priorities import NORMAL_PRIORITY

OK = "ok"
UNKNOWN = "unknown"
# After these answers the change may still have happened: the commit was in progress when the shard stopped.
UNCERTAIN = (UNKNOWN, "unavailable", "log_error")
LINES_MAX = 200_000
PAUSE = "pause queue"  # the kind of a Steering that pauses or resumes a queue; its detail is what is paused then


@dataclass(slots=True)
class Call:
    """One request of one client, in progress while `ended_s` is negative."""

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
    """A batch of messages. A retry is a separate call with the same invocation."""

    invocation: str = ""
    producer: str = ""  # the producer that numbered the messages, if numbers identify them
    once: bool = False  # the invocation is an Idempotency-Key
    messages: list[Outgoing] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)  # one per message, when the outcome is ok


@dataclass(slots=True, frozen=True)
class Outgoing:
    """A message as its producer made it. Its number is in its body, so that it can be identified anywhere."""

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
    """A receive from many queues; `queue` has their names and patterns. Its deliveries are recorded in one Receiving
    per queue.
    """

    wait_ms: int = 0
    deliveries: list[Delivered] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Delivered:
    """One message as one consumer received it. The lease runs from `began_ms` until `deadline_ms` of shard time."""

    call: int
    queue: str
    number: int  # of the message; -1 when the simulator did not make the body
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
    shard: int | None = None  # None: the queue's first shard


@dataclass(slots=True)
class Holding(Call):
    """A consumer's use of a receipt: delete, change (to `value_ms`) or nack (with a delay of `value_ms`)."""

    kind: str = ""
    receipt: str = ""
    value_ms: int = 0
    dead_letter: bool = False


@dataclass(slots=True)
class Steering(Call):
    """An operator's action on a queue: purge, move, cancel, set."""

    kind: str = ""
    detail: str = ""


@dataclass(slots=True)
class PurgePoint(Call):
    """A shard's answer when a purge of the queue began: the last message that the purge may remove."""

    shard: int = 0
    through: int = 0
    place: int = 0  # number of frames committed by then, on all shards


AnyCall = TypeVar("AnyCall", bound=Call)


class History:
    """Calls for the checkers, and lines to read and to hash: two runs are equal if their hashes are."""

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
    """Something happened that must not happen. `words` select the lines of the history about it."""

    checker: str
    text: str
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.checker}: {self.text}"
