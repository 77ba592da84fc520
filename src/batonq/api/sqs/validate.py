"""Validation of messages, ids and batches, with the error messages of SQS."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from batonq.api.sqs.digests import TRACE_HEADER
from batonq.api.sqs.errors import (
    BATCH_ENTRY_IDS_NOT_DISTINCT,
    EMPTY_BATCH_REQUEST,
    INVALID_BATCH_ENTRY_ID,
    INVALID_MESSAGE_CONTENTS,
    TOO_MANY_ENTRIES,
    UNSUPPORTED_OPERATION,
    SqsError,
    invalid,
    invalid_value,
    missing,
    shortened,
)
from batonq.api.sqs.extensions import is_identifier
from batonq.api.sqs.shapes import AttributeValue
from batonq.core.payload import Attribute

BATCH_ENTRIES_MAX = 10
BATCH_BYTES_MAX = 1_048_576
ENTRY_ID_LENGTH_MAX = 80
ATTRIBUTES_MAX = 10
NAME_BYTES_MAX = 256
TRACE_BYTES_MAX = 2_048
DELAY_MAX_S = 900

# Not allowed in a message: control characters except tab, line feed and carriage return, and U+FFFE and U+FFFF. The
# other forbidden characters (surrogates) cannot be encoded in UTF-8.
_CONTROLS = bytes(code for code in range(32) if code not in (9, 10, 13))
NOT_CHARACTERS = (b"\xef\xbf\xbe", b"\xef\xbf\xbf")
_BAD_CHARACTERS = (
    "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | "
    "#x10000 to #x10FFFF"
)
_ENTRY_ID = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ATTRIBUTE_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")  # letters and digits of any language
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_NUMBER_LENGTH_MAX = 256
_RESERVED = ("aws.", "amazon.")


def encoded(text: str) -> bytes:
    """The bytes of a body. Raises SqsError when the body has a character that is not allowed."""
    data = _encoded(text)
    if data is None:
        raise SqsError(INVALID_MESSAGE_CONTENTS, _BAD_CHARACTERS)
    return data


def _encoded(text: str) -> bytes | None:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return None
    return data if allowed(data) else None


def _encoded_value(text: str) -> bytes:
    """Like `encoded`, for the value of an attribute, for which SQS has a different error."""
    data = _encoded(text)
    if data is None:
        raise invalid_value(_BAD_CHARACTERS)
    return data


def allowed(data: bytes) -> bool:
    """Whether the text has only characters that a message may have. bytes.translate is faster than a regular
    expression.
    """
    if len(data.translate(None, _CONTROLS)) != len(data):
        return False
    return data.isascii() or not (NOT_CHARACTERS[0] in data or NOT_CHARACTERS[1] in data)


def check_identifier(value: str, parameter: str) -> None:
    if not is_identifier(value):
        raise invalid(
            value,
            parameter,
            f"{parameter} can only include alphanumeric and punctuation characters. 1 to 128 in length.",
        )


# --- batches ----------------------------------------------------------------------------------


def check_batch(entries: Sequence[Any] | None, operation: str) -> list[str]:
    """The ids of a batch's entries. Raises SqsError when the batch as a whole is invalid."""
    entry_name = f"{operation}RequestEntry"
    if not entries:
        raise SqsError(EMPTY_BATCH_REQUEST, f"There should be at least one {entry_name} in the request.")
    if len(entries) > BATCH_ENTRIES_MAX:
        raise SqsError(
            TOO_MANY_ENTRIES,
            f"Maximum number of entries per request are {BATCH_ENTRIES_MAX}. You have sent {len(entries)}.",
        )
    ids = [entry.Id for entry in entries]
    if _are_plain(ids):
        return ids
    fullmatch = _ENTRY_ID.fullmatch
    for number, entry_id in enumerate(ids, start=1):
        if entry_id is None:
            raise missing(f"{entry_name}.{number}.Id")
        if fullmatch(entry_id) is None:
            raise SqsError(
                INVALID_BATCH_ENTRY_ID,
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. "
                f"It can be at most {ENTRY_ID_LENGTH_MAX} letters long.",
            )
    if len(set(ids)) != len(ids):
        repeated = next(entry_id for entry_id in ids if ids.count(entry_id) > 1)
        raise SqsError(BATCH_ENTRY_IDS_NOT_DISTINCT, f"Id {repeated} repeated.")
    return ids


