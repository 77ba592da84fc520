"""ASGI middleware that refuses requests while a queue is too deep: `app = ShedLoadASGI(app, depth, [Rule(…)])`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Protocol

from batonq.web.shedding import Refusal, Rule, Shedder

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class _Depth(Protocol):
    async def current(self) -> int | None: ...

    async def close(self) -> None: ...


class ShedLoadASGI:
    """Refuses HTTP requests by the rules. Other connections (websockets, lifespan) pass. Polling stops when the
    application shuts down.
    """

    def __init__(self, app: App, depth: _Depth, rules: Sequence[Rule], *, open_when_unknown: bool = True) -> None:
        self.app = app
        self.depth = depth
        self.shedder = Shedder(rules, open_when_unknown=open_when_unknown)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            rule = self.shedder.concerns(scope["method"], scope["path"])
            refusal = None if rule is None else self.shedder.judge(rule, await self.depth.current())
            if refusal is not None:
                await _refuse(refusal, send)
                return
        try:
            await self.app(scope, receive, send)
        finally:
            if scope["type"] == "lifespan":
                await self.depth.close()


async def _refuse(refusal: Refusal, send: Send) -> None:
    body = refusal.body()
    headers = [(name.lower().encode(), value.encode()) for name, value in refusal.headers(len(body))]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
