"""Sessions of the dashboard: sealed cookies, and the tokens that protect its forms from requests of other sites.

A session is kept by the browser alone. Its cookie is sealed with a key that every node and process of the server has,
so any of them can serve the next request. The keys rotate; a cookie names the key that seals it.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from hashlib import blake2b
from hmac import compare_digest
from typing import Literal

import msgspec

SESSION_S = 12 * 3600
COOKIE_LENGTH_MAX = 2_048
ENDED_MAX = 10_000  # sessions that were signed out and could still be presented
NOTICE_LENGTH_MAX = 500
_SEAL_BYTES = 24
_PORT = re.compile(r":([0-9]{1,5})$")

Keys = Callable[[], Mapping[int, bytes]]
RandomBytes = Callable[[int], bytes]


class Session(msgspec.Struct, frozen=True, array_like=True):
    """Who uses a browser. `open`: the development profile, in which nobody signs in."""

    id: str
    kind: Literal["open", "token", "key"]
    key: str  # the access key id of a session of kind `key`
    expires_at_s: int
    sealed_with: int  # id of the key; also makes the session's form token


class Sessions:
    """Makes, reads and ends sessions. `keys` returns the server's keys by id; the highest id is the newest."""

    def __init__(self, keys: Keys, random_bytes: RandomBytes, wall: Callable[[], float]) -> None:
        self._keys = keys
        self._random_bytes = random_bytes
        self._wall = wall
        self._ended: dict[str, int] = {}  # id → when the session would have expired

    def make(self, kind: Literal["open", "token", "key"], key: str = "") -> Session:
        newest = max(self._keys(), default=0)
        return Session(self._random_bytes(16).hex(), kind, key, int(self._wall()) + SESSION_S, newest)

    def end(self, session: Session) -> None:
        """Refuse the session from now on, even if its cookie was copied. Known to this process only."""
        now_s = self._wall()
        if len(self._ended) >= ENDED_MAX:
            self._ended = {id: until_s for id, until_s in self._ended.items() if until_s > now_s}
        if len(self._ended) < ENDED_MAX:
            self._ended[session.id] = session.expires_at_s

    def cookie(self, session: Session) -> str:
        return self.seal(b"session", msgspec.msgpack.encode(session), session.sealed_with)

    def read(self, cookie: str) -> Session | None:
        """The session of a cookie; None if the cookie is not ours, has expired, or its session was ended."""
        content = self.unseal(b"session", cookie)
        if content is None:
            return None
        try:
            session = msgspec.msgpack.decode(content, type=Session)
        except msgspec.DecodeError:  # sealed by another version of the server
            return None
        if session.expires_at_s <= self._wall() or session.id in self._ended:
            return None
        return session

    def form_token(self, session: Session) -> str:
        """The token that every form of this session must send back."""
        key = self._keys().get(session.sealed_with, b"")
        return blake2b(session.id.encode(), key=key, digest_size=_SEAL_BYTES, person=b"baton form").hexdigest()

    def accepts_form(self, session: Session, token: str) -> bool:
        return session.sealed_with in self._keys() and compare_digest(
            self.form_token(session).encode(), token.encode("utf-8", "replace")
        )

    # --- sealed texts

    def seal(self, purpose: bytes, content: bytes, key_id: int | None = None) -> str:
        keys = self._keys()
        key_id = max(keys, default=0) if key_id is None else key_id
        seal = _seal(keys.get(key_id, b""), purpose, content)
        return f"{key_id}.{_text(content)}.{_text(seal)}"

    def unseal(self, purpose: bytes, sealed: str) -> bytes | None:
        if len(sealed) > COOKIE_LENGTH_MAX or not sealed.isascii():
            return None
        key_id, _, rest = sealed.partition(".")
        written, _, seal = rest.partition(".")
        key = self._keys().get(int(key_id)) if key_id.isdecimal() and len(key_id) < 10 else None
        if key is None:
            return None
        try:
            content, given = _bytes(written), _bytes(seal)
        except (Base64Error, ValueError):
            return None
        return content if compare_digest(_seal(key, purpose, content), given) else None


def cookie_name(host: str, purpose: str = "session") -> str:
    """Cookies are shared by all ports of a host, so each server on a machine needs its own names."""
    found = _PORT.search(host)
    return f"baton-{purpose}-{found[1]}" if found else f"baton-{purpose}"


def cookie_of(header: str, name: str) -> str:
    """The value of a cookie in a Cookie header; empty if it is not there."""
    for part in header.split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""


def set_cookie(name: str, value: str, *, age_s: int, secure: bool) -> tuple[str, str]:
    attributes = f"Path=/; Max-Age={age_s}; HttpOnly; SameSite=Strict" + ("; Secure" if secure else "")
    return ("Set-Cookie", f"{name}={value}; {attributes}")


class SignInLimit:
    """Limits the attempts to sign in per client address."""

    ATTEMPTS_MAX = 10
    WINDOW_S = 300.0
    ADDRESSES_MAX = 10_000

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._attempts: dict[str, tuple[float, int]] = {}  # address → start of the window, attempts in it

    def wait_s(self, address: str) -> int:
        """Count an attempt. Returns how long the address must wait; 0 if it may try now."""
        now_s = self._seconds()
        start_s, count = self._attempts.get(address, (now_s, 0))
        if now_s - start_s >= self.WINDOW_S:
            start_s, count = now_s, 0
        if count >= self.ATTEMPTS_MAX:
            return max(1, int(start_s + self.WINDOW_S - now_s + 0.999))
        if address not in self._attempts and len(self._attempts) >= self.ADDRESSES_MAX:
            self._sweep(now_s)
        self._attempts[address] = start_s, count + 1
        return 0

    def forget(self, address: str) -> None:
        """After a successful sign-in."""
        self._attempts.pop(address, None)

    def _sweep(self, now_s: float) -> None:
        fresh = {one: seen for one, seen in self._attempts.items() if now_s - seen[0] < self.WINDOW_S}
        if len(fresh) >= self.ADDRESSES_MAX:  # an attack from many addresses: forget the oldest half
            by_age = sorted(fresh.items(), key=lambda item: item[1][0])
            fresh = dict(by_age[len(by_age) // 2 :])
        self._attempts = fresh


def _seal(key: bytes, purpose: bytes, content: bytes) -> bytes:
    return blake2b(content, key=key, digest_size=_SEAL_BYTES, person=b"baton " + purpose[:10]).digest()


def _text(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
