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
HEADS_MAX = 1_024  # names with their data types that are remembered, because clients use the same again and again
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


_heads: BoundedCache[tuple[str, str | None], _Head] = BoundedCache(HEADS_MAX, HEAD_LENGTH_MAX)
# Encoded head → name, data type, and whether the value is binary.
_decoded_heads: BoundedCache[bytes, tuple[str, str, bool]] = BoundedCache(HEADS_MAX, HEAD_LENGTH_MAX)


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
    parts: list[tuple[str, bytes]] = []
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
        parts.append((name, encoded + _LENGTH.pack(len(content)) + content))
        if is_own:
            own[name] = content.decode("utf-8", "replace")
    parts.sort()
    return b"".join([part for _, part in parts]), own


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
        everything = self._all
        length_at = _LENGTH.unpack_from
        at, end = 0, len(encoded)
        while at < end:
            start = at
            type_at = start + 8 + length_at(encoded, start)[0]
            flag_at = type_at + length_at(encoded, type_at - 4)[0]
            value_at = flag_at + 5
            at = value_at + length_at(encoded, flag_at + 1)[0]
            head = encoded[start : flag_at + 1]
            name, data_type, is_binary = _decoded_heads.get(head) or _decoded_head(head, type_at - start)
            if everything or self._is_chosen(name):
                content = encoded[value_at:at]
                values[name] = (
                    AttributeValue(data_type, None, content)
                    if is_binary
                    else AttributeValue(data_type, content.decode())
                )
                if not everything:
                    parts.append(encoded[start:at])
        return values, encoded if everything else b"".join(parts)

    def _is_chosen(self, name: str) -> bool:
        return name in self._names or name.startswith(self._prefixes)


def _decoded_head(head: bytes, type_at: int) -> tuple[str, str, bool]:
    decoded = head[4 : type_at - 4].decode(), head[type_at:-1].decode(), head[-1] == 2
    _decoded_heads.put(head, decoded, len(head))
    return decoded


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
    pack = _LENGTH.pack
    flag = b"\x02" if kind == "Binary" else b"\x01"
    encoded = b"".join((pack(len(raw_name)), raw_name, pack(len(raw_type)), raw_type, flag))
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
