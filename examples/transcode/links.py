"""Signed URLs: their holder may upload one image until they expire, without an account at the store."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlencode


class Links:
    def __init__(self, secret: bytes, valid_s: float = 900.0) -> None:
        self._secret = secret
        self.valid_s = valid_s

    def signed(self, path: str, user: str, now_s: float) -> str:
        """The path with the user, the expiry time, and a signature over all of it."""
        expires = str(int(now_s + self.valid_s))
        return f"{path}?{urlencode({'user': user, 'expires': expires, 'signature': self._sign(path, user, expires)})}"

    def problem(self, path: str, query: dict[str, str], now_s: float) -> str | None:
        """Why this URL is not valid; None if it is."""
        user, expires = query.get("user", ""), query.get("expires", "")
        if not hmac.compare_digest(self._sign(path, user, expires), query.get("signature", "")):
            return "the signature does not match"
        return "the URL has expired; request a new one" if now_s > int(expires) else None

    def _sign(self, path: str, user: str, expires: str) -> str:
        return hmac.new(self._secret, f"PUT\n{path}\n{user}\n{expires}".encode(), hashlib.sha256).hexdigest()
