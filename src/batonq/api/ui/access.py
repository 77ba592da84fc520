"""Who may use the dashboard, and as which caller of the REST API."""

from __future__ import annotations

from collections.abc import Mapping
from hmac import compare_digest
from typing import Protocol

from batonq.api.sqs.access import Caller, Keys
from batonq.api.ui.sessions import Session
from batonq.core.catalog.entries import ADMIN, AccessKey
from batonq.node.operations.admin_token import same_token


class DashboardKeys(Keys, Protocol):
    """What the dashboard needs from the broker."""

    dev: bool

    def session_keys(self) -> Mapping[int, bytes]:
        """Keys that all nodes and processes of the server share, by id."""


class DashboardAccess:
    def __init__(self, keys: DashboardKeys) -> None:
        self._keys = keys
        self.secured = not keys.dev

    def session_keys(self) -> Mapping[int, bytes]:
        return self._keys.session_keys()

    def is_admin_token(self, text: str) -> bool:
        return text.isascii() and same_token(text, self._keys.admin_token)

    def knows(self, key: str, secret: str) -> bool:
        """Whether an access key exists, may be used, and has this secret."""
        found = self._usable(key)
        expected = found.secret if found is not None else ""
        return compare_digest(expected.encode(), secret.encode("utf-8", "replace")) and found is not None

    def operator(self) -> Caller:
        return Caller(self._keys.account, "", ADMIN, True)

    def caller(self, session: Session) -> Caller | None:
        """The caller of a session; None if the session's key may no longer be used."""
        if session.kind == "key":
            key = self._usable(session.key)
            return None if key is None else Caller(key.account, key.id, key.role, key.account == self._keys.account)
        if session.kind == "open" and self.secured:
            return None
        return self.operator()

    def _usable(self, id: str) -> AccessKey | None:
        key = self._keys.find_key(id)
        return None if key is None or key.expired(self._keys.now_ms()) else key
