"""Signed URLs: a client can upload one image with such a URL until it expires, without an account at the store."""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import urlencode


class Links:
    def __init__(self, secret: bytes, valid_s: float = 900.0) -> None:
        self._secret = secret
        self.valid_s = valid_s

    def signed(self, path: str, user: str, now_s: float) -> str:
        """The path with its user, its expiry time, and a signature over all of them."""
        expires = str(int(now_s + self.valid_s))
        return f"{path}?{urlencode({'user': user, 'expires': expires, 'signature': self._sign(path, user, expires)})}"

    def problem(self, path: str, query: dict[str, str], now_s: float) -> str | None:
        """Why this URL is invalid, or None if it is valid."""
        user, expires = query.get("user", ""), query.get("expires", "")
        if not hmac.compare_digest(self._sign(path, user, expires), query.get("signature", "")):
            return "the signature does not fit"
        return "the address has expired; ask for another one" if now_s > int(expires) else None

    def _sign(self, path: str, user: str, expires: str) -> str:
        return hmac.new(self._secret, f"PUT\n{path}\n{user}\n{expires}".encode(), hashlib.sha256).hexdigest()
