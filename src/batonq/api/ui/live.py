"""Live updates: one stream of server-sent events per open page.

Every two seconds the page's data is read again. The stream sends the blocks whose content has changed; if none has, it
sends a beat, so that the browser knows that the stream is alive.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

import msgspec

from batonq.api.ui.backend import Problem

INTERVAL_S = 2.0
STREAMS_MAX = 64  # browsers close the streams of pages that are not visible
LIFETIME_S = 3600.0  # then the browser connects again, and the session is checked again
CONTENT_TYPE = "text/event-stream"
RETRY = b"retry: 2000\n\n"

Blocks = dict[str, str]
# Reads the page's data and renders its blocks; None when the page is over, for example since the session has ended.
Render = Callable[[], Awaitable[Blocks | None]]


class LiveStreams:
    """Counts the open streams, and limits them."""

    def __init__(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.open = 0
        self._sleep = sleep

    @property
    def full(self) -> bool:
        return self.open >= STREAMS_MAX

    async def events(self, render: Render) -> AsyncGenerator[bytes, None]:
        self.open += 1
        try:
            yield RETRY
            shown: Blocks = {}
            for _ in range(int(LIFETIME_S / INTERVAL_S)):
                try:
                    blocks = await render()
                except Problem as problem:  # a shard moves, for example: the page stays as it is and says why
                    yield event("problem", {"detail": problem.detail})
                else:
                    if blocks is None:
                        yield event("over", {})
                        return
                    changed = {name: text for name, text in blocks.items() if shown.get(name) != text}
                    shown = blocks
                    yield event("update", changed) if changed else event("beat", {})
                await self._sleep(INTERVAL_S)
        finally:
            self.open -= 1


def event(name: str, value: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"