def _are_plain(ids: list[Any]) -> bool:
    """A fast check that all ids are valid: distinct, not empty, not too long, only letters and digits."""
    different = {*ids}
    if len(different) != len(ids) or None in different or "" in different:
        return False
    joined = "".join(ids)
    if not joined.isascii() or not joined.replace("-", "").replace("_", "").isalnum():
        return False
    return len(joined) <= ENTRY_ID_LENGTH_MAX or max(map(len, ids)) <= ENTRY_ID_LENGTH_MAX


# --- message attributes -----------------------------------------------------------------------


def message_attributes(values: Mapping[str, AttributeValue], operation: str = "SendMessage") -> list[Attribute]:
    if len(values) > ATTRIBUTES_MAX:
        raise invalid_value(
            f"Number of message attributes [{len(values)}] exceeds the allowed maximum [{ATTRIBUTES_MAX}]."
        )
    return [_attribute(name, value, operation) for name, value in values.items()]


def _attribute(name: str, value: AttributeValue, operation: str) -> Attribute:
    _check_name(name)
    if value.StringListValues or value.BinaryListValues:
        raise SqsError(
            UNSUPPORTED_OPERATION, f"Message attribute list values in {operation} operation are not supported."
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
    if len(_encoded_value(data_type)) > NAME_BYTES_MAX:
        raise invalid_value(f"Message (user) attribute type must be shorter than {NAME_BYTES_MAX} bytes.")
    if value.StringValue is not None and value.BinaryValue is not None:
        raise invalid_value(f"The message (user) attribute '{name}' has a StringValue and a BinaryValue; give one.")
    if kind == "Binary":
        content, binary = value.BinaryValue, True
    else:
        content, binary = None if value.StringValue is None else _encoded_value(value.StringValue), False
    if not content:
        raise invalid_value(f"Message (user) attribute '{name}' must contain a non-empty value of type '{kind}'.")
    if kind == "Number" and (len(content) > _NUMBER_LENGTH_MAX or not _NUMBER.fullmatch(value.StringValue or "")):
        raise invalid_value(f"Can't cast the value of message (user) attribute '{name}' to a number.")
    return Attribute(name, data_type, content, binary)


def _check_name(name: str) -> None:
    if not name:
        raise invalid_value("The request must contain non-empty message (user) attribute names.")
    if len(_encoded_value(name)) > NAME_BYTES_MAX:
        raise invalid_value(f"Message (user) attribute name must be shorter than {NAME_BYTES_MAX} bytes.")
    if name.lower().startswith(_RESERVED):
        raise invalid_value(
            "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. "
            "These strings are reserved for internal use."
        )
    if not _ATTRIBUTE_NAME.fullmatch(name):
        raise invalid_value(
            f"Invalid message (user) attribute name '{shortened(name)}'. A name can contain alphanumeric characters, "
            "underscores, hyphens and periods; it cannot start or end with a period or have two in a row."
        )


def attributes_size(attributes: Sequence[Attribute]) -> int:
    """The number of bytes that attributes add to a message's size: names, types and values."""
    return sum(len(row.name.encode()) + len(row.data_type.encode()) + len(row.value) for row in attributes)


def trace_header(values: Mapping[str, AttributeValue]) -> str:
    """The trace header, the only system attribute that a sender may set."""
    for name, value in values.items():
        if name != TRACE_HEADER:
            raise invalid_value(f"Message system attribute name '{shortened(name, 256)}' is invalid.")
        if value.DataType != "String" or value.BinaryValue is not None:
            raise invalid_value(f"The type of message system attribute '{name}' is invalid. It must be String.")
        if not value.StringValue or len(_encoded_value(value.StringValue)) > TRACE_BYTES_MAX:
            raise invalid_value(
                f"Message system attribute '{name}' must contain a non-empty value of type 'String' "
                f"of at most {TRACE_BYTES_MAX} bytes."
            )
        return value.StringValue
    return ""
