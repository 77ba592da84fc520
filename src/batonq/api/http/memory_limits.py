"""Counts connections and memory, in total and per address, and decides which request to drop when memory is short.

Memory is charged in real bytes: for a request from its first part until it is answered, and for a response until the
client has read it. When memory is short, the request that has been arriving for the longest time, or the response that
has been leaving for the longest time, is dropped: a client that stalls is always older than one that sends or reads.
"""

from __future__ import annotations

import socket
from typing import Protocol

from batonq.api.http.limits import HttpLimits

LOCAL = "local"  # clients on a Unix socket


class Receiving(Protocol):
    """A connection whose request is not complete, or whose response is not sent completely."""

    def give_way(self) -> None:
        """Refuse the request being received, or drop the response, and free its memory."""


class AddressUsage:
    """The resources used by the clients at one address."""

    __slots__ = ("bytes_held", "connections", "receiving")

    def __init__(self) -> None:
        self.bytes_held = 0
        self.connections = 0
        self.receiving: dict[Receiving, None] = {}  # oldest first


class Usage:
    def __init__(self, limits: HttpLimits) -> None:
        self.bytes_held = 0
        self.bytes_max = limits.requests_bytes_max
        self.address_bytes_max = limits.address_bytes_max
        self._address_connections_max = limits.address_connections_max
        self._addresses: dict[str, AddressUsage] = {}
        self._receiving: dict[Receiving, None] = {}  # oldest first

    def enter(self, address: str) -> AddressUsage | None:
        """Count a new connection. Returns None when its address has too many."""
        usage = self._addresses.get(address)
        if usage is None:
            usage = self._addresses[address] = AddressUsage()
        elif usage.connections >= self._address_connections_max:
            return None
        usage.connections += 1
        return usage

    def leave(self, address: str) -> None:
        usage = self._addresses[address]
        usage.connections -= 1
        if usage.connections == 0:
            del self._addresses[address]

    def begin(self, usage: AddressUsage, connection: Receiving) -> None:
        """A request of this connection has begun to arrive and is not complete, or its response has begun to leave."""
        usage.receiving[connection] = None
        self._receiving[connection] = None

    def end(self, usage: AddressUsage, connection: Receiving) -> None:
        usage.receiving.pop(connection, None)
        self._receiving.pop(connection, None)

    def make_room(self, usage: AddressUsage, newest: Receiving) -> bool:
        """Drop older requests until the held memory is within the limits. Returns False when there is no room for
        `newest`.
        """
        while usage.bytes_held > self.address_bytes_max:
            if not _shed(usage.receiving, newest):
                return False
        while self.bytes_held > self.bytes_max:
            if not _shed(self._receiving, newest):
                return False
        return True


def _shed(receiving: dict[Receiving, None], newest: Receiving) -> bool:
    oldest = next(iter(receiving), newest)
    if oldest is newest:
        return False
    oldest.give_way()
    receiving.pop(oldest, None)  # usually removed already; this makes sure that the loop ends
    return True


def address_of(peer: object) -> str:
    """The key that identifies a client: an IPv4 address, the network of an IPv6 address, or LOCAL for a Unix socket."""
    if not isinstance(peer, tuple):
        return LOCAL
    host = str(peer[0])
    if ":" not in host or "." in host:
        return host
    try:
        return socket.inet_ntop(
            socket.AF_INET6, socket.inet_pton(socket.AF_INET6, host.partition("%")[0])[:8] + bytes(8)
        )
    except OSError:
        return host
