"""The dashboard's only way to data: operations of the REST API, called within the process for the signed-in caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import msgspec

from batonq.api.http import Request, Response
from batonq.api.sqs.access import Caller

LIST_BYTES_MAX = 256 << 10  # longer lists of messages
BODY_BYTES_MAX = 16 << 10  # show only this much of a body, as text


class Problem(Exception):
    """What REST answered instead of a result."""

    def __init__(self, status: int, code: str, detail: str, *, retryable: bool = False) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.retryable = retryable


class InProcessRest(Protocol):
    async def handle(self, request: Request, caller: Caller) -> Response:
        """Run an operation for a caller who is already known."""


class Backend:
    """Calls REST operations. `writable` is False in the read-only mode and for callers who may only read."""

    def __init__(self, rest: InProcessRest, caller: Caller, peer: str = "", *, writable: bool = True) -> None:
        self._rest = rest
        self._caller = caller
        self._peer = peer
        self.writable = writable

    async def get(self, path: str, /, **query: Any) -> Any:
        """The decoded answer of `GET path?query`. Arguments that are None or empty are left out. Raises Problem."""
        given = {name: _text(value) for name, value in query.items() if value is not None and value != ""}
        return await self._ask("GET", path, urlencode(given), b"")

    async def change(self, method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None) -> Any:
        """Run an operation that changes something. Returns its decoded answer, or None. Raises Problem."""
        if not self.writable:
            raise Problem(403, "read_only", "This dashboard is read-only: it cannot change anything.")
        content = b"" if body is None else msgspec.json.encode(body)
        return await self._ask(method, path, urlencode(query or {}), content)

    async def document(self, path: str) -> Response:
        """The answer of `GET path` as it is. Raises Problem."""
        response = await self._rest.handle(Request("GET", path, "", {}, b"", self._peer), self._caller)
        if response.status >= 400:
            raise Problem(response.status, "not_found", _detail(response))
        return response

    async def _ask(self, method: str, path: str, query: str, body: bytes) -> Any:
        headers = {b"accept": b"application/json"}
        if body:
            headers[b"content-type"] = b"application/json"
        request = Request(method, path, query, headers, body, self._peer)
        response = await self._rest.handle(request, self._caller)
        value = _decode(response.body) if response.body else None
        if response.status < 400:
            return value
        said = value if isinstance(value, dict) else {}
        raise Problem(
            response.status,
            str(said.get("code", "internal")),
            str(said.get("detail", "The server did not say what went wrong.")),
            retryable=said.get("retryable") is True,
        )


def path_of(*parts: str) -> str:
    """A REST path: `path_of("queues", name, "stats")` is `/v1/queues/NAME/stats`. Names are escaped."""
    return "/v1/" + "/".join(segment(part) for part in parts)


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def _decode(answer: bytes) -> Any:
    """Decode an answer of REST. In a long list of messages, long bodies stay JSON text and are cut: to decode megabytes
    of small values takes longer than other requests should wait.
    """
    if len(answer) <= LIST_BYTES_MAX or not answer.startswith(b'{"messages":'):
        return msgspec.json.decode(answer)
    fields = msgspec.json.decode(answer, type=dict[str, msgspec.Raw])
    messages = msgspec.json.decode(fields.pop("messages"), type=list[dict[str, msgspec.Raw]])
    return {
        "messages": [{name: _field(name, value) for name, value in message.items()} for message in messages],
        **{name: msgspec.json.decode(value) for name, value in fields.items()},
    }


def _field(name: str, value: msgspec.Raw) -> Any:
    text = memoryview(value)
    if name == "body" and len(text) > BODY_BYTES_MAX:
        return str(text[:BODY_BYTES_MAX], "utf-8", "ignore")
    return msgspec.json.decode(text)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _detail(response: Response) -> str:
    said = msgspec.json.decode(response.body) if response.body else {}
    return str(said.get("detail", "The server did not say what went wrong."))
