"""A dashboard without a server: a REST API that answers from tables, and a browser without scripts."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from html import unescape
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from batonq.api.http import Request, Response
from batonq.api.sqs.access import Caller
from batonq.api.ui import DashboardAccess, UiApp
from batonq.core.catalog.entries import WRITE, AccessKey

NOW_S = 1_790_000_000.0
HOST = "localhost:9324"
ACCOUNT = "000000000000"
TOKEN = "admin-token-of-the-tests"
Answer = Any | Callable[[dict[str, str], Any], Any]


class Refusal(Exception):
    """What a fake operation raises to answer with a problem."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail = status, code, detail


class FakeRest:
    """`answers`: by method and path, a value or a function of the query and the body. `asked` is what was called."""

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        self.answers: dict[str, Answer] = {**(answers or {})}
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.callers: list[Caller] = []

    async def handle(self, request: Request, caller: Caller) -> Response:
        name = f"{request.method} {request.path}"
        query = dict(parse_qsl(request.query))
        body = msgspec.json.decode(request.body) if request.body else None
        self.asked.append((name, query, body))
        self.callers.append(caller)
        found = self.answers.get(name, Refusal(404, "not_found", f"{request.path} does not exist."))
        try:
            value = found(query, body) if callable(found) else found
            if isinstance(value, Refusal):
                raise value
        except Refusal as refusal:
            problem = {"code": refusal.code, "detail": refusal.detail, "status": refusal.status}
            return Response(refusal.status, msgspec.json.encode(problem))
        return Response(204 if value is None else 200, b"" if value is None else msgspec.json.encode(value))


class FakeKeys:
    """The broker's part in the dashboard's access."""

    def __init__(self, *, dev: bool = True) -> None:
        self.account = ACCOUNT
        self.admin_token = TOKEN
        self.dev = dev
        self.keys: dict[str, AccessKey] = {}
        self.sealing = {1: b"k" * 32}
        self.add("BATONKEY")

    def add(self, id: str, account: str = ACCOUNT, role: str = WRITE, expires_ms: int = 0) -> None:
        self.keys[id] = AccessKey(id, "the-secret", account, 1, role=role, expires_ms=expires_ms)

    def find_key(self, access_key: str) -> AccessKey | None:
        return self.keys.get(access_key)

    def now_ms(self) -> int:
        return int(NOW_S * 1000)

    def session_keys(self) -> dict[int, bytes]:
        return self.sealing


class Browser:
    """Follows links and sends forms, with cookies and without scripts."""

    def __init__(
        self, rest: FakeRest, *, secured: bool = False, read_only: bool = False, keys: FakeKeys | None = None
    ) -> None:
        self.rest = rest
        self.now_s = NOW_S
        self.keys = keys or FakeKeys(dev=not secured)
        self.app = UiApp(rest, DashboardAccess(self.keys), read_only=read_only, wall=self.wall, seconds=self.wall)
        self.cookies: dict[str, str] = {}
        self.peer = "127.0.0.1"
        self.scheme = "http"

    def wall(self) -> float:
        return self.now_s

    def send(
        self, method: str, path: str, form: Mapping[str, Any] | None = None, headers: Mapping[str, str] | None = None
    ) -> Response:
        parts = urlsplit(path)
        head = {b"host": HOST.encode(), b"accept": b"text/html"}
        if self.cookies:
            head[b"cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items()).encode()
        head.update({name.lower().encode(): value.encode() for name, value in (headers or {}).items()})
        body = urlencode(form or {}, doseq=True).encode()
        request = Request(method, parts.path, parts.query, head, body, self.peer, scheme=self.scheme)
        response = asyncio.run(self._handle(request))
        for name, value in response.headers:
            if name == "Set-Cookie":
                cookie, _, attributes = value.partition(";")
                key, _, content = cookie.partition("=")
                if "Max-Age=0" in attributes:
                    self.cookies.pop(key, None)
                else:
                    self.cookies[key] = content
        return response

    async def _handle(self, request: Request) -> Response:
        return await self.app.handle(request)

    def get(self, path: str, status: int = 200) -> str:
        response = self.send("GET", path)
        assert response.status == status, (response.status, response.body[:2000])
        return response.body.decode()

    def post(self, path: str, status: int = 303, **form: Any) -> Response:
        """Send a form with the session's token."""
        response = self.send("POST", path, {"form_token": self.form_token(), **form})
        assert response.status == status, (response.status, response.body[:2000])
        return response

    def form_token(self) -> str:
        """The token that the forms of this browser's session carry."""
        if not self.cookies:
            self.send("GET", "/ui")
        session = self.app._sessions.read(self.cookies.get("baton-session-9324", ""))
        return "" if session is None else self.app._sessions.form_token(session)


def header(response: Response, name: str) -> str:
    return next((value for key, value in response.headers if key.lower() == name.lower()), "")


def text_of(page: str) -> str:
    """What a reader sees, on one line."""
    shown = re.sub(r"<(script|style|template)\b.*?</\1>", " ", page, flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", shown)).split())
