"""History over HTTP: GET /v1/history of a node, in pieces, each checked against the one before."""

from __future__ import annotations

import http.client
import json
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from batonq.client.signing import Signer
from batonq.errors import AccessDenied, BatonError, InvalidInput, LogCorrupt, LogGap, NotFound, OverLimit, Unavailable
from batonq.log.frames import HEADER_BYTES, Frame, parse_header
from batonq.log.reading import Chain, frames_of
from batonq.pipeline.events.names import Names, QueueNames

if TYPE_CHECKING:
    from batonq.pipeline.reading.history import Range

PIECE_BYTES = 8 << 20
PART_BYTES = 16 << 20  # approximate size of the data between two marks
TRIES = 8  # for one request while the node is unavailable
PATIENCE_S = 600.0  # for a node that serves other readers: its rate is limited, and many may ask
WAIT_MAX_S = 30.0
TIMEOUT_S = 60.0
_ERRORS: dict[str, type[BatonError]] = {
    kind.code: kind for kind in (AccessDenied, InvalidInput, LogCorrupt, LogGap, NotFound, OverLimit, Unavailable)
}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Ahead:
    """A request in progress on another thread, so that the node reads while the caller decodes."""

    def __init__(self, request: Callable[[], Answer]) -> None:
        self._request = request
        self._answer: Answer | None = None
        self._problem: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="baton history", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._answer = self._request()
        except Exception as problem:
            self._problem = problem

    def result(self) -> Answer:
        self._thread.join()
        if self._answer is None:
            assert self._problem is not None
            raise self._problem
        return self._answer


class RemoteHistory:
    """A node's history. It waits if the rate limit is reached, or if the node is unavailable for a while."""

    knows_deleted_queues = False

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
            raise InvalidInput(f"The URL of a node must be http://host:port, not {url!r}.")
        self._url = url.rstrip("/")
        self._host = parts.netloc
        self._secure = parts.scheme == "https"
        self._signer = Signer(access_key, secret_key) if access_key else None
        self._piece_bytes = piece_bytes
        self._sleep = sleep
        self._frame_bytes: dict[int, int] = {}  # by shard: average size of a frame
        self._known: dict[int, tuple[int, Names]] = {}  # by shard: the names at a frame

    def shards(self) -> list[Range]:
        """Raises Unavailable while a shard of the node is unavailable: without it there would be a gap."""
        from batonq.pipeline.reading.history import Range

        return [Range(one["shard"], one["firstFrame"], one["nextFrame"]) for one in self._listing("/v1/history")]

    def _listing(self, path: str) -> list[dict[str, Any]]:
        for attempt in range(1, TRIES + 1):
            answer = json.loads(self._get(path).body)
            if not answer.get("unavailable"):
                break
            if attempt == TRIES:
                raise Unavailable(
                    f"Shard {answer['unavailable'][0]} of {self._url} is unavailable at the moment. Retry."
                )
            self._sleep(min(2**attempt / 10, 5.0))
        listed: list[dict[str, Any]] = answer["shards"]
        for one in listed:
            self._frame_bytes[one["shard"]] = one["bytes"] // max(one["nextFrame"] - one["firstFrame"], 1) + 1
        return listed

    def names(self, shard: int, before: int) -> Names:
        """The shard's current names, without those of queues that were deleted meanwhile."""
        at, names = self._known.get(shard, (0, {}))
        if before > at:
            for one in self._listing("/v1/history?names=true"):
                told = {queue["number"]: QueueNames(queue["tenant"], queue["name"]) for queue in one["queues"]}
                known = self._known.get(one["shard"], (0, {}))[1]
                self._known[one["shard"]] = (one["nextFrame"], known | told)
            names = self._known.get(shard, (0, {}))[1]
        return dict(names)

    def marks(self, shard: int, start: int, stop: int) -> list[int]:
        """A node can read from any frame, so these are just evenly spaced."""
        if shard not in self._frame_bytes:
            self._listing("/v1/history")
        step = max(PART_BYTES // self._frame_bytes.get(shard, PART_BYTES), 1)
        return list(range(start + step, stop, step))

    def time_ms(self, shard: int, number: int) -> int:
        answer = self._get(f"/v1/history/{shard}?from={number}&to={number + 1}&max_bytes=1")
        if not answer.body:
            raise LogGap(f"Frame {number} of shard {shard} does not exist yet at {self._url}.")
        return parse_header(answer.body[:HEADER_BYTES]).time_ms

    def find_time(self, shard: int, time_ms: int) -> int:
        """By a binary search: one small request per step."""
        span = next((span for span in self.shards() if span.shard == shard), None)
        if span is None:
            raise NotFound(f"Shard {shard} does not exist at {self._url}.")

        def time_of(number: int) -> int:
            try:
                return self.time_ms(shard, number)
            except LogGap:  # deleted meanwhile, because it is older than all others
                return 0

        return span.first + bisect_left(range(span.first, span.next), time_ms, key=time_of)

    def frames(self, shard: int, start: int, stop: int | None = None) -> Iterator[Frame]:
        if stop is not None and stop <= start:
            return iter(())
        first = self._piece(shard, start, stop)  # raises a gap at once, not when the first frame is requested
        return self._frames(shard, start, stop if stop is not None else int(first.headers["baton-end-frame"]), first)

    def _frames(self, shard: int, start: int, stop: int, piece: Answer) -> Iterator[Frame]:
        chain = Chain(shard, None, start)
        if start == 1:
            chain.digest = bytes(16)
        while chain.number < stop and piece.body:
            following = int(piece.headers.get("baton-next-frame", "0"))
            ahead = Ahead(partial(self._piece, shard, following, stop)) if chain.number < following < stop else None
            for frame in frames_of(piece.body, chain, f"{self._url}/v1/history/{shard}"):
                if frame.number >= stop:
                    return
                yield frame
            if chain.number < stop:
                piece = ahead.result() if ahead is not None else self._piece(shard, chain.number, stop)

    def _piece(self, shard: int, start: int, stop: int | None) -> Answer:
        limit = f"&to={stop}" if stop is not None else ""
        return self._get(f"/v1/history/{shard}?from={start}{limit}&max_bytes={self._piece_bytes}")

    def _get(self, path: str) -> Answer:
        failures, waited_s = 0, 0.0
        while True:
            try:
                answer = self._ask(path)
            except OSError as error:
                failures += 1
                if failures == TRIES:
                    raise Unavailable(f"{self._url} cannot be reached: {error}") from error
                self._sleep(min(2**failures / 10, 5.0))
                continue
            if answer.status == 200:
                return answer
            wait_s = float(answer.headers.get("retry-after", "1"))
            busy = answer.status == 429 and waited_s < PATIENCE_S and wait_s <= WAIT_MAX_S
            failures += answer.status == 503
            if not busy and (answer.status != 503 or failures == TRIES):
                raise _problem(self._url + path, answer)
            self._sleep(wait_s)
            waited_s += wait_s

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
    """The node's error as an exception of the class for its code."""
    try:
        problem = json.loads(answer.body)
        kind, text = _ERRORS.get(problem["code"], BatonError), problem["detail"]
    except (ValueError, KeyError, TypeError):
        kind, text = BatonError, f"status {answer.status}. Is this a Baton node?"
    return kind(f"{address}: {text}")
