"""The message of a schedule: how it is stored, and the Send command of one firing."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from batonq.core.commands import Send
from batonq.core.payload import Attribute, decode_attributes, encode_attributes
from batonq.priorities import NORMAL_PRIORITY

# Attributes of every message that a schedule sends, unless the schedule's message has attributes of these names.
NAME_ATTRIBUTE = "scheduleName"
TIME_ATTRIBUTE = "scheduledTime"


class ScheduledMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Absent properties are the queue's. A firing is never a duplicate, so there is no deduplication id."""

    body: bytes
    content: int = 0  # content type of the body, see payload.Content
    attributes: bytes = b""  # encoded, see payload.py
    group: str = ""
    priority: int = NORMAL_PRIORITY
    ttl_ms: int | None = None
    max_receives: int = 0
    sender: str = ""  # who made the schedule

    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    def command(self, queue: int, name: str, due_ms: int) -> Send:
        """The command that sends this message for the firing that was due at this time."""
        given = decode_attributes(self.attributes)
        names = {row.name for row in given}
        own = {NAME_ATTRIBUTE: name, TIME_ATTRIBUTE: shown_time(due_ms)}
        added = [Attribute(key, "String", value.encode(), False) for key, value in own.items() if key not in names]
        return Send(
            queue,
            [self.body],
            sender=self.sender,
            content=self.content,
            attributes=[encode_attributes([*given, *added])],
            groups=[self.group] if self.group else (),
            priorities=[self.priority] if self.priority != NORMAL_PRIORITY else (),
            ttls_ms=[self.ttl_ms] if self.ttl_ms is not None else (),
            max_receives=[self.max_receives] if self.max_receives else (),
        )


def parse_message(text: str) -> ScheduledMessage:
    """The message that a schedule stores."""
    return _decode(text)


def shown_time(time_ms: int) -> str:
    """A time in RFC 3339, in UTC, such as 2027-01-31T09:00:00Z. Milliseconds are shown if there are any."""
    time = datetime.fromtimestamp(time_ms / 1000, UTC)
    return time.isoformat(timespec="milliseconds" if time_ms % 1000 else "seconds").replace("+00:00", "Z")


_decode = msgspec.json.Decoder(ScheduledMessage).decode
