"""Collects the messages of one request as the columns of a Send command."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
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
    "subjects": "",
}


class SendBuilder:
    """Messages are given as columns, or added one by one. A column exists only if a message uses it."""

    __slots__ = ("_columns", "at", "bodies", "digests")

    def __init__(self, bodies: Iterable[bytes] = (), digests: Iterable[bytes] = ()) -> None:
        self.bodies = [*bodies]
        self.digests = [*digests]  # MD5s of the bodies, where needed
        self.at = -1  # the message that `put` and `get` concern
        self._columns: dict[str, list[Any]] = {}

    def add(self, body: bytes) -> None:
        self.at = len(self.bodies)
        self.bodies.append(body)

    def put(self, column: str, value: Any) -> None:
        """Set a property of the message `at`, replacing an earlier value."""
        values = self._columns.get(column)
        if values is None:
            values = self._columns[column] = []
        at = self.at
        if len(values) > at:
            values[at] = value
            return
        if len(values) < at:
            values += [_DEFAULTS[column]] * (at - len(values))
        values.append(value)

    def put_all(self, column: str, values: list[Any]) -> None:
        """Set a property of all messages."""
        self._columns[column] = values

    def get(self, column: str) -> Any:
        """A property of the message `at`."""
        values = self._columns.get(column, ())
        return values[self.at] if len(values) > self.at else _DEFAULTS[column]

    def remove(self, places: Container[int]) -> None:
        """Remove the messages at these places."""
        kept = [at for at in range(len(self.bodies)) if at not in places]
        for values in (self.bodies, self.digests, *self._columns.values()):
            values[:] = [values[at] for at in kept if at < len(values)]

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
        for name in self._columns:
            self.column(name)  # completes it
        return Send(
            queue,
            self.bodies,
            self.digests,
            sender,
            content,
            request=request,
            producer=producer,
            once=once,
            **self._columns,
        )
