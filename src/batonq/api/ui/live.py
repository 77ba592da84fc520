"""Live updates: one stream of server-sent events per open page.

Every two seconds the page's data is read again. The stream sends the blocks whose content has changed; if none has, it
sends a beat, so that the browser knows that the stream is alive. A page that is expensive to render, or that is
rendered on a busy server, is read less often: an open page takes at most a set share of a processor core.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from time import thread_time

import msgspec

from batonq.api.ui.backend import Problem

INTERVAL_S = 2.0
CPU_SHARE_MAX = 0.008  # of a core, per open page
BEATS_MAX = 15  # between two updates of an expensive page: half a minute
STREAMS_MAX = 64  # browsers close the streams of pages that are not visible
ACCOUNT_STREAMS_MAX = 16  # of these, for one account that is not the server's own
LIFETIME_S = 3600.0  # then the browser connects again, and the session is checked again
CONTENT_TYPE = "text/event-stream"
RETRY = b"retry: 2000\n\n"

Blocks = dict[str, str]
# Reads the page's data and renders its blocks; None when the page is over, for example since the session has ended.
Render = Callable[[], Awaitable[Blocks | None]]


class LiveStreams:
    """Counts the open streams, and limits them."""

    def __init__(
        self,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        cpu_seconds: Callable[[], float] = thread_time,
    ) -> None:
        self.open = 0
        self._of_accounts: dict[str, int] = {}
        self._sleep = sleep
        self._cpu_seconds = cpu_seconds

    def full(self, account: str = "") -> bool:
        """Whether no further stream can be opened; `account` is empty for the server's own."""
        return self.open >= STREAMS_MAX or self._of_accounts.get(account, 0) >= ACCOUNT_STREAMS_MAX

    async def events(self, render: Render, account: str = "") -> AsyncGenerator[bytes, None]:
        self.open += 1
        if account:
            self._of_accounts[account] = self._of_accounts.get(account, 0) + 1
        try:
            yield RETRY
            shown: Blocks = {}
            beats = 0  # to send before the next update
            for _ in range(int(LIFETIME_S / INTERVAL_S)):
                if beats:
                    beats -= 1
                    yield event("beat", {})
                    await self._sleep(INTERVAL_S)
                    continue
                before_s = self._cpu_seconds()
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
                beats = min(BEATS_MAX, int((self._cpu_seconds() - before_s) / (INTERVAL_S * CPU_SHARE_MAX)))
                await self._sleep(INTERVAL_S)
        finally:
            self.open -= 1
            if account:
                self._of_accounts[account] -= 1
                if not self._of_accounts[account]:
                    del self._of_accounts[account]


def event(name: str, value: object) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"
