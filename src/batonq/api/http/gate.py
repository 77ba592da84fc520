"""Admission of requests, decided when a request's head is complete: before its body is read and before any handler
runs.

The development profile checks no signatures. Instead it checks where requests come from. Web pages of other sites,
opened in a browser on the same machine, must not reach the server: neither by its address, nor by a domain of theirs
that resolves to this machine (DNS rebinding). In the secured profile, a request without credentials may not have a
large body.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import NamedTuple

from batonq.api.http.limits import HttpLimits

KNOWN_HOSTS_MAX = 256  # maximum number of accepted Host headers in the cache
SHOWN_MAX = 100
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:@/?#\[\]]+)(?::[0-9]{0,5})?")
_OTHER_SITES = (
    "The request comes from a web page of another site. A development server refuses such requests because it "
    "does not check signatures. Open its address directly, or start the server with --secure."
)


class Refused(NamedTuple):
    status: int
    text: str


# Takes the headers and the target of a request. Returns the maximum size of its body, or why the request is refused.
Gate = Callable[[dict[bytes, bytes], bytes], int | Refused]

NO_HOST = Refused(400, "The request has no Host header, which HTTP/1.1 requires.")


class LocalGate:
    """For a server that trusts every program on its machine: accepts requests whose Host is a name of this machine."""

    def __init__(self, limits: HttpLimits, hosts: Iterable[str] = ()) -> None:
        self._body_bytes_max = limits.body_bytes_max
        self._hosts = {host_name(host) for host in hosts} - {""}
        self._known: set[bytes | None] = set()

    def __call__(self, headers: dict[bytes, bytes], target: bytes) -> int | Refused:
        if (
            headers.get(b"host") in self._known
            and b"origin" not in headers
            and b"sec-fetch-site" not in headers
            and b"referer" not in headers
            and target[:1] == b"/"
        ):
            return self._body_bytes_max
        return self._examine(headers, target) or self._body_bytes_max

    def _examine(self, headers: dict[bytes, bytes], target: bytes) -> Refused | None:
        written = headers.get(b"host")
        if written is None:
            return self._from_elsewhere(headers, None) or NO_HOST
        if not self._is_ours(written):
            return _misdirected(written)
        scheme, marked, rest = target.partition(b"://")
        if marked and scheme in (b"http", b"https"):  # in the form used for proxies: then this host counts
            authority = re.split(rb"[/?#]", rest, maxsplit=1)[0]
            if not self._is_ours(authority):
                return _misdirected(authority)
        if len(self._known) < KNOWN_HOSTS_MAX:
            self._known.add(written)
        return self._from_elsewhere(headers, written)

    def _is_ours(self, written: bytes) -> bool:
        name = host_name(written.decode("latin-1"))
        return is_loopback(name) or name in self._hosts

    @staticmethod
    def _from_elsewhere(headers: dict[bytes, bytes], host: bytes | None) -> Refused | None:
        """Refuse a request from a web page of another site. Browsers name the page's origin in these headers; other
        clients send none of them.
        """
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            return Refused(403, _OTHER_SITES)
        for name in (b"origin", b"referer"):
            given = headers.get(name)
            if given and (host is None or re.split(rb"[/?#]", given.partition(b"://")[2], maxsplit=1)[0] != host):
                return Refused(403, _OTHER_SITES)
        return None


class CredentialGate:
    """For a server that requires credentials. A request without credentials can do nothing, so little of its body is
    read.

    Targets under the prefix `open_under` need no credentials. `has_session` says whether the headers of a request to a
    target contain a valid session.
    """

    def __init__(
        self,
        limits: HttpLimits,
        credentials: Iterable[bytes],
        open_under: bytes = b"",
        has_session: Callable[[dict[bytes, bytes], bytes], bool] | None = None,
    ) -> None:
        self._body_bytes_max = limits.body_bytes_max
        self._anonymous_bytes_max = min(limits.anonymous_body_bytes_max, limits.body_bytes_max)
        self._credentials = (*credentials,)
        self._open_under = open_under
        self._has_session = has_session

    def __call__(self, headers: dict[bytes, bytes], target: bytes) -> int | Refused:
        if b"authorization" in headers or b"X-Amz-Signature=" in target:
            return self._body_bytes_max
        if any(name in headers for name in self._credentials):
            return self._body_bytes_max
        if self._open_under and target.startswith(self._open_under):
            return self._body_bytes_max
        if self._has_session is not None and b"cookie" in headers and self._has_session(headers, target):
            return self._body_bytes_max
        return self._anonymous_bytes_max


def host_name(authority: str) -> str:
    """The name or address in a Host header, without port and brackets; empty when it is invalid."""
    found = _AUTHORITY.fullmatch(authority)
    return "" if found is None else found[1].strip("[]").removesuffix(".").lower()


def is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _misdirected(authority: bytes) -> Refused:
    name = host_name(authority.decode("latin-1"))
    shown = ascii(authority.decode("latin-1")[:SHOWN_MAX])
    return Refused(
        421,
        (
            f"The request's Host is {shown}. A development server accepts only the names of the local machine, "
            "because a web page can make any other name point to it. Use http://localhost with the server's port"
        )
        + (f", or start the server with --allowed-hosts {name}." if re.fullmatch(r"[a-z0-9._-]{1,100}", name) else "."),
    )
