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
    SqsError,
    invalid,
    invalid_value,
    missing,
    shortened,
)
from batonq.api.sqs.extensions import is_identifier
from batonq.api.sqs.shapes import AttributeValue

BATCH_ENTRIES_MAX = 10
BATCH_BYTES_MAX = 1_048_576
ENTRY_ID_LENGTH_MAX = 80
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


def encoded_value(text: str) -> bytes:
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
    if not joined.isascii() or not (joined.isalnum() or joined.replace("-", "").replace("_", "").isalnum()):
        return False
    return len(joined) <= ENTRY_ID_LENGTH_MAX or max(map(len, ids)) <= ENTRY_ID_LENGTH_MAX


# --- message attributes -----------------------------------------------------------------------


def trace_header(values: Mapping[str, AttributeValue]) -> str:
    """The trace header, the only system attribute that a sender may set."""
    for name, value in values.items():
        if name != TRACE_HEADER:
            raise invalid_value(f"Message system attribute name '{shortened(name, 256)}' is invalid.")
        if value.DataType != "String" or value.BinaryValue is not None:
            raise invalid_value(f"The type of message system attribute '{name}' is invalid. It must be String.")
        if not value.StringValue or len(encoded_value(value.StringValue)) > TRACE_BYTES_MAX:
            raise invalid_value(
                f"Message system attribute '{name}' must contain a non-empty value of type 'String' "
                f"of at most {TRACE_BYTES_MAX} bytes."
            )
        return value.StringValue
    return ""
