"""How requests reach a server: over HTTP, or by a call in the same process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from batonq.errors import Unavailable

Headers = Sequence[tuple[str, str]]


class Answer(NamedTuple):
    """A complete response. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class NotSent(Unavailable):
    """The request did not reach the server."""


class Unreachable(NotSent):
    """No connection to the server: it is refused, or the host or its certificate is not what was expected."""


class Stale(Unavailable):
    """An idle connection was closed, most likely by the server, so the request can be retried at once."""


class AsyncTransport(Protocol):
    """For asyncio programs."""

    @property
    def host(self) -> str:
        """The Host of requests; signatures cover it."""

    async def request(
        self, method: str, path: str, body: bytes, headers: Headers, timeout: float, *, polls: bool = False
    ) -> Answer:
        """Send one request. `timeout` is for the whole response; `polls` marks a long poll.

        Raises Unavailable if there is no response: NotSent if the server cannot have received the request, Stale if it
        most likely has not.
        """

    async def close(self) -> None:
        """Close all connections."""


class BlockingTransport(Protocol):
    """For threads; see AsyncTransport."""

    @property
    def host(self) -> str: ...

    def request(
        self, method: str, path: str, body: bytes, headers: Headers, timeout: float, *, polls: bool = False
    ) -> Answer: ...

    def close(self) -> None: ...
