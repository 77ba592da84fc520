"""The events table by a plain loop over records: the reference that decode.py must equal, and its baseline."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

from batonq.core import payload
from batonq.core.ids import message_id
from batonq.core.records import (
    CARRIED_PREFIX,
    EDITED_PREFIX,
    MESSAGE_TYPES,
    NO_SLOT,
    ROW_WORDS,
    ArrivedFlag,
    Reason,
    SentFlag,
    State,
    Type,
    arrived_prefix,
    decode_notes,
)
from batonq.errors import LogCorrupt
from batonq.log.frames import Frame
from batonq.pipeline.events.filters import Filter
from batonq.pipeline.events.names import Names, base_detail, schedule_detail, told
from batonq.pipeline.events.schema import CONTENTS, EVENTS, NEVER_MS, REASONS, STATES, columns

_LOW32 = 0xFFFFFFFF
_LEASES = frozenset(
    (Type.LEASED, Type.EXTENDED, Type.RETURNED, Type.DELETED, Type.OWED, Type.EDITED, Type.CARRIED),
)
_PAYLOADS = frozenset((Type.SENT, Type.EDITED, Type.CARRIED, Type.ARRIVED))


def events(
    frames: Iterable[Frame], *, bodies: bool = False, wanted: Filter | None = None, names: Names | None = None
) -> Iterator[dict[str, Any]]:
    """Every event as a dictionary with all columns; times are microseconds since 1970."""
    wanted = wanted or Filter()
    names = {} if names is None else names
    empty: dict[str, Any] = dict.fromkeys(column.name for column in columns(bodies=bodies))
    for frame in frames:
        words = frame.words()
        for at in range(0, len(words), ROW_WORDS):
            row = words[at : at + ROW_WORDS]
            kind, queue = row[0] & 0xFF, row[0] >> 32
            if kind not in EVENTS:
                raise LogCorrupt(
                    f"frame {frame.number} has a record of type {kind}, which this release does not support"
                )
            if kind in (Type.POLICY_SET, Type.BASE):
                names |= told(kind, _part(frame, row[6]))
            known = names.get(queue)
            if wanted.wants(queue, known.name if known else None, kind, row[2]):
                event = dict(empty)
                if known:
                    event["tenant"], event["queue_name"] = known
                _fill(event, frame, at // ROW_WORDS, row, bodies)
                yield event


def _fill(event: dict[str, Any], frame: Frame, index: int, row: array[int], bodies: bool) -> None:
    w0, w1, w2, w3, w4, w5, w6, w7 = row
    kind, flags, priority, reason = w0 & 0xFF, w0 >> 8 & 0xFF, w0 >> 16 & 0xFF, w0 >> 24 & 0xFF
    event["shard"], event["frame"], event["row"] = frame.shard, frame.number, index
    event["logical_time"] = frame.number << 16 | index
    event["region"], event["owner_epoch"] = frame.region, frame.epoch
    event["time"], event["event"], event["flags"] = w2 * 1000, EVENTS[kind], flags
    event["queue"] = w0 >> 32 or None
    event["variable_bytes"] = w6 >> 32
    if kind == Type.SENT and flags & SentFlag.FANNED:
        event["subscription"] = w5
    if kind not in (Type.SENT, Type.PUBLISHED):
        event["reason"] = REASONS.get(reason)
    if kind in MESSAGE_TYPES:
        if w1:
            event["sequence"], event["message_id"] = w1, message_id(frame.shard, w1)
            event["priority"] = priority
            event["slot"] = w7 & _LOW32 if w7 & _LOW32 != NO_SLOT else None
    elif kind not in (Type.JOB_SET,):
        event["number"] = w1
    if kind in _LEASES:
        event["lease_epoch"], event["receive_count"] = w4 & _LOW32, w4 >> 32
    part = _part(frame, w6)
    if kind == Type.LEASED:
        event["deadline"] = _time(w3)
        event["holder"], event["attempt"] = (text or None for text in decode_notes(part)) if part else (None, None)
    elif kind == Type.EXTENDED:
        event["deadline"] = _time(w3)
    elif kind == Type.RETURNED:
        event["visible_at"] = _time(w3)
        if part:
            event["error_class"], event["error_text"] = (text or None for text in decode_notes(part))
    elif kind in (Type.OWED, Type.SETTLED):
        event["other_shard"], event["channel_number"] = w3 & 0xFFFF, w3 >> 16
        if kind == Type.OWED:
            event["other_queue"], event["lineage"] = w7 >> 32, part.decode() or None
        elif reason != Reason.ACCEPTED:
            event["visible_at"] = _time(w4)
    elif kind in (Type.REQUESTED, Type.PRODUCED, Type.QUEUE_PURGED):
        event["messages"] = w4
    elif kind == Type.PUBLISHED:
        event["messages"] = (w3 & _LOW32) - (w3 >> 32)
        _fill_payload(event, part, bodies)
    elif kind == Type.SUBSCRIPTION_SET:
        event["subscription"], event["detail"] = w4, part.decode() or None
    elif kind == Type.EPOCH:
        event["grace_ms"] = w4
    elif kind == Type.BASE:
        event["first_frame"], event["detail"] = w3, base_detail(part)
    elif kind == Type.SCHEDULE_SET:
        event["detail"] = schedule_detail(part)
    elif kind in (Type.POLICY_SET, Type.JOB_SET, Type.READER_SET):
        event["detail"] = part.decode() or None
    if kind in _PAYLOADS:
        _fill_message(event, frame, row, part, bodies)


def _fill_message(event: dict[str, Any], frame: Frame, row: array[int], part: bytes, bodies: bool) -> None:
    w0, _, w2, w3, w4, w5, _, w7 = row
    kind, flags = w0 & 0xFF, w0 >> 8 & 0xFF
    prefix = 0
    if kind == Type.ARRIVED:
        if flags & ArrivedFlag.OVERLAY:
            event["other_shard"], event["source_slot"] = frame.shard, w5 & _LOW32
            event["channel_number"] = w5 >> 32 or None
        else:
            event["other_shard"], event["channel_number"] = w5 & 0xFFFF, w5 >> 16
        if flags & ArrivedFlag.REFUSED:
            return
        event["receive_count"], event["sent_at"] = w4 & _LOW32, _time(w3)
        event["expires_at"] = _time((w7 >> 32) * 1000)
        if w4 >> 32:
            event["visible_at"] = _time(w2 + (w4 >> 32))
        if flags & ArrivedFlag.OVERLAY:
            event["lineage"] = part.decode() or None
            return
        prefix = arrived_prefix(flags)
        event["other_queue"] = int.from_bytes(part[8:12], "little") or None
    elif kind == Type.SENT:
        event["visible_at"], event["sent_at"] = _time(w3), w2 * 1000
        event["receives_max"] = w0 >> 24 & 0xFF or None
    else:
        at = EDITED_PREFIX.size if kind == Type.EDITED else 0
        prefix = at + CARRIED_PREFIX.size
        state, _, maximum, _, _, _, sent_ms = CARRIED_PREFIX.unpack_from(part, at)
        event["state"], event["receives_max"], event["sent_at"] = STATES.get(state), maximum or None, _time(sent_ms)
        event["deadline" if state == State.IN_FLIGHT else "visible_at"] = _time(w3)
    event["expires_at"] = _time((w7 >> 32) * 1000)
    _fill_payload(event, part[prefix:], bodies)


def _fill_payload(event: dict[str, Any], data: bytes, bodies: bool) -> None:
    found = payload.decode(data)
    event["group"], event["dedup_key"] = found.group or None, found.dedup_id or None
    event["sender"], event["trace"] = found.sender or None, found.trace or None
    event["lineage"] = found.lineage.decode() or None
    event["content"] = CONTENTS.get(found.content & ~payload.REFERS)
    event["attributes_bytes"], event["body_bytes"] = len(found.attributes), len(found.body)
    if found.attributes:
        event["attributes"] = attribute_pairs(found.attributes)
    if bodies:
        event["body"] = found.body


def attribute_pairs(data: bytes) -> list[tuple[str, str]]:
    return [
        (each.name, base64.b64encode(each.value).decode() if each.binary else each.value.decode())
        for each in payload.decode_attributes(data)
    ]


def _time(time_ms: int) -> int | None:
    """Microseconds, or None for "never" and for no time."""
    return time_ms * 1000 if 0 < time_ms < NEVER_MS else None


def _part(frame: Frame, w6: int) -> bytes:
    offset = w6 & _LOW32
    return frame.variable[offset : offset + (w6 >> 32)]
