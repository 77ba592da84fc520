"""How requests reach a Baton: over HTTP, or by a call in the same process. A client needs nothing else of either."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from batonq.errors import Unavailable

Headers = Sequence[tuple[str, str]]


class Answer(NamedTuple):
    """A whole answer. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class NotSent(Unavailable):
    """The request cannot have reached the server."""


class Stale(Unavailable):
    """A kept connection turned out to be closed: most likely the server closed it while it was idle, so try at once."""


class AsyncTransport(Protocol):
    """For asyncio programs."""

    @property
    def host(self) -> str:
        """The Host that requests name; signatures cover it."""

    async def request(
        self, method: str, path: str, body: bytes, headers: Headers, timeout: float, *, polls: bool = False
    ) -> Answer:
        """One request. `timeout` is for the whole answer; `polls` says that it may wait long for something to happen.

        Raises Unavailable when there is no answer: NotSent when the server cannot have seen the request, Stale when it
        most likely has not.
        """

    async def close(self) -> None:
        """Let go of all connections."""


class BlockingTransport(Protocol):
    """For threads; see AsyncTransport."""

    @property
    def host(self) -> str: ...

    def request(
        self, method: str, path: str, body: bytes, headers: Headers, timeout: float, *, polls: bool = False
    ) -> Answer: ...

    def close(self) -> None: ...
