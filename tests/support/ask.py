"""Commands for shards under test, from messages one by one; and their outcomes, one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from batonq.core.commands import (
    Accepted,
    ChangeVisibility,
    Claim,
    Delete,
    Failing,
    Lease,
    Once,
    Receive,
    Send,
)
from batonq.core.commands import Nack as NackCommand
from batonq.core.payload import Payload, encode_payload
from batonq.core.shard.machine import Shard
from batonq.errors import BatonError
from batonq.priorities import NORMAL_PRIORITY


@dataclass(slots=True)
class Message:
    """One message to be sent; see Send for what the fields mean."""

    body: bytes
    body_md5: bytes = b""
    attributes: bytes = b""
    sender: str = ""
    group: str = ""
    dedup_id: str = ""
    strict_content: bool = False
    trace: str = ""
    priority: int = NORMAL_PRIORITY
    delay_ms: int | None = None
    ttl_ms: int | None = None
    max_receives: int = 0
    content: int = 0
    producer: str = ""
    producer_sequence: int = 0


class Nack(NamedTuple):
    claim: Claim
    delay_ms: int | None = None
    reason: str = ""
    error_class: str = ""
    dead_letter: bool = False
    untried: bool = False


def message(text: str, **fields: Any) -> Message:
    body = text.encode()
    return Message(body, hashlib.md5(body, usedforsecurity=False).digest(), **fields)


def batch(queue: int, messages: Sequence[Message], request: int = 0, once: Once | None = None) -> Send:
    """One request. Its sender and producer are those of the first message."""
    first = messages[0] if messages else Message(b"")
    assert {(one.sender, one.producer) for one in messages} <= {(first.sender, first.producer)}
    return Send(
        queue,
        [one.body for one in messages],
        digests=[one.body_md5 for one in messages] if first.body_md5 else (),
        sender=first.sender,
        content=first.content,
        contents=_column([one.content for one in messages]) if len({one.content for one in messages}) > 1 else (),
        attributes=_column([one.attributes for one in messages]),
        groups=_column([one.group for one in messages]),
        dedup_ids=_column([one.dedup_id for one in messages]),
        strict=_column([one.strict_content for one in messages]),
        traces=_column([one.trace for one in messages]),
        priorities=_column([one.priority for one in messages], NORMAL_PRIORITY),
        delays_ms=_column([one.delay_ms for one in messages], None),
        ttls_ms=_column([one.ttl_ms for one in messages], None),
        max_receives=_column([one.max_receives for one in messages]),
        producer=first.producer,
        numbers=[one.producer_sequence for one in messages] if first.producer else (),
        request=request,
        once=once,
    )


def payload(message: Message, sent_ms: int) -> bytes:
    """The payload of a message as it is written."""
    return payload_at(batch(1, [message]), 0, sent_ms)


def payload_at(send: Send, at: int, sent_ms: int) -> bytes:
    """The payload of one message of a request, encoded alone."""
    group, dedup_id, trace = [column[at] if column else "" for column in (send.groups, send.dedup_ids, send.traces)]
    attributes = send.attributes[at] if send.attributes else b""
    md5 = send.digests[at] if send.digests else b""
    content = send.contents[at] if send.contents else send.content
    return encode_payload(
        Payload(sent_ms, send.sender, group, dedup_id, trace, b"", attributes, send.bodies[at], md5, content)
    )


def _column(values: list[Any], absent: object = 0) -> Sequence[Any]:
    """A column that no message uses is left out."""
    used = any(values) if absent == 0 else any(value != absent for value in values)
    return values if used else ()


def send(
    shard: Shard, queue: int, messages: Sequence[Message], now: int, request: int = 0
) -> list[Accepted | BatonError]:
    (sent,) = shard.send([batch(queue, messages, request)], now)
    return [*sent.results()]


def send_once(
    shard: Shard, queue: int, messages: Sequence[Message], now: int, once: Once
) -> tuple[list[Accepted | BatonError], bool]:
    (sent,) = shard.send([batch(queue, messages, once=once)], now)
    return [*sent.results()], sent.replayed


def receive(
    shard: Shard, queue: int, count: int, visibility_ms: int | None, now: int, holder: str = "h", attempt: str = ""
) -> list[Lease]:
    (outcome,) = shard.receive([Receive(queue, count, visibility_ms, holder, attempt)], now)
    if isinstance(outcome, BatonError):
        raise outcome
    return [*outcome]


def delete(
    shard: Shard, queue: int, claims: Iterable[tuple[int, int, int]], now: int, strict: bool = False
) -> list[BatonError | None]:
    (results,) = shard.delete([Delete(queue, [Claim(*claim) for claim in claims], strict)], now)
    return results


def change_visibility(
    shard: Shard,
    queue: int,
    changes: Sequence[tuple[Claim, int]],
    now: int,
    strict: bool = False,
    by_attempt: bool = False,
) -> list[BatonError | None]:
    command = ChangeVisibility(queue, [claim for claim, _ in changes], [ms for _, ms in changes], strict)
    results = shard.change_visibility(command, now, by_attempt)
    return [result if isinstance(result, BatonError) else None for result in results]


def nack(shard: Shard, queue: int, nacks: Sequence[Nack], now: int) -> list[BatonError | None]:
    return shard.nack(NackCommand(queue, [one.claim for one in nacks], [Failing(*one[1:]) for one in nacks]), now)
