"""AWS Signature Version 4 for the secured profile."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from hashlib import sha256
from urllib.parse import quote, unquote

from batonq.client.transport import Headers

ALGORITHM = "AWS4-HMAC-SHA256"
REGION = "local"
SERVICE = "baton"
_MUST_BE_SIGNED = ("x-amz-", "baton-", "idempotency-key")  # prefixes of headers that the server requires to be signed


class Signer:
    """Signs requests with one key. The derived key is valid for one day and is cached."""

    def __init__(self, access_key: str, secret_key: str, now: Callable[[], float] = time.time) -> None:
        self._access_key = access_key
        self._secret_key = secret_key
        self._now = now
        self._kept: tuple[str, bytes] = ("", b"")

    def headers(self, method: str, host: str, path: str, body: bytes, others: Headers = ()) -> list[tuple[str, str]]:
        """The authentication headers of a request; `path` is as sent, with its query.

        Of the `others`, which are sent as well, those that change the meaning of the request are signed.
        """
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(self._now()))
        digest = sha256(body).hexdigest()
        bare, _, query = path.partition("?")
        signed = {"host": host, "x-amz-content-sha256": digest, "x-amz-date": moment}
        for name, value in others:
            if name.lower().startswith(_MUST_BE_SIGNED):
                signed[name.lower()] = " ".join(value.split())
        names = sorted(signed)
        listed = ";".join(names)
        lines = [f"{name}:{signed[name]}" for name in names]
        canonical = "\n".join((method, quote(bare, safe="/~"), _canonical_query(query), *lines, "", listed, digest))
        day = moment[:8]
        scope = f"{day}/{REGION}/{SERVICE}/aws4_request"
        text = f"{ALGORITHM}\n{moment}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
        signature = hmac.new(self._key(day), text.encode(), "sha256").hexdigest()
        credential = f"{self._access_key}/{scope}"
        return [
            ("X-Amz-Date", moment),
            ("X-Amz-Content-Sha256", digest),
            ("Authorization", f"{ALGORITHM} Credential={credential}, SignedHeaders={listed}, Signature={signature}"),
        ]

    def _key(self, day: str) -> bytes:
        kept_day, key = self._kept
        if kept_day != day:
            key = ("AWS4" + self._secret_key).encode()
            for part in (day, REGION, SERVICE, "aws4_request"):
                key = hmac.new(key, part.encode(), "sha256").digest()
            self._kept = (day, key)
        return key


def _canonical_query(query: str) -> str:
    if not query:
        return ""
    pairs = [part.partition("=")[::2] for part in query.split("&") if part]
    quoted = [(quote(unquote(name), safe="-_.~"), quote(unquote(value), safe="-_.~")) for name, value in pairs]
    return "&".join(f"{name}={value}" for name, value in sorted(quoted))
