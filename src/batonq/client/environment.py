"""The address and credentials that a client takes from the environment: the variables of the `baton` command."""

from __future__ import annotations

import os
from typing import NamedTuple

from batonq.errors import InvalidInput

DEFAULT_URL = "http://127.0.0.1:9324"
ANY_SECRET = "development"  # a server in the development profile does not check signatures


class Access(NamedTuple):
    """Where the server is, and who asks. A key and its secret, a token, or nothing of these."""

    url: str
    access_key: str | None = None
    secret_key: str | None = None
    token: str | None = None

    def checked(self) -> Access:
        """Raises InvalidInput if this is not one identity."""
        if (self.access_key is None) != (self.secret_key is None):
            raise InvalidInput("access_key and secret_key must be set together.")
        if self.token is not None and self.access_key is not None:
            raise InvalidInput("Set either access_key and secret_key, or token, not both.")
        return self


def from_environment(
    url: str | None = None, access_key: str | None = None, secret_key: str | None = None, token: str | None = None
) -> Access:
    """What is given, and the rest from BATON_URL, BATON_ACCESS_KEY_ID with BATON_SECRET_ACCESS_KEY, BATON_TOKEN, and
    BATON_ACCOUNT, which is the account to use in the development profile.
    """
    url = url or _variable("BATON_URL") or DEFAULT_URL
    if access_key is None and secret_key is None and token is None:
        access_key, secret_key = _variable("BATON_ACCESS_KEY_ID"), _variable("BATON_SECRET_ACCESS_KEY")
        if (access_key is None) != (secret_key is None):
            raise InvalidInput("BATON_ACCESS_KEY_ID and BATON_SECRET_ACCESS_KEY must be set together.")
        if access_key is None:
            token = _variable("BATON_TOKEN")
        if access_key is None and token is None and (account := _variable("BATON_ACCOUNT")):
            access_key, secret_key = account, ANY_SECRET
    return Access(url, access_key, secret_key, token)


def _variable(name: str) -> str | None:
    return os.environ.get(name) or None
