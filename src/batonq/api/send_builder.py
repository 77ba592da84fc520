"""Collects the messages of one request as the columns of a Send command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batonq.core.commands import Once, Send
from batonq.priorities import NORMAL_PRIORITY

_DEFAULTS: dict[str, Any] = {
    "contents": 0,
    "attributes": b"",
    "groups": "",
    "dedup_ids": "",
    "strict": False,
    "traces": "",
    "priorities": NORMAL_PRIORITY,
    "delays_ms": None,
    "ttls_ms": None,
    "max_receives": 0,
    "numbers": 0,
}


class SendBuilder:
    """Messages are added one by one. Properties other than the body are set on the last message. A column is created by
    the first message that uses it.
    """

    __slots__ = ("_columns", "bodies", "digests")

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.digests: list[bytes] = []  # MD5s of the bodies, where needed
        self._columns: dict[str, list[Any]] = {}

    def add(self, body: bytes) -> None:
        self.bodies.append(body)

    def put(self, column: str, value: Any) -> None:
        """Set a property of the last message, replacing an earlier value."""
        values = self._columns.get(column)
        if values is None:
            values = self._columns[column] = []
        at = len(self.bodies) - 1
        if len(values) > at:
            values[at] = value
            return
        if len(values) < at:
            values += [_DEFAULTS[column]] * (at - len(values))
        values.append(value)

    def last(self, column: str) -> Any:
        """A property of the last message."""
        values = self._columns.get(column, ())
        at = len(self.bodies) - 1
        return values[at] if len(values) > at else _DEFAULTS[column]

    def drop(self) -> None:
        """Remove the last message."""
        self.bodies.pop()
        count = len(self.bodies)
        del self.digests[count:]
        for values in self._columns.values():
            del values[count:]

    def clear(self, column: str) -> None:
        """Remove a column in which all messages have the same value."""
        self._columns.pop(column, None)

    def column(self, name: str) -> Sequence[Any]:
        """A property of all messages; empty if no message has it."""
        values = self._columns.get(name, [])
        missing = len(self.bodies) - len(values)
        if values and missing:
            values += [_DEFAULTS[name]] * missing
        return values

    def build(
        self,
        queue: int,
        sender: str,
        content: int = 0,
        request: int = 0,
        producer: str = "",
        once: Once | None = None,
    ) -> Send:
        columns = {name: values for name in self._columns if (values := self.column(name))}
        return Send(
            queue,
            self.bodies,
            self.digests,
            sender,
            content,
            request=request,
            producer=producer,
            once=once,
            **columns,
        )
