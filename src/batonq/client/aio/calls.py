"""One request to the REST API: encode, sign, retry, and turn error codes into exceptions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

from batonq.client import codec
from batonq.client.aio.pauses import sleep
from batonq.client.outage import Outage
from batonq.client.retry import Retries
from batonq.client.transport import Answer, AsyncTransport, NotSent, Stale
from batonq.errors import BatonError, InvalidInput, Unavailable

if TYPE_CHECKING:
    from batonq.client.signing import Signer

_TYPES = [("Content-Type", codec.CONTENT_TYPE), ("Accept", codec.CONTENT_TYPE)]
DONE = Answer(204, {}, b"")
STALE_MAX = 64  # idle connections in a row that may turn out to be closed


class Reply(NamedTuple):
    """A response. `doubtful` is set if an earlier attempt may have succeeded although its response was lost."""

    answer: Answer
    doubtful: bool


class Calls:
    """Sends requests through a transport."""

    def __init__(
        self,
        transport: AsyncTransport,
        signer: Signer | None,
        retries: Retries,
        timeout: float,
        token: str | None = None,
        account: str | None = None,
    ) -> None:
        self.transport = transport
        self.retries = retries
        self.closed = False
        self._signer = signer
        self._timeout = timeout
        self._headers = _TYPES
        if token is not None:
            self._headers = [*_TYPES, ("Authorization", f"Bearer {token}")]
            if account is not None:
                self._headers.append(("Baton-Account", account))
        self._outage = Outage(transport.host, retries.first_connection)

    async def request(
        self,
        method: str,
        path: str,
        value: Any = None,
        *,
        wait: float = 0.0,
        done_before: tuple[type[BatonError], ...] = (),
    ) -> Reply:
        """Raises the server's error, or Unavailable. `wait` is how long the server may wait on purpose (a long poll).

        If a retry fails with an error of `done_before`, the first attempt succeeded and its response was lost.
        """
        if self.closed:
            raise InvalidInput("This Baton client is closed. Create a new one.")
        body = b"" if value is None else codec.encode(value)
        doubtful = False
        attempt = stale = 0
        started = time.monotonic()
        while True:
            retry_after = 0.0
            answered = False
            error: BatonError
            try:
                answer = await self._once(method, path, body, wait)
                answered = True
                self._outage.answered()
                if answer.status < 400:
                    return Reply(answer, doubtful)
                error, retry_after = codec.read_problem(answer)
                doubtful = doubtful or answer.status >= 500
            except Stale as problem:
                error = problem
                doubtful = True
                stale += 1
                if stale <= STALE_MAX and not self.closed:
                    continue
            except Unavailable as problem:
                error = problem
                doubtful = doubtful or not isinstance(problem, NotSent)
                if self._outage.is_wrong_address(problem):
                    raise
            pause = self.retries.pause(attempt, error, time.monotonic() - started, retry_after)
            if pause is None or self.closed:
                if doubtful and isinstance(error, done_before):
                    return Reply(DONE, True)
                raise error
            if not answered:
                self._outage.retrying(error)
            await sleep(pause)
            attempt += 1

    async def _once(self, method: str, path: str, body: bytes, wait: float) -> Answer:
        headers = self._headers
        if self._signer is not None:
            headers = [*_TYPES, *self._signer.headers(method, self.transport.host, path, body, _TYPES)]
        return await self.transport.request(method, path, body, headers, self._timeout + wait, polls=wait > 0)
