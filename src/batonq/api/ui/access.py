"""Who may use the dashboard, and as which caller of the REST API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hmac import compare_digest
from typing import Protocol

from batonq.api.sqs.access import Caller
from batonq.api.ui.sessions import Session


class Keys(Protocol):
    """What the dashboard needs from the broker."""

    account: str
    dev: bool

    def find_key(self, access_key: str) -> tuple[str, str] | None:
        """(secret, account) of an access key that may be used."""

    def session_keys(self) -> Mapping[int, bytes]:
        """Keys that all nodes and processes of the server share, by id."""


class DashboardAccess:
    def __init__(self, keys: Keys, is_admin_token: Callable[[str], bool]) -> None:
        self._keys = keys
        self.is_admin_token = is_admin_token
        self.secured = not keys.dev

    def session_keys(self) -> Mapping[int, bytes]:
        return self._keys.session_keys()

    def knows(self, key: str, secret: str) -> bool:
        """Whether an access key exists, may be used, and has this secret."""
        found = self._keys.find_key(key)
        expected = found[0] if found is not None else ""
        return compare_digest(expected.encode(), secret.encode("utf-8", "replace")) and found is not None

    def operator(self) -> Caller:
        return Caller(self._keys.account, "")

    def caller(self, session: Session) -> Caller | None:
        """The caller of a session; None if the session's key may no longer be used."""
        if session.kind == "key":
            found = self._keys.find_key(session.key)
            return None if found is None else Caller(found[1], session.key)
        if session.kind == "open" and self.secured:
            return None
        return self.operator()
