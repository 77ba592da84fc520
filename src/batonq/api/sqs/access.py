"""Who is calling. In the secured profile a signature proves it; in the development profile the caller is believed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from batonq.api.http import Request
from batonq.api.sqs.sigv4 import Verifier
from batonq.node.bounded_cache import BoundedCache

CALLERS_MAX = 1_024
ACCOUNT_DIGITS = 12
ACCESS_KEY_LENGTH_MAX = 128
CREDENTIAL_LENGTH_MAX = 1_024  # that is looked at, percent-encoded


class Caller(NamedTuple):
    account: str
    key: str  # the access key id, empty without one

    @property
    def sender(self) -> str:
        """SenderId of the messages that this caller sends."""
        return self.key or self.account


class Keys(Protocol):
    """Where access keys come from: the broker."""

    def find_key(self, access_key: str) -> tuple[str, str] | None:
        """Secret and account of a key, or None when there is no such key."""


class OpenAccess:
    """The development profile: no signature is checked, and a key of twelve digits is an account of its own.

    Web pages of other sites are kept out before this, see api.http.gate.
    """

    def __init__(self, account: str) -> None:
        self._account = account
        self._nobody = Caller(account, "")
        self._callers: BoundedCache[bytes, Caller] = BoundedCache(CALLERS_MAX, ACCESS_KEY_LENGTH_MAX)

    def identify(self, request: Request) -> Caller:
        headers = request.headers
        authorization = headers.get(b"authorization")
        if authorization is not None:
            start = authorization.find(b"Credential=") + 11
            name = authorization[start : authorization.find(b"/", start)] if start > 10 else b""
        elif "X-Amz-Credential=" in request.query:
            credential = request.query.partition("X-Amz-Credential=")[2].partition("&")[0][:CREDENTIAL_LENGTH_MAX]
            name = unquote(credential).partition("/")[0].encode()
        else:
            return self._nobody
        return self._callers.get(name) or self._new(name)

    def _new(self, name: bytes) -> Caller:
        key = name.decode("ascii", "replace")[:ACCESS_KEY_LENGTH_MAX]
        is_account = len(name) == ACCOUNT_DIGITS and name.isdigit()
        caller = Caller(key if is_account else self._account, key if key.isprintable() and key.isascii() else "")
        self._callers.put(name, caller, len(name))
        return caller


class SignedAccess:
    """The secured profile: every request is signed by a key of the catalog, and acts for that key's account."""

    def __init__(self, keys: Keys, wall: Callable[[], float]) -> None:
        self._keys = keys
        self._verifier = Verifier(self._secret, wall)

    def identify(self, request: Request) -> Caller:
        key = self._verifier.verify(request)
        found = self._keys.find_key(key)
        assert found is not None, "a key that was just verified"
        return Caller(found[1], key)

    def _secret(self, access_key: str) -> str | None:
        found = self._keys.find_key(access_key)
        return None if found is None else found[0]


Access = OpenAccess | SignedAccess
