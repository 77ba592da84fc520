"""Requests from the command line to a running server, with its admin token."""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

from batonq.errors import BatonError, InvalidInput, Unavailable

TIMEOUT_S = 30


def call(
    url: str,
    path: str,
    body: dict[str, Any] | None,
    token: str = "",
    context: ssl.SSLContext | None = None,
    *,
    method: str = "POST",
) -> dict[str, Any]:
    """Send a JSON object and return the response. Raises BatonError with the server's message.

    `context` is the TLS context for https URLs. Without one, the system's CAs (or those of SSL_CERT_FILE) are used.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput(f"{url!r} is not a valid URL. Example: http://127.0.0.1:9324")
    connection = (
        http.client.HTTPSConnection(parts.hostname, parts.port, timeout=TIMEOUT_S, context=context)
        if parts.scheme == "https"
        else http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    )
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        data = response.read()
    except OSError as problem:
        raise Unavailable(f"Cannot reach a server at {url}: {problem}") from None
    finally:
        connection.close()
    try:
        answer = json.loads(data)
    except ValueError:
        answer = {}
    if not 200 <= response.status < 300 or not isinstance(answer, dict):
        message = answer.get("detail") or answer.get("message") if isinstance(answer, dict) else None
        raise BatonError(message or f"The server at {url} returned {response.status} {response.reason}.")
    return answer
