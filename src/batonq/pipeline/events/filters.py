"""Filters on queue, event and time, applied to a record's words before any text is decoded."""

from __future__ import annotations

from dataclasses import dataclass

from batonq.errors import InvalidInput
from batonq.pipeline.events.schema import EVENTS


@dataclass(slots=True, frozen=True)
class Filter:
    """An empty filter selects everything. A queue is given by its number, or by its name if the history contains it."""

    queues: frozenset[int | str] | None = None
    events: frozenset[str] | None = None
    since_ms: int | None = None  # inclusive
    until_ms: int | None = None  # exclusive

    def __post_init__(self) -> None:
        unknown = sorted(self.events - set(EVENTS.values())) if self.events is not None else []
        if unknown:
            raise InvalidInput(f"There is no event {unknown[0]!r}; the events are {', '.join(EVENTS.values())}.")

    @property
    def everything(self) -> bool:
        return self.queues is None and self.events is None and self.since_ms is None and self.until_ms is None

    def wants(self, queue: int, name: str | None, kind: int, time_ms: int) -> bool:
        """Whether a record is selected."""
        if self.queues is not None and queue not in self.queues and (name is None or name not in self.queues):
            return False
        if self.events is not None and EVENTS[kind] not in self.events:
            return False
        if self.since_ms is not None and time_ms < self.since_ms:
            return False
        return self.until_ms is None or time_ms < self.until_ms
