"""History over HTTP: GET /v1/history of a node, in pieces, each checked against the one before."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from batonq.client.signing import Signer
from batonq.errors import AccessDenied, BatonError, InvalidInput, LogCorrupt, LogGap, NotFound, OverLimit, Unavailable
from batonq.log.frames import Frame
from batonq.log.pieces import frames_of
from batonq.log.reading import Chain

if TYPE_CHECKING:
    from batonq.pipeline.reading.history import Range

PIECE_BYTES = 8 << 20
TRIES = 8  # of one request that meets a busy or absent node
TIMEOUT_S = 60.0
_ERRORS: dict[str, type[BatonError]] = {
    kind.code: kind for kind in (AccessDenied, InvalidInput, LogCorrupt, LogGap, NotFound, OverLimit, Unavailable)
}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class RemoteHistory:
    """A node's history. Refusals for the rate, and a node that is away for a while, are waited out."""

    def __init__(
        self,
        url: str,
        *,
        access_key: str = "",
        secret_key: str = "",
        piece_bytes: int = PIECE_BYTES,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parts = urlsplit(url)
        if not parts.hostname or parts.path.strip("/"):
            raise InvalidInput(f"A node's address is http://host:port, not {url!r}.")
        self._url = url.rstrip("/")
        self._host = parts.netloc
        self._secure = parts.scheme == "https"
        self._signer = Signer(access_key, secret_key) if access_key else None
        self._piece_bytes = piece_bytes
        self._sleep = sleep

    def shards(self) -> list[Range]:
        from batonq.pipeline.reading.history import Range

        listed = json.loads(self._get("/v1/history").body)["shards"]
        return [Range(one["shard"], one["firstFrame"], one["nextFrame"]) for one in listed]

    def frames(self, shard: int, start: int, stop: int | None = None) -> Iterator[Frame]:
        first = self._piece(shard, start, 0)  # a gap is told at once, not when the first frame is asked for
        return self._frames(shard, start, stop if stop is not None else int(first.headers["baton-end-frame"]), first)

    def _frames(self, shard: int, start: int, stop: int, piece: Answer) -> Iterator[Frame]:
        chain = Chain(shard, None, start)
        if start == 1:
            chain.digest = bytes(16)
        while chain.number < stop and piece.body:
            for frame in frames_of(piece.body, chain, f"{self._url}/v1/history/{shard}"):
                if frame.number >= stop:
                    return
                yield frame
            if chain.number < stop:
                piece = self._piece(shard, chain.number, 0)

    def follow(self, shard: int, start: int, wait_s: float = 20.0) -> Iterator[Frame]:
        """Frames from `start` on without end, each as it is committed."""
        chain = Chain(shard, None, start)
        while True:
            piece = self._piece(shard, chain.number, wait_s)
            yield from frames_of(piece.body, chain, f"{self._url}/v1/history/{shard}")

    def _piece(self, shard: int, start: int, wait_s: float) -> Answer:
        wait = f"&wait={wait_s:g}" if wait_s else ""
        return self._get(f"/v1/history/{shard}?from={start}&max_bytes={self._piece_bytes}{wait}")

    def _get(self, path: str) -> Answer:
        for attempt in range(1, TRIES + 1):
            try:
                answer = self._ask(path)
            except OSError as error:
                if attempt == TRIES:
                    raise Unavailable(f"{self._url} cannot be reached: {error}") from error
                self._sleep(min(2**attempt / 10, 5.0))
                continue
            if answer.status == 200:
                return answer
            if answer.status not in (429, 503) or attempt == TRIES:
                raise _problem(self._url + path, answer)
            self._sleep(float(answer.headers.get("retry-after", "1")))
        raise AssertionError("the last try returns or raises")

    def _ask(self, path: str) -> Answer:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        connection = kind(self._host, timeout=TIMEOUT_S)
        try:
            headers = dict(self._signer.headers("GET", self._host, path, b"")) if self._signer else {}
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            body = response.read()
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)
        except http.client.HTTPException as error:
            raise OSError(repr(error)) from error
        finally:
            connection.close()


def _problem(address: str, answer: Answer) -> BatonError:
    """The error that the node told, of the class that has its code."""
    try:
        problem = json.loads(answer.body)
        kind, text = _ERRORS.get(problem["code"], BatonError), problem["detail"]
    except (ValueError, KeyError, TypeError):
        kind, text = BatonError, f"status {answer.status}; is this a Baton node?"
    return kind(f"{address}: {text}")
