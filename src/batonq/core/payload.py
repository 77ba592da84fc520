"""A message's payload as stored in the log, the encoding of its attributes, and its lineage overlay.

Payload:   header (version, content, lengths, MD5 of the body, sent time), then sender, group, dedup id, trace,
           lineage (JSON), attributes, body.
Attributes: the same encoding that MD5OfMessageAttributes digests: for each attribute, sorted by name, the length
           (4 bytes, big-endian) and UTF-8 of the name and of the data type, one byte (1 text, 2 binary), then the
           length and bytes of the value. The digest is therefore the MD5 of these bytes.
Envelope:  stands before the payload of a published message whose copy is delivered in SNS's envelope: a header of the
           same length (version 2), then the topic's ARN and the subject. See node/messages/envelope.py.
Lineage:   where a dead letter, or a replayed message, came from. The lineage stays with the message in the dead-letter
           queue and in a redrive.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from hashlib import sha256
from operator import add
from typing import Any, NamedTuple

from batonq.core.commands import Send

PAYLOAD_VERSION = 1
ENVELOPE_VERSION = 2
_new = tuple.__new__  # what a named tuple's own constructor calls, without an extra Python frame
_HEADER = struct.Struct("<BBHHHHI16sQI")
_HEADER_BYTES = _HEADER.size
_MD5_AT = struct.calcsize("<BBHHHHI")
_LENGTH = struct.Struct(">I")
# The header as columns are read: content, length of the sender, of the others (group, dedup id, trace, lineage), MD5,
# length of the attributes.
_PARTS = struct.Struct("<xBH10s16s8xI")
_OTHERS = struct.Struct("<HHHI")
_NO_OTHERS = bytes(_OTHERS.size)
ENVELOPED = 0x10  # the content of an envelope, in the place of a body's content type
AS_IS = 0x40  # flag in the content: the body needs no escapes as a JSON string
NO_DIGEST = 0x80  # flag in the content: the body's MD5 has not been needed yet and is not stored
STORED = 0x20  # flag in the content: the body is in a payload store, and here is a pointer to it
# Flag in the content: the body is the pointer of a client to an object that the client has put into the payload store.
# It is delivered as it is, and the object is needed.
REFERS = 0x08
IN_STORE = STORED | REFERS
# In a Send: a pointer whose object may be deleted at any moment. The shard refuses it, unless it is of a known request.
UNSAFE_POINTER = STORED | REFERS
_CONTENT_AT = 1
_is_in_store = IN_STORE.__and__
_NO_MD5 = bytes(16)
# What begins the pointers of Amazon's extended client libraries, of current versions and of those before 2.0.
CLIENT_POINTERS = (
    "software.amazon.payloadoffloading.PayloadS3Pointer",
    "com.amazon.sqs.javamessaging.MessageS3Pointer",
)
CLIENT_POINTER_BYTES_MAX = 4096
CLIENT_SIZE = b"PayloadSize"  # the attribute that a client's pointer has: ExtendedPayloadSize or SQSLargePayloadSize
_POINTER_NAMES = [name.encode() for name in CLIENT_POINTERS]
# The cluster that deletes the object, the hour in which it was written, and the SHA-256 of the body, see
# payload_store.py.
_CLIENT_KEY = re.compile(r"(?:^|/)client/[0-9a-f]{1,32}/[0-9]{10}/[0-9a-f]{64}\Z")


class Content(IntEnum):
    """The type of a body. SQS knows only text."""

    TEXT = 0
    JSON = 1  # the UTF-8 of a JSON value
    BYTES = 2


TEXTS = frozenset((int(Content.TEXT), Content.TEXT | AS_IS))  # the contents of plain text bodies


class Payload(NamedTuple):
    sent_ms: int
    sender: str
    group: str
    dedup_id: str
    trace: str
    lineage: bytes  # JSON, or empty
    attributes: bytes
    body: bytes
    body_md5: bytes  # empty: not stored
    content: int = 0
    envelope: bytes = b""  # of a copy of a published message; empty: none


class Envelope(NamedTuple):
    """What SNS's envelope shows beside a published message."""

    topic: int  # number of the topic
    shard: int  # shard and sequence of the publish make its message id
    sequence: int
    published_ms: int
    topic_arn: str
    subject: str


