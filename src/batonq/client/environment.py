"""The address and credentials that a client takes from the environment: the variables of the `baton` command."""

from __future__ import annotations

import os
import ssl as tls
from typing import NamedTuple

from batonq.errors import InvalidInput

DEFAULT_URL = "http://127.0.0.1:9324"
ANY_SECRET = "development"  # a server in the development profile does not check signatures


class Access(NamedTuple):
    """Where the server is, and who asks: a key and its secret, a token, or nobody in particular.

    With a token, or on a development server, `account` is whose queues are meant.
    """

    url: str
    access_key: str | None = None
    secret_key: str | None = None
    token: str | None = None
    account: str | None = None

    def checked(self) -> Access:
        """Raises InvalidInput if this is not one identity."""
        if (self.access_key is None) != (self.secret_key is None):
            raise InvalidInput("access_key and secret_key must be set together.")
        if self.token is not None and self.access_key is not None:
            raise InvalidInput("Set either access_key and secret_key, or token, not both.")
        if self.account is None or self.token is not None:
            return self
        if self.access_key is not None:
            raise InvalidInput("An access key belongs to its account: set access_key and secret_key, or account.")
        return self._replace(access_key=self.account, secret_key=ANY_SECRET, account=None)


def from_environment(
    url: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    token: str | None = None,
    account: str | None = None,
) -> Access:
    """What is given, and the rest from BATON_URL, BATON_ACCESS_KEY_ID with BATON_SECRET_ACCESS_KEY, BATON_TOKEN and
    BATON_ACCOUNT.
    """
    url = url or _variable("BATON_URL") or DEFAULT_URL
    if access_key is None and secret_key is None and token is None:
        if account is None:
            access_key, secret_key = _variable("BATON_ACCESS_KEY_ID"), _variable("BATON_SECRET_ACCESS_KEY")
        if (access_key is None) != (secret_key is None):
            raise InvalidInput("BATON_ACCESS_KEY_ID and BATON_SECRET_ACCESS_KEY must be set together.")
        if access_key is None:
            token = _variable("BATON_TOKEN")
    if access_key is None:
        account = account or _variable("BATON_ACCOUNT")
    return Access(url, access_key, secret_key, token, account)


def trusted() -> tls.SSLContext | None:
    """The certificates of BATON_CA_FILE; None if it is not set."""
    file = _variable("BATON_CA_FILE")
    if file is None:
        return None
    from batonq.certificates import client_context  # imported late: few programs need it

    return client_context(file)


def _variable(name: str) -> str | None:
    return os.environ.get(name) or None
