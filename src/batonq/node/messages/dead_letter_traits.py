"""What dead letters of one group have in common: error, source queue, and the shape of the body.

A group is identified by a hash of these traits. The hash needs no table: a job with a group in its filter computes it
again for each message.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple

from batonq.attribute_formats.arns import parse_queue_arn
from batonq.core.body_shape import body_shape, reason_shape
from batonq.core.commands import Failure
from batonq.core.payload import Lineage, Payload

KEY_LENGTH = 24


class Traits(NamedTuple):
    """What the dead letters of a group have in common."""

    error_class: str
    reason: str  # without the parts that vary
    shape: str  # of the body
    source: str  # name of the queue in which the message died; empty: the queue that has it

    @property
    def key(self) -> str:
        return blake2b("\0".join(self).encode(errors="replace"), digest_size=KEY_LENGTH // 2).hexdigest()


def traits_of(payload: Payload, failure: Failure | None) -> Traits:
    """`failure` is the message's last failure in its current queue."""
    return traits_from(Lineage.decode(payload.lineage), failure, payload.body, payload.content)


def traits_from(past: Lineage, failure: Failure | None, body: bytes, content: int) -> Traits:
    error_class, reason = last_error(past, failure)
    source = parse_queue_arn(past.source_arn) if past.moved != "redrive" else None
    return Traits(error_class, reason_shape(reason), body_shape(body, content), source.name if source else "")


def last_error(past: Lineage, failure: Failure | None) -> tuple[str, str]:
    """The error class and the reason of a message's last failure, in its current queue or before it was moved."""
    if failure is not None and (failure.error_class or failure.reason):
        return failure.error_class, failure.reason
    return past.error_class, past.reason
