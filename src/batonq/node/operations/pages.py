"""What a node serves beside its APIs: health, metrics, and its own endpoints under `/_baton/`.

In the secured profile everything but the health checks requires the admin token. The token is in the data directory,
readable only by its owner. In a browser it works as a password, with any user name.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from batonq.errors import AccessDenied, BatonError, InvalidInput
from batonq.node.clock import iso_time
from batonq.node.monitoring.exposition import CONTENT_TYPE
from batonq.node.node import Node
from batonq.node.operations.admin_token import TOKEN_FILE, same_token

BODY_BYTES_MAX = 64 * 1024
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
DOCS = "/v1/docs"


class Page(NamedTuple):
    status: int
    content_type: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


class Asked(NamedTuple):
    """The relevant parts of a request for one of our pages."""

    method: str
    path: str
    address: str  # as the client knows it: http://host:port
    authorization: str = ""
    content_type: str = ""
    body: bytes = b""


Answer = Callable[[Asked], Awaitable[Page]]


class Pages:
    """The front door mounts `routes`; each route answers an `Asked` with a `Page`."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._token = node.admin_token()

    @property
    def routes(self) -> list[tuple[str, tuple[str, ...], Answer]]:
        reads = ("GET", "HEAD")
        return [
            ("/livez", reads, self.livez),
            ("/readyz", reads, self.readyz),
            ("/health", reads, self.readyz),
            ("/docs", reads, self.docs),
            ("/metrics", reads, self._guarded(self.metrics)),
            ("/_baton/clock/advance", ("POST",), self._endpoint(self._advance_clock, open_in_dev=True)),
        ]

    # --- health, metrics ------------------------------------------------------------------------

    async def livez(self, asked: Asked) -> Page:
        """Whether the process answers."""
        return Page(200, TEXT, b"ok\n")

    async def readyz(self, asked: Asked) -> Page:
        """Whether requests can be served."""
        why = self._node.not_ready()
        return Page(503, TEXT, f"{why}\n".encode()) if why else Page(200, TEXT, b"ok\n")

    async def docs(self, asked: Asked) -> Page:
        """The place where many people look for the documentation of an API first."""
        return Page(303, TEXT, f"See {DOCS}\n".encode(), (("Location", DOCS),))

    async def metrics(self, asked: Asked) -> Page:
        return Page(200, CONTENT_TYPE, await self._node.metrics.text())

    # --- our own endpoints ----------------------------------------------------------------------

    async def _advance_clock(self, given: dict[str, Any]) -> dict[str, Any]:
        seconds = given.get("seconds")
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < 1e12:
            raise InvalidInput('The field seconds is missing. Example: {"seconds": 30}.')
        now_ms = await self._node.advance_clock(int(seconds * 1000))
        return {"now_ms": now_ms, "now": iso_time(now_ms)}

    # --- access control -------------------------------------------------------------------------

    def _guarded(self, answer: Answer) -> Answer:
        async def guard(asked: Asked) -> Page:
            if self._node.settings.dev or self._knows_token(asked.authorization):
                return await answer(asked)
            challenge = (("WWW-Authenticate", 'Basic realm="Baton: the password is the admin token"'),)
            return Page(401, TEXT, b"The admin token (see the data directory) is the password.\n", challenge)

        return guard

    def _endpoint(
        self, act: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]], *, open_in_dev: bool = False
    ) -> Answer:
        async def endpoint(asked: Asked) -> Page:
            try:
                # A page of another site cannot send this content type without a CORS preflight, which we never allow.
                if not asked.content_type.lower().startswith(JSON):
                    raise InvalidInput(f"Send JSON with the header Content-Type: {JSON}.")
                if not (open_in_dev and self._node.settings.dev) and not self._knows_token(asked.authorization):
                    raise AccessDenied(
                        f"Send the token from the file {TOKEN_FILE} in the data directory: Authorization: Bearer …"
                    )
                answer = await act(_json_object(asked.body))
            except BatonError as problem:
                said = {"code": problem.code, "message": problem.message, "retryable": problem.retryable}
                return Page(problem.status, JSON, _json(said))
            return Page(200, JSON, _json(answer))

        return endpoint

    def _knows_token(self, authorization: str) -> bool:
        kind, _, given = authorization.partition(" ")
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True).decode().partition(":")[2]
            except ValueError:  # not ASCII, not base64, or not UTF-8 inside
                return False
        elif kind.lower() != "bearer":
            return False
        return same_token(given.strip(), self._token)


def _json_object(body: bytes) -> dict[str, Any]:
    if len(body) > BODY_BYTES_MAX:
        raise InvalidInput(f"The request has {len(body)} bytes; the maximum is {BODY_BYTES_MAX}.")
    try:
        given = json.loads(body or b"{}")
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise InvalidInput("The request must be a JSON object.")
    return given


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"
