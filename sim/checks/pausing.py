"""Pausing: while a queue is certainly paused, nothing new is delivered from it, or accepted by it.

A pause is certain from the answer to the request that asked for it until the next such request is made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sim.checks.evidence import Evidence, Finding, about
from sim.history import OK, PAUSE, Call, Receiving, Sending, Steering

FOREVER_S = 1e18


class Window(NamedTuple):
    paused: str
    from_s: float
    until_s: float

    def has(self, call: Call) -> bool:
        return self.from_s <= call.started_s and 0 <= call.ended_s <= self.until_s


def check(evidence: Evidence) -> Iterator[Finding]:
    windows = _windows(evidence)
    if not windows:
        return
    for call in evidence.history.of(Receiving):
        if call.attempt or not call.deliveries:
            continue  # a repeated attempt gets the messages that it has already
        for window in windows.get(call.queue, ()):
            if window.paused in ("delivery", "both") and window.has(call):
                yield about(
                    f"call {call.number} received {len(call.deliveries)} messages of {call.queue}, whose delivery was "
                    f"paused since {window.from_s:.3f} s",
                    call.deliveries[0].number,
                )
    for sending in evidence.history.of(Sending):
        if sending.once:
            continue  # a repeated request is answered as the first time
        taken = [
            message.number
            for message, answer in zip(sending.messages, sending.answers, strict=False)
            if answer.outcome == OK and not answer.duplicate
        ]
        for window in windows.get(sending.queue, ()) if taken else ():
            if window.paused in ("sends", "both") and window.has(sending):
                yield about(
                    f"call {sending.number} sent {len(taken)} messages to {sending.queue}, to which sends were paused "
                    f"since {window.from_s:.3f} s",
                    *taken,
                )


def _windows(evidence: Evidence) -> dict[str, list[Window]]:
    """When each queue was certainly paused."""
    found: dict[str, list[Window]] = {}
    last: dict[str, tuple[str, float]] = {}
    for call in evidence.history.of(Steering):
        if call.kind != PAUSE:
            continue
        before = last.pop(call.queue, None)
        if before is not None:
            found.setdefault(call.queue, []).append(Window(*before, call.started_s))
        if call.outcome == OK:
            last[call.queue] = (call.detail, call.ended_s)
    for queue, (paused, from_s) in last.items():
        found.setdefault(queue, []).append(Window(paused, from_s, FOREVER_S))
    return found
