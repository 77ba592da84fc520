"""Identifies the caller. The secured profile verifies a signature; the development profile trusts the caller."""

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
CREDENTIAL_LENGTH_MAX = 1_024  # only this much of a percent-encoded credential is read


class Caller(NamedTuple):
    account: str
    key: str  # the access key id; empty when the request has none

    @property
    def sender(self) -> str:
        """The SenderId of messages sent by this caller."""
        return self.key or self.account


class Keys(Protocol):
    """Looks up access keys. The broker implements it."""

    def find_key(self, access_key: str) -> tuple[str, str] | None:
        """The secret and the account of a key, or None when the key does not exist."""


class OpenAccess:
    """The development profile: signatures are not checked, and an access key of twelve digits names its own account.

    Requests from web pages of other sites are refused earlier, in api.http.gate.
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
    """The secured profile: every request must be signed by a key in the catalog, and acts for that key's account."""

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
