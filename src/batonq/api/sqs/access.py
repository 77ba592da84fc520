"""Identifies the caller. The secured profile verifies a signature; the development profile trusts the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from batonq.api.http import Request
from batonq.api.sqs.errors import INVALID_KEY, SqsError
from batonq.api.sqs.sigv4 import Verifier
from batonq.core.catalog.entries import ADMIN, READ, WRITE, AccessKey
from batonq.errors import AccessDenied
from batonq.node.bounded_cache import BoundedCache
from batonq.node.clock import iso_time
from batonq.node.operations.admin_token import TOKEN_FILE, same_token

CALLERS_MAX = 1_024
ACCOUNT_DIGITS = 12
ACCOUNT_HEADER = b"baton-account"  # with the admin token: the account to act for
ACCESS_KEY_LENGTH_MAX = 128
CREDENTIAL_LENGTH_MAX = 1_024  # only this much of a percent-encoded credential is read


class Caller(NamedTuple):
    account: str
    key: str  # the access key id; empty when the request has none
    role: str = WRITE  # one of ROLES; READ may only use operations that change nothing
    operator: bool = False  # whether the caller may use operations that concern the whole server

    @property
    def sender(self) -> str:
        """The SenderId of messages sent by this caller."""
        return self.key or self.account


class Keys(Protocol):
    """Looks up access keys. The broker implements it."""

    account: str  # the server's own

    @property
    def admin_token(self) -> str: ...

    def find_key(self, access_key: str) -> AccessKey | None:
        """The key, or None when it does not exist or is disabled."""

    def now_ms(self) -> int:
        """The time at which keys expire."""


def cannot_change(caller: Caller, operation: str) -> str:
    return (
        f"Key {caller.key} has the role {READ}, which may only use operations that change nothing; {operation} is not "
        f"one of them. Use a key with the role {WRITE}."
    )


class OpenAccess:
    """The development profile: signatures are not checked, and an access key of twelve digits names its own account.

    Requests from web pages of other sites are refused earlier, in api.http.gate.
    """

    def __init__(self, account: str) -> None:
        self._account = account
        self._nobody = Caller(account, "", ADMIN, True)
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
        account = key if is_account else self._account
        caller = Caller(account, key if key.isprintable() and key.isascii() else "", ADMIN, True)
        self._callers.put(name, caller, len(name))
        return caller


class SignedAccess:
    """The secured profile: every request must be signed by a key in the catalog, and acts for that key's account.

    With `tokens`, the admin token as a bearer token is accepted too. It acts for the server's own account, or for the
    account in the header Baton-Account.
    """

    def __init__(self, keys: Keys, wall: Callable[[], float], *, tokens: bool = False) -> None:
        self._keys = keys
        self._verifier = Verifier(self._secret, wall)
        self._tokens = tokens

    def identify(self, request: Request) -> Caller:
        if self._tokens:
            kind, _, token = request.header(b"authorization").partition(" ")
            if kind.lower() == "bearer":
                return self._operator(token.strip(), request.header(ACCOUNT_HEADER))
        id = self._verifier.verify(request)
        key = self._keys.find_key(id)
        assert key is not None, "a key that was just verified"
        if key.expired(self._keys.now_ms()):
            raise SqsError(INVALID_KEY, f"Access key {id} expired on {iso_time(key.expires_ms)}. Use another key.")
        return Caller(key.account, id, key.role, key.account == self._keys.account)

    def _operator(self, token: str, account: str) -> Caller:
        if not same_token(token, self._keys.admin_token):
            raise AccessDenied(
                f"The bearer token is not this server's admin token, which is in the file {TOKEN_FILE} of its data "
                "directory."
            )
        if account and not (len(account) == ACCOUNT_DIGITS and account.isascii() and account.isdigit()):
            raise AccessDenied(f"The header Baton-Account must have {ACCOUNT_DIGITS} digits, not {account[:40]!r}.")
        return Caller(account or self._keys.account, "", ADMIN, True)

    def _secret(self, access_key: str) -> str | None:
        key = self._keys.find_key(access_key)
        return None if key is None else key.secret


Access = OpenAccess | SignedAccess
