"""Checks the attributes of a message, with the error messages of SQS, and encodes them as they are stored.

The encoding is described in core/payload.py. MD5OfMessageAttributes is the MD5 of the same bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from batonq.api.sqs.errors import UNSUPPORTED_OPERATION, SqsError, invalid_value, shortened
from batonq.api.sqs.shapes import AttributeValue
from batonq.api.sqs.validate import encoded_value
from batonq.node.bounded_cache import BoundedCache
from batonq.queue_attributes import PREFIX

ATTRIBUTES_MAX = 10
NAME_BYTES_MAX = 256
LENGTHS_BYTES = 13  # of an encoded attribute: three lengths and the byte that tells text from bytes
HEADS_MAX = 1_024  # pairs of name and data type that are remembered
HEAD_LENGTH_MAX = 128  # of a name and a data type together; longer ones are not remembered
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")  # letters and digits of any language
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_NUMBER_LENGTH_MAX = 256
_LENGTH = struct.Struct(">I")
_RESERVED = ("aws.", "amazon.")


class _Head(NamedTuple):
    """What attributes with the same name and data type have in common."""

    encoded: bytes
    kind: str
    is_own: bool  # the name has Baton's prefix


# Clients use the same names and types again and again.
_heads: BoundedCache[tuple[str, str | None], _Head] = BoundedCache(HEADS_MAX, HEAD_LENGTH_MAX)


def encode_message_attributes(
    values: Mapping[str, AttributeValue], *, clean: bool = False
) -> tuple[bytes, dict[str, str]]:
    """The attributes, encoded, and the values of those with Baton's prefix. Raises SqsError when one is not valid.

    `clean`: all characters are known to be allowed.
    """
    if len(values) > ATTRIBUTES_MAX:
        raise invalid_value(
            f"Number of message attributes [{len(values)}] exceeds the allowed maximum [{ATTRIBUTES_MAX}]."
        )
    parts: dict[str, bytes] = {}
    own: dict[str, str] = {}
    for name, value in values.items():
        head = _heads.get((name, value.DataType))
        if head is None or value.StringListValues or value.BinaryListValues:
            head = _checked_head(name, value)
        encoded, kind, is_own = head
        text, content = value.StringValue, value.BinaryValue
        if text is not None and content is not None:
            raise invalid_value(f"The message (user) attribute '{name}' has a StringValue and a BinaryValue; give one.")
        if kind != "Binary":
            content = None if text is None else text.encode() if clean else encoded_value(text)
        if not content:
            raise invalid_value(f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'.")
        if kind == "Number" and (len(content) > _NUMBER_LENGTH_MAX or not _NUMBER.fullmatch(text or "")):
            raise invalid_value(f"Can't cast the value of message (user) attribute '{name}' to a number.")
        parts[name] = b"%b%b%b" % (encoded, len(content).to_bytes(4, "big"), content)
        if is_own:
            own[name] = content.decode("utf-8", "replace")
    return b"".join([parts[name] for name in sorted(parts)]), own


class AttributeSelection:
    """Chooses attributes by name, by a prefix that ends in `.*`, or all of them."""

    __slots__ = ("_all", "_names", "_prefixes")

    def __init__(self, names: Iterable[str]) -> None:
        self._names = {*names}
        self._all = not self._names.isdisjoint(("All", ".*", "*"))
        self._prefixes = tuple(name[:-2] for name in self._names if name.endswith(".*"))

    def choose(self, encoded: bytes) -> tuple[dict[str, AttributeValue], bytes]:
        """The chosen attributes, and their encoding."""
        values: dict[str, AttributeValue] = {}
        parts: list[bytes] = []
        names, prefixes, everything = self._names, self._prefixes, self._all
        length_at = _LENGTH.unpack_from
        at, end = 0, len(encoded)
        while at < end:
            start = at
            at += 4 + length_at(encoded, at)[0]
            name = encoded[start + 4 : at].decode()
            type_at = at + 4
            at = type_at + length_at(encoded, at)[0]
            value_at = at + 5
            data_type, is_binary = encoded[type_at:at].decode(), encoded[at] == 2
            at = value_at + length_at(encoded, at + 1)[0]
            if everything or name in names or name.startswith(prefixes):
                content = encoded[value_at:at]
                if is_binary:
                    values[name] = AttributeValue(data_type, None, content)
                else:
                    values[name] = AttributeValue(data_type, content.decode())
                parts.append(encoded[start:at])
        return values, encoded if everything else b"".join(parts)


def attributes_size(encoded: bytes, count: int) -> int:
    """The number of bytes that attributes add to a message's size: names, types and values."""
    return len(encoded) - LENGTHS_BYTES * count


def _checked_head(name: str, value: AttributeValue) -> _Head:
    raw_name = _checked_name(name)
    if value.StringListValues or value.BinaryListValues:
        raise SqsError(
            UNSUPPORTED_OPERATION, "Message attribute list values in SendMessage operation are not supported."
        )
    data_type = value.DataType
    if not data_type:
        raise invalid_value(f"The message (user) attribute '{name}' must contain a non-empty message attribute type.")
    kind = data_type.partition(".")[0]
    if kind not in ("String", "Number", "Binary"):
        raise invalid_value(
            f"The type of message (user) attribute '{name}' is invalid. "
            "You must use only the following supported type prefixes: Binary, Number, String."
        )
    raw_type = encoded_value(data_type)
    if len(raw_type) > NAME_BYTES_MAX:
        raise invalid_value(f"Message (user) attribute type must be shorter than {NAME_BYTES_MAX} bytes.")
    lengths = len(raw_name).to_bytes(4, "big"), len(raw_type).to_bytes(4, "big")
    encoded = b"".join((lengths[0], raw_name, lengths[1], raw_type, b"\x02" if kind == "Binary" else b"\x01"))
    head = _Head(encoded, kind, name.startswith(PREFIX))
    _heads.put((name, data_type), head, len(name) + len(data_type))
    return head


def _checked_name(name: str) -> bytes:
    if not name:
        raise invalid_value("The request must contain non-empty message (user) attribute names.")
    raw = encoded_value(name)
    if len(raw) > NAME_BYTES_MAX:
        raise invalid_value(f"Message (user) attribute name must be shorter than {NAME_BYTES_MAX} bytes.")
    if name.lower().startswith(_RESERVED):
        raise invalid_value(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. "
            "These strings are reserved for internal use."
        )
    if not _NAME.fullmatch(name):
        raise invalid_value(
            f"Invalid message (user) attribute name '{shortened(name)}'. A name can contain alphanumeric characters, "
            "underscores, hyphens and periods; it cannot start or end with a period or have two in a row."
        )
    return raw
