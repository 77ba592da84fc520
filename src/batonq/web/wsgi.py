"""WSGI middleware that refuses requests while a queue is too deep: `app = ShedLoadWSGI(app, depth, [Rule(…)])`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from batonq.web.shedding import Rule, Shedder

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]
_STATUS = {429: "429 Too Many Requests", 503: "503 Service Unavailable"}


class _Depth(Protocol):
    def current(self) -> int | None: ...


class ShedLoadWSGI:
    """Refuses requests by the rules; all others pass unchanged."""

    def __init__(self, app: App, depth: _Depth, rules: Sequence[Rule], *, open_when_unknown: bool = True) -> None:
        self.app = app
        self.depth = depth
        self.shedder = Shedder(rules, open_when_unknown=open_when_unknown)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
        rule = self.shedder.concerns(environ["REQUEST_METHOD"], path)
        refusal = None if rule is None else self.shedder.judge(rule, self.depth.current())
        if refusal is None:
            return self.app(environ, start_response)
        body = refusal.body()
        start_response(_STATUS[refusal.status], refusal.headers(len(body)))
        return [body]
