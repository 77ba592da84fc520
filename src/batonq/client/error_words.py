"""Errors from the server in the words of the Python client: `delay` instead of `delaySeconds`."""

from __future__ import annotations

import re

from msgspec.structs import fields

from batonq.client.models import Nack, Outgoing, RedriveFilter
from batonq.client.queue_settings import WIRE_NAMES
from batonq.client.schedule_models import SCHEDULE_NAMES
from batonq.client.specs import REDRIVE_NAMES

_ARGUMENTS = {
    "attemptId": "attempt_id",
    "contentBasedDeduplication": "content_based_deduplication",
    "displayName": "display_name",
    "dryRun": "dry_run",
    "filterPolicy": "filter",
    "filterPolicyScope": "scope",
    "maxMessages": "max_messages",
    "rawDelivery": "raw",
    "receiptHandles": "receipts",
    "targetQueue": "to",
    "visibilityTimeoutSeconds": "visibility",
    "waitSeconds": "wait",
}
_NAMES = {
    **{field.encode_name: field.name for shape in (RedriveFilter, Nack, Outgoing) for field in fields(shape)},
    **{wire: name for names in (REDRIVE_NAMES, WIRE_NAMES) for name, wire in names.items()},
    **_ARGUMENTS,
    **{wire: name for name, wire in SCHEDULE_NAMES.items()},
}
# Only names that no ordinary text contains are replaced: an error may quote what the program sent.
_WORD = re.compile(r"\b(?:" + "|".join(wire for wire, name in _NAMES.items() if wire != name) + r")\b")
_OPENING = re.compile(r"^The request's body is not valid: (?:messages\[0\]\.)?")


def in_client_words(text: str) -> str:
    """The server's text with the client's names for arguments and settings."""
    return _WORD.sub(lambda found: _NAMES[found.group()], _OPENING.sub("", text))
