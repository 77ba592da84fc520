"""One request to a webhook: over TLS that is verified, to an address that was checked, without following redirects.

The name is resolved once, its address is checked, and the connection goes to that address, so that a name server cannot
give another one in between.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import socket
import ssl
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from batonq import __version__
from batonq.errors import InvalidInput

SIGNATURE_HEADER = "Baton-Signature"
DELIVERY_HEADER = "Baton-Delivery"
EVENT_HEADER = "Baton-Event"
TIMEOUT_S = 10.0
STATUS_LINE_BYTES_MAX = 4_096
SECRET_LENGTH_MIN = 16
# Where clouds offer credentials, besides link-local addresses: Azure, Oracle, Alibaba, AWS.
_METADATA = {*map(ipaddress.ip_address, ("168.63.129.16", "192.0.0.192", "100.100.100.200", "fd00:ec2::254"))}
_NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Refused(Exception):
    """The request was not made, or its answer says that a retry is useless."""


class Failed(Exception):
    """The request failed; a retry may succeed."""


class Webhook(NamedTuple):
    url: str
    parts: SplitResult
    allow_private: bool

    @property
    def name(self) -> str:
        """The URL as it may be shown: paths often contain a password."""
        return f"{self.parts.scheme}://{self.parts.netloc}" + ("/…" if self.parts.path.strip("/") else "")

    @property
    def host(self) -> str:
        return self.parts.hostname or ""

    @property
    def port(self) -> int:
        return self.parts.port or (443 if self.parts.scheme == "https" else 80)


def parse_webhooks(urls: str, hosts: str, allow_private: bool) -> list[Webhook]:
    """The webhooks of the settings. Raises InvalidInput."""
    allowed = [host.strip().lower() for host in hosts.split(",") if host.strip()]
    found = []
    for url in filter(None, map(str.strip, urls.split(","))):
        try:
            parts = urlsplit(url)
            valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # the port is no number
            valid = False
        if not valid or not url.isascii() or not url.isprintable() or " " in url:
            raise InvalidInput(
                f"--alarm-webhooks contains {url[:200]!r}, which is not a URL such as https://example.com/alarms."
            )
        hook = Webhook(url, parts, allow_private)
        if parts.username or parts.password:
            raise InvalidInput(
                f"The webhook on {hook.host} has a user name or password in its URL. Requests are signed: check the "
                "signature instead."
            )
        if allowed and hook.host.lower() not in allowed:
            raise InvalidInput(
                f"The webhook's host {hook.host!r} is not in --alarm-webhook-hosts. Add it there, or remove the URL."
            )
        found.append(hook)
    return found


def signature(secret: bytes, time_s: int, body: bytes) -> str:
    """The value of the header that proves who sent a body, and when."""
    mac = hmac.new(secret, f"{time_s}.".encode() + body, hashlib.sha256)
    return f"t={time_s},v1={mac.hexdigest()}"


def forbidden(address: Address, allow_private: bool) -> bool:
    """Whether webhooks may not be sent to an address. Link-local addresses, and others where clouds offer credentials,
    are never allowed.
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return forbidden(inner, allow_private)
        if address.teredo is not None:
            return True
        if address.is_site_local:  # private, before fc00::/7 was
            return not allow_private
    if address.is_link_local or address.is_multicast or address.is_unspecified or address in _METADATA:
        return True
    if address.is_loopback:
        return not allow_private
    return address.is_reserved or not (address.is_global or allow_private)


async def resolve(hook: Webhook) -> str:
    """The address to connect to. Raises Refused if the name has an address that is forbidden, and Failed."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(hook.host, hook.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as problem:
        raise Failed(f"the name {hook.host} cannot be resolved: {problem}") from None
    addresses = [str(entry[4][0]) for entry in found]
    for text in addresses:
        if forbidden(ipaddress.ip_address(text.partition("%")[0]), hook.allow_private):
            raise Refused(
                f"{hook.host} has the address {text}, which is private, local or reserved. If that is intended, set "
                "--alarm-webhook-private."
            )
    if not addresses:
        raise Failed(f"the name {hook.host} has no address")
    return addresses[0]


async def post(hook: Webhook, body: bytes, headers: Mapping[str, str], trust: ssl.SSLContext | None = None) -> int:
    """Send a body, and return the status of the answer, which is 200 to 299. Raises Refused or Failed."""
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await _post(hook, body, headers, trust)
    except TimeoutError:
        raise Failed(f"no answer within {TIMEOUT_S:.0f} s") from None
    except (OSError, ssl.SSLError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as problem:
        raise Failed(f"the connection failed: {problem}") from None


async def _post(hook: Webhook, body: bytes, headers: Mapping[str, str], trust: ssl.SSLContext | None) -> int:
    address = await resolve(hook)
    secure = hook.parts.scheme == "https"
    reader, writer = await asyncio.open_connection(
        address,
        hook.port,
        limit=STATUS_LINE_BYTES_MAX,
        ssl=(trust or ssl.create_default_context()) if secure else None,
        server_hostname=hook.host if secure else None,
    )
    try:
        target = (hook.parts.path or "/") + (f"?{hook.parts.query}" if hook.parts.query else "")
        lines = [
            f"POST {target} HTTP/1.1",
            f"Host: {hook.parts.netloc}",
            f"User-Agent: baton/{__version__}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        writer.write("\r\n".join((*lines, "", "")).encode() + body)
        await writer.drain()
        return _accepted(await reader.readuntil(b"\r\n"))
    finally:
        writer.close()


def _accepted(line: bytes) -> int:
    """The status in the first line of an answer, if it says that the request was accepted."""
    version, _, rest = line.decode("latin-1").partition(" ")
    text = rest[:3]
    if not version.startswith("HTTP/1.") or not text.isdigit():
        raise Failed("the answer is not HTTP")
    status = int(text)
    if 200 <= status < 300:
        return status
    if 300 <= status < 400:
        raise Refused(f"the answer is {status}: redirects are not followed, so set the final URL")
    if status in (408, 425, 429) or status >= 500:
        raise Failed(f"the answer is {status}")
    raise Refused(f"the answer is {status}")
