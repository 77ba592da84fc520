"""Log records in readable form: the eight words of a row, with the names that they have for its type."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from batonq.core import payload
from batonq.core.records import (
    CARRIED_PREFIX,
    EDITED_PREFIX,
    FLAGS,
    MESSAGE_TYPES,
    NO_SLOT,
    ROW_WORDS,
    ArrivedFlag,
    Reason,
    SentFlag,
    Type,
    arrived_prefix,
)
from batonq.log.frames import Frame
from batonq.log.repair import type_name

CONTENT_CHARACTERS_MAX = 2_000
_LOW32 = 0xFFFFFFFF
_FOREVER_MS = (1 << 64) - 1

# The names of w1, w3, w4 and w5 where they are not sequence, until, lease and previous position.
_W1: dict[int, str] = {
    Type.EPOCH: "epoch",
    Type.BASE: "next_sequence",
    Type.POLICY_SET: "catalog_version",
    Type.QUEUE_PURGED: "first_kept_sequence",
    Type.QUEUE_CLOSED: "catalog_version",
    Type.SUBSCRIPTION_SET: "catalog_version",
    Type.READER_SET: "committed_position",
    Type.REQUESTED: "first_sequence",
    Type.PRODUCED: "last_sequence",
    Type.CATALOG_SET: "catalog_version",
    Type.CATALOG_BASE: "catalog_version",
}
_W3: dict[int, str] = {
    Type.EPOCH: "base_ms",
    Type.BASE: "first_frame",
    Type.SENT: "visible_at_ms",
    Type.LEASED: "deadline_ms",
    Type.EXTENDED: "deadline_ms",
    Type.RETURNED: "visible_at_ms",
    Type.ARRIVED: "sent_ms",
    Type.QUEUE_PURGED: "last_step",
    Type.READER_SET: "epoch",
    Type.SCHEDULE_SET: "next_due_ms",
    Type.SUBSCRIPTION_SET: "removed",
    Type.REQUESTED: "expires_ms",
    Type.PRODUCED: "producer_number",
}
_W4: dict[int, str] = {
    Type.EPOCH: "grace_ms",
    Type.SENT: "group_hash",
    Type.PUBLISHED: "group_hash",
    Type.SUBSCRIPTION_SET: "subscription",
    Type.SETTLED: "visible_at_ms",
    Type.QUEUE_PURGED: "messages",
    Type.REQUESTED: "messages",
    Type.PRODUCED: "run",
}
_W5: dict[int, str] = {
    Type.QUEUE_PURGED: "first_known_sequence",
    Type.SENT: "dedup_hash",
    Type.PUBLISHED: "dedup_hash",
    Type.REQUESTED: "invocation_hash",
    Type.PRODUCED: "producer_hash",
}
_AUXILIARY: dict[int, str] = {
    Type.OWED: "destination_queue",
    Type.SENT: "expires_s",
    Type.CARRIED: "expires_s",
    Type.EDITED: "expires_s",
    Type.PRODUCED: "expires_s",
    Type.PUBLISHED: "envelope_bytes",
}
_CHANNEL = (Type.OWED, Type.SETTLED)
_PAYLOADS = (Type.SENT, Type.PUBLISHED, Type.EDITED, Type.CARRIED, Type.ARRIVED)


def records(frame: Frame, *, content: bool) -> list[dict[str, Any]]:
    """A frame's records in order. With `content`, also bodies and texts, which may be confidential."""
    words = frame.words()
    return [
        _record(frame, at // ROW_WORDS, list(words[at : at + ROW_WORDS]), content)
        for at in range(0, len(words), ROW_WORDS)
    ]


def _record(frame: Frame, row: int, words: list[int], content: bool) -> dict[str, Any]:
    w0, w1, w2, w3, w4, w5, w6, w7 = words
    type_, flags, priority, reason = w0 & 0xFF, w0 >> 8 & 0xFF, w0 >> 16 & 0xFF, w0 >> 24 & 0xFF
    found: dict[str, Any] = {"row": row, "type": type_name(type_), "queue": w0 >> 32}
    found[_W1.get(type_, "sequence")] = w1
    found["time_ms"] = w2
    if flags:
        found["flags"] = _flags(type_, flags)
    if priority:
        found["priority"] = priority
    if type_ in (Type.SENT, Type.PUBLISHED):
        found["receives_max"] = reason
    elif reason:
        found["reason"] = _reason(reason)
    if type_ in _CHANNEL:
        found["destination_shard"], found["channel_number"] = w3 & 0xFFFF, w3 >> 16
    elif type_ == Type.PUBLISHED:
        found["copies"], found["dropped_copies"] = w3 & _LOW32, w3 >> 32
    else:
        found[_W3.get(type_, "until_ms")] = w3
    found.update(_lease_and_previous(type_, flags, w4, w5))
    if type_ == Type.SENT and flags & SentFlag.FANNED:
        found["subscription"] = found.pop("dedup_hash")
    if w6 >> 32:
        found["variable_bytes"] = w6 >> 32
    if type_ == Type.EPOCH:
        found["format_version"] = w7
    else:
        found.update(_slot_and_auxiliary(type_, w7))
    if content and w6 >> 32:
        variable = frame.variable[w6 & _LOW32 : (w6 & _LOW32) + (w6 >> 32)]
        found["content"] = _content(type_, flags, variable)
    return {name: value for name, value in found.items() if value != 0 or name in ("row", "queue", "slot")}


def _lease_and_previous(type_: int, flags: int, w4: int, w5: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if type_ == Type.ARRIVED:
        found["receive_count"], found["delay_ms"] = w4 & _LOW32, w4 >> 32
    elif type_ in _W4:
        found[_W4[type_]] = w4
    else:
        found["lease_epoch"], found["receive_count"] = w4 & _LOW32, w4 >> 32
    if type_ in _W5:
        found[_W5[type_]] = w5
    elif type_ == Type.ARRIVED and flags & ArrivedFlag.OVERLAY:
        found["source_slot"] = w5
    elif type_ == Type.ARRIVED:
        found["source_shard"], found["channel_number"] = w5 & 0xFFFF, w5 >> 16
    elif w5:
        found["previous"] = f"{w5 >> 16}:{w5 & 0xFFFF}"
    return found


def _slot_and_auxiliary(type_: int, w7: int) -> dict[str, Any]:
    slot, auxiliary = w7 & _LOW32, w7 >> 32
    found = {"slot": slot} if type_ in MESSAGE_TYPES and slot != NO_SLOT else {}
    return {**found, _AUXILIARY.get(type_, "auxiliary"): auxiliary}


def _flags(type_: int, flags: int) -> list[str]:
    names = {int(flag): str(flag.name) for flag in FLAGS.get(type_, ())}
    return [names.get(bit, f"flag {bit}") for bit in (1 << number for number in range(8)) if flags & bit]


def _reason(reason: int) -> str:
    try:
        return Reason(reason).name
    except ValueError:
        return f"reason {reason}"


def _content(type_: int, flags: int, variable: bytes) -> Any:
    moved = type_ == Type.ARRIVED and flags & (ArrivedFlag.OVERLAY | ArrivedFlag.REFUSED)
    if type_ in _PAYLOADS and not moved:
        try:
            found = payload.decode(variable[_payload_at(type_, flags) :])
        except (ValueError, IndexError, UnicodeDecodeError):
            return _text(variable)
        return {
            "sender": found.sender,
            "group": found.group,
            "dedup_id": found.dedup_id,
            "attributes": [attribute.name for attribute in payload.decode_attributes(found.attributes)],
            "lineage": _text(found.lineage),
            "body_bytes": len(found.body),
            "body": _text(found.body),
        }
    return _text(variable)


def _payload_at(type_: int, flags: int) -> int:
    if type_ == Type.ARRIVED:
        return arrived_prefix(flags)
    if type_ == Type.EDITED:
        return EDITED_PREFIX.size + CARRIED_PREFIX.size
    return CARRIED_PREFIX.size if type_ == Type.CARRIED else 0


def _text(data: bytes) -> str:
    text = data[: CONTENT_CHARACTERS_MAX * 4].decode(errors="backslashreplace")
    return text if len(text) <= CONTENT_CHARACTERS_MAX else text[:CONTENT_CHARACTERS_MAX] + "…"


def as_line(record: dict[str, Any]) -> str:
    """One record as a line: row, type and fields."""
    parts = []
    for name, value in record.items():
        if name in ("row", "type"):
            continue
        if name.endswith("_ms") and name != "grace_ms":
            parts.append(f"{name.removesuffix('_ms')}={time_text(value)}")
        elif isinstance(value, list):
            parts.append(f"{name}={'+'.join(value)}")
        elif isinstance(value, dict):
            parts += [f"{inner}={text!r}" for inner, text in value.items() if text]
        elif name == "content":
            parts.append(f"content={value!r}")
        else:
            parts.append(f"{name}={value}")
    return f"  {record['row']:>5} {record['type']:<13} {' '.join(parts)}"


def time_text(time_ms: int) -> str:
    if time_ms == _FOREVER_MS:
        return "never"
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{time_ms % 1000:03}Z"