@dataclass(slots=True, frozen=True)
class Lineage:
    """The history that a dead letter keeps. Times are in milliseconds; 0 and empty mean unknown."""

    message_id: str = ""  # shown instead of the id from shard and sequence; empty: show that one
    source_queue: int = 0  # the queue that last dead-lettered the message
    source_shard: int = 0
    source_arn: str = ""  # stored because the queue may be deleted by the time it is read
    first_queue: int = 0
    first_arn: str = ""  # stored because the queue may be deleted by the time it is read
    first_id: str = ""
    first_failure_ms: int = 0
    last_failure_ms: int = 0
    attempts: int = 0
    error_class: str = ""
    reason: str = ""
    dedup_id: str = ""  # replaces the deduplication id in the payload
    sent_ms: int = 0  # replaces the sent time in the payload
    moved_ms: int = 0
    moved: str = ""  # the last move: dead_letter, redrive, expiry or replay

    def encode(self) -> bytes:
        kept = {name: value for name in LINEAGE_FIELDS if (value := getattr(self, name))}
        return json.dumps(kept, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Lineage:
        if not data:
            return cls()
        return cls(**{key: value for key, value in json.loads(data).items() if key in LINEAGE_FIELDS})


_NO_LINEAGE = Lineage()
LINEAGE_FIELDS = tuple(field.name for field in fields(Lineage))


def merge_lineage(old: Lineage, new: Lineage) -> Lineage:
    """Merge the lineage of another move into an existing one. The first queue, id and failure are kept."""
    changes: dict[str, Any] = {}
    if old.first_id:
        changes |= {"first_queue": old.first_queue, "first_arn": old.first_arn, "first_id": old.first_id}
    if old.first_failure_ms:
        changes["first_failure_ms"] = old.first_failure_ms
    for name in ("last_failure_ms", "attempts", "dedup_id", "sent_ms"):
        if not getattr(new, name):
            changes[name] = getattr(old, name)
    if not new.error_class and not new.reason:  # the two describe one failure, so they change together
        changes |= {"error_class": old.error_class, "reason": old.reason}
    if new.moved == "redrive":
        changes |= {name: getattr(old, name) for name in ("source_queue", "source_shard", "source_arn")}
    elif old.message_id:
        changes["message_id"] = old.message_id
    return replace(new, **changes)


def payload_parts(send: Send, sent_ms: int) -> tuple[list[bytes], list[int]]:
    """The payloads of messages that are being sent, in parts, the same number for each; and the length of each."""
    bodies = send.bodies
    count = len(bodies)
    sender = send.sender.encode()
    has_columns = send.attributes or send.groups or send.dedup_ids or send.traces or send.contents or send.lineages
    if not has_columns and b"" not in send.digests:
        before, behind = plain_header(sender, sent_ms, send.content if send.digests else send.content | NO_DIGEST)
        parts = [before, _NO_MD5, behind, b""] * count
        if send.digests:
            parts[1::4] = send.digests
        parts[3::4] = bodies
        head_bytes = _HEADER_BYTES + len(sender)
        return parts, [head_bytes + length for length in map(len, bodies)]
    contents: Sequence[int] = send.contents or [send.content] * count
    digests: Sequence[bytes] = send.digests or [b""] * count
    if b"" in digests:
        contents = [content if md5 else content | NO_DIGEST for content, md5 in zip(contents, digests, strict=True)]
        digests = [md5 or _NO_MD5 for md5 in digests]
    given = [[*map(str.encode, column)] for column in (send.groups, send.dedup_ids, send.traces)]
    none = [0] * count
    lengths = [[*map(len, column)] or none for column in (*given, send.lineages, send.attributes)]
    sender_n = len(sender)
    pack = _HEADER.pack
    heads = [
        pack(PAYLOAD_VERSION, content, sender_n, group_n, dedup_n, trace_n, lineage_n, md5, sent_ms, attributes_n)
        for content, md5, group_n, dedup_n, trace_n, lineage_n, attributes_n in zip(
            contents, digests, *lengths, strict=True
        )
    ]
    columns = [heads, [sender] * count, *filter(None, (*given, send.lineages, send.attributes)), bodies]
    parts = [b""] * (len(columns) * count)
    for at, column in enumerate(columns):
        parts[at :: len(columns)] = column
    return parts, [*map(sum, zip(*[map(len, column) for column in columns], strict=True))]


def overhead_bytes(send: Send) -> int:
    """How much longer the payloads of `payload_parts` are than the bodies and attributes of the messages."""
    size = len(send.bodies) * (_HEADER_BYTES + len(send.sender.encode()))
    for column in (send.groups, send.dedup_ids, send.traces):
        if column:
            size += len("".join(column).encode())
    return size


def content_marks(send: Send) -> list[int]:
    """The content mark of each message that is being sent; see `content_mark`."""
    digests = send.digests or [b""] * len(send.bodies)
    starts = [int.from_bytes(md5[:4], "little") for md5 in digests]
    return [*map(zlib.crc32, send.attributes, starts)] if send.attributes else starts


def _digest_and_content(md5: bytes, content: int) -> tuple[bytes, int]:
    return (md5, content) if md5 else (_NO_MD5, content | NO_DIGEST)


def plain_header(sender: bytes, sent_ms: int, content: int) -> tuple[bytes, bytes]:
    """The header before and after the MD5, for a payload that has only a sender and a body.

    The messages of one request share it: a payload is before + MD5 + behind + body.
    """
    header = _HEADER.pack(PAYLOAD_VERSION, content, len(sender), 0, 0, 0, 0, _NO_MD5, sent_ms, 0)
    return header[:_MD5_AT], header[_MD5_AT + 16 :] + sender


def encode_payload(payload: Payload) -> bytes:
    """Encode a decoded payload."""
    texts = [text.encode() for text in (payload.sender, payload.group, payload.dedup_id, payload.trace)]
    lengths = (*map(len, texts), len(payload.lineage))
    md5, content = _digest_and_content(payload.body_md5, payload.content)
    header = _HEADER.pack(PAYLOAD_VERSION, content, *lengths, md5, payload.sent_ms, len(payload.attributes))
    return b"".join((payload.envelope, header, *texts, payload.lineage, payload.attributes, payload.body))


_PUBLISHED = struct.Struct("<QIHH")  # in the place of the MD5: sequence, topic, shard, unused


def encode_envelope(envelope: Envelope) -> bytes:
    arn, subject = envelope.topic_arn.encode(), envelope.subject.encode()
    length = _HEADER_BYTES + len(arn) + len(subject)
    published = _PUBLISHED.pack(envelope.sequence, envelope.topic, envelope.shard, 0)
    # The length stands where a payload has the length of its group, so that a reader of columns takes a closer look.
    header = _HEADER.pack(
        ENVELOPE_VERSION, ENVELOPED, 0, length, len(arn), len(subject), 0, published, envelope.published_ms, 0
    )
    return header + arn + subject


def envelopes_of(envelope: Envelope, sequences: Sequence[int]) -> list[bytes]:
    """The encoded envelopes of messages that differ only in their sequence."""
    encoded = encode_envelope(envelope)
    before, behind = encoded[:_MD5_AT], encoded[_MD5_AT + 8 :]  # the sequence comes first in the place of the MD5
    return [b"".join((before, sequence.to_bytes(8, "little"), behind)) for sequence in sequences]


def decode_envelope(data: bytes) -> Envelope:
    _, _, _, _, arn_n, subject_n, _, published, published_ms, _ = _HEADER.unpack_from(data)
    sequence, topic, shard, _ = _PUBLISHED.unpack(published)
    arn_end = _HEADER_BYTES + arn_n
    arn, subject = data[_HEADER_BYTES:arn_end].decode(), data[arn_end : arn_end + subject_n].decode()
    return Envelope(topic, shard, sequence, published_ms, arn, subject)


def envelope_length(data: bytes) -> int:
    """The length of the envelope before a payload; 0 if it has none."""
    return data[4] | data[5] << 8 if data[0] == ENVELOPE_VERSION else 0


def decode(data: bytes) -> Payload:
    if data[0] == ENVELOPE_VERSION:
        length = envelope_length(data)
        return decode(data[length:])._replace(envelope=data[:length])
    _, content, sender_n, group_n, dedup_n, trace_n, lineage_n, md5, sent_ms, attributes_n = _HEADER.unpack_from(data)
    if content & NO_DIGEST:
        content ^= NO_DIGEST
        md5 = b""
    content &= ~AS_IS
    at = _HEADER_BYTES
    sender = group = dedup_id = trace = ""
    lineage = b""
    if sender_n:
        sender = data[at : at + sender_n].decode()
        at += sender_n
    if group_n:
        group = data[at : at + group_n].decode()
        at += group_n
    if dedup_n:
        dedup_id = data[at : at + dedup_n].decode()
        at += dedup_n
    if trace_n:
        trace = data[at : at + trace_n].decode()
        at += trace_n
    if lineage_n:
        lineage = data[at : at + lineage_n]
        at += lineage_n
    attributes = data[at : at + attributes_n]
    body = data[at + attributes_n :]
    return Payload(sent_ms, sender, group, dedup_id, trace, lineage, attributes, body, md5, content)


class Payloads(NamedTuple):
    """The payloads of several messages, as columns. A column that no message uses is empty."""

    bodies: Sequence[bytes] = ()
    contents: Sequence[int] = ()  # with the flags NO_DIGEST and AS_IS
    digests: Sequence[bytes] = ()  # MD5 of each body; without a meaning where the content has NO_DIGEST
    senders: Sequence[str] = ()
    groups: Sequence[str] = ()
    dedup_ids: Sequence[str] = ()
    traces: Sequence[str] = ()
    lineages: Sequence[bytes] = ()
    attributes: Sequence[bytes] = ()

    def part(self, start: int, end: int) -> Payloads:
        """The payloads from index `start` to `end`."""
        return _new(Payloads, [column[start:end] for column in self])


def read_payloads(sections: Sequence[bytes], extents: Sequence[int], senders: bool) -> Payloads | None:
    """The payloads at these extents, each in its variable section; None if one is not complete or has an envelope.

    The senders are read only on request.
    """
    contents: list[int] = []
    digests: list[bytes] = []
    rests: list[bytes] = []  # what follows the sender
    has_more = False
    unpack = _PARTS.unpack_from
    for section, extent in zip(sections, extents, strict=True):
        offset = extent & 0xFFFFFFFF
        end = offset + (extent >> 32)
        if end > len(section):
            return None
        content, sender_n, others_n, md5, attributes_n = unpack(section, offset)
        contents.append(content)
        digests.append(md5)
        rests.append(section[offset + _HEADER_BYTES + sender_n : end])
        if attributes_n or others_n != _NO_OTHERS:
            has_more = True
    if has_more and ENVELOPED in contents:
        return None
    names = _read_senders(sections, extents) if senders else ()
    if not has_more:
        return Payloads(rests, contents, digests, names)
    offsets = [extent & 0xFFFFFFFF for extent in extents]
    _, _, others, _, attribute_lengths = zip(*map(unpack, sections, offsets), strict=True)
    columns: list[Sequence[bytes]] = []
    starts = [0] * len(rests)
    for lengths in (*zip(*map(_OTHERS.unpack, others), strict=True), attribute_lengths):
        column: Sequence[bytes] = ()
        if any(lengths):
            ends = [*map(add, starts, lengths)]
            column = [rest[start:end] for rest, start, end in zip(rests, starts, ends, strict=True)]
            starts = ends
        columns.append(column)
    bodies = [rest[start:] for rest, start in zip(rests, starts, strict=True)]
    groups, dedup_ids, traces = [[*map(bytes.decode, column)] for column in columns[:3]]
    lineages, attributes = columns[3:]
    return Payloads(bodies, contents, digests, names, groups, dedup_ids, traces, lineages, attributes)


def _read_senders(sections: Sequence[bytes], extents: Sequence[int]) -> Sequence[str]:
    senders: list[str] = []
    for section, extent in zip(sections, extents, strict=True):
        offset = extent & 0xFFFFFFFF
        start = offset + _HEADER_BYTES
        senders.append(section[start : start + _PARTS.unpack_from(section, offset)[1]].decode())
    return senders


def columns_of(payloads: Sequence[Payload]) -> Payloads:
    """Decoded payloads as columns."""
    if not payloads:
        return Payloads()
    _, senders, groups, dedup_ids, traces, lineages, attributes, bodies, digests, kinds, _ = zip(*payloads, strict=True)
    contents = [kind if md5 else kind | NO_DIGEST for kind, md5 in zip(kinds, digests, strict=True)]
    others = [column if any(column) else () for column in (senders, groups, dedup_ids, traces, lineages, attributes)]
    return Payloads(bodies, contents, digests, *others)


def with_lineage(payload: Payload, lineage: Lineage) -> Payload:
    """The payload as a consumer sees it with this lineage."""
    changes: dict[str, Any] = {"lineage": lineage.encode() if lineage != _NO_LINEAGE else b""}
    if lineage.dedup_id:
        changes["dedup_id"] = lineage.dedup_id
    if lineage.sent_ms:
        changes["sent_ms"] = lineage.sent_ms
    return payload._replace(**changes)


def encode_pointer(key: str, size: int) -> bytes:
    """What a payload has instead of a body that is in a payload store: the key of the object, and its length."""
    return f"{key} {size}".encode()


def decode_pointer(body: bytes) -> tuple[str, int]:
    key, _, size = body.decode().partition(" ")
    return key, int(size)


def referred_key(body: bytes) -> str:
    """The key of the object that a client's pointer refers to, in the payload store of a server; empty if the body is
    no pointer, or one to an object that no server deletes.
    """
    if len(body) > CLIENT_POINTER_BYTES_MAX or not any(name in body for name in _POINTER_NAMES):
        return ""
    try:
        name, place = json.loads(body)
        found = _CLIENT_KEY.search(place["s3Key"]) if name in CLIENT_POINTERS else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return found[0].lstrip("/") if found else ""


def content_key(body: bytes) -> str:
    """The deduplication id of a message by its content: the SHA-256 of its body, also of one that a client has put into
    the payload store. The pointer to it is different in every hour.
    """
    key = referred_key(body)
    return key.rpartition("/")[2] if key else sha256(body).hexdigest()


def is_unsafe(content: int) -> bool:
    """Whether a message of a Send must be refused, because its object in the payload store may be deleted."""
    return content & UNSAFE_POINTER == UNSAFE_POINTER


def stored_key(data: bytes) -> str:
    """The key of the object in the payload store that the message needs; empty if it needs none."""
    data = data[envelope_length(data) :]
    content = data[_CONTENT_AT]
    return _key_of(decode(data).body, content) if content & IN_STORE else ""


def stored_keys(sends: Sequence[Send]) -> list[str]:
    """The key of the object in the payload store that each message needs, "" if it needs none; empty if none does."""
    for send in sends:
        if send.content & IN_STORE or (send.contents and any(map(_is_in_store, send.contents))):
            break
    else:
        return []
    return [
        _key_of(body, content)
        for send in sends
        for body, content in zip(send.bodies, send.contents or [send.content] * len(send.bodies), strict=True)
    ]


def _key_of(body: bytes, content: int) -> str:
    if content & STORED:
        return decode_pointer(body)[0]
    return referred_key(body) if content & REFERS else ""


def content_mark(data: bytes) -> int:
    """32 bits that identify the content of an encoded payload: its body's MD5 and its attributes."""
    data = data[envelope_length(data) :]
    _, _, sender_n, group_n, dedup_n, trace_n, lineage_n, md5, _, attributes_n = _HEADER.unpack_from(data)
    at = _HEADER_BYTES + sender_n + group_n + dedup_n + trace_n + lineage_n
    return zlib.crc32(data[at : at + attributes_n], int.from_bytes(md5[:4], "little"))


class Attribute(NamedTuple):
    name: str
    data_type: str
    value: bytes
    binary: bool


def encode_attribute(name: str, data_type: str, value: bytes, binary: bool) -> bytes:
    raw_name = name.encode()
    raw_type = data_type.encode()
    pack = _LENGTH.pack
    return b"".join(
        (
            pack(len(raw_name)),
            raw_name,
            pack(len(raw_type)),
            raw_type,
            b"\x02" if binary else b"\x01",
            pack(len(value)),
            value,
        )
    )


def encode_attributes(attributes: list[Attribute]) -> bytes:
    return b"".join(encode_attribute(*attribute) for attribute in sorted(attributes))


def decode_attributes(data: bytes) -> list[Attribute]:
    result = []
    at = 0
    unpack = _LENGTH.unpack_from
    while at < len(data):
        length = unpack(data, at)[0]
        name = data[at + 4 : at + 4 + length].decode()
        at += 4 + length
        length = unpack(data, at)[0]
        data_type = data[at + 4 : at + 4 + length].decode()
        at += 4 + length
        binary = data[at] == 2
        length = unpack(data, at + 1)[0]
        result.append(Attribute(name, data_type, data[at + 5 : at + 5 + length], binary))
        at += 5 + length
    return result
