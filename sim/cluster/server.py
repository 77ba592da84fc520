"""JetStream in memory: streams with a check of the last sequence on append, and keys with revisions and times to live.

It does what the real servers promise and nothing more. It knows no epochs, so a fenced owner's frame is stored if its
sequence fits. Writes are decided one after another; reads may come from a server that is behind.
"""

from __future__ import annotations

import asyncio
import contextvars
import json
from collections import deque
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from batonq.errors import LogCorrupt, LogGap
from batonq.log import frames
from batonq.log.backend import Bounds, Entry, WrongEnd
from batonq.log.frames import Frame
from batonq.log.jetstream.leases import NOTHING, Value
from sim.log import Witness
from sim.loop import SimLoop

BEHIND_S = 1.0  # maximum age of a stale answer
BATCH_FRAMES = 16


class Stream:
    def __init__(self) -> None:
        self.first = 1
        self.stored: list[bytes] = []
        self.epoch = 0
        self.owner: dict[int, str] = {}  # epoch → the node that appended under it
        self.ends: deque[tuple[float, int]] = deque()  # past ends of the stream and their times, for about a second
        self.waiting: list[asyncio.Future[None]] = []

    @property
    def next(self) -> int:
        return self.first + len(self.stored)


class Kept(NamedTuple):
    """A key: its current and its previous value."""

    value: Value
    before: Value


class Server:
    """`violated` is told about writes that must never be accepted."""

    def __init__(self, loop: SimLoop, random: Random, witness: Witness, violated: Callable[[str, str], None]) -> None:
        self.stale = 0.0  # share of reads that are behind
        self.keys_away: set[str] = set()  # nodes that get no answers about keys
        self.frames = 0
        self._loop = loop
        self._random = random
        self._witness = witness
        self._violated = violated
        self._outside = contextvars.copy_context()
        self._streams: dict[int, Stream] = {}
        self._keys: dict[str, Kept] = {}
        self._revision = 0
        self._watching: dict[str, list[asyncio.Future[None]]] = {}  # by prefix

    def _is_stale(self) -> bool:
        return bool(self.stale) and self._random.random() < self.stale

    # --- streams ----------------------------------------------------------------------------------

    def stream(self, shard: int) -> Stream:
        return self._streams.setdefault(shard, Stream())

    @property
    def shards(self) -> dict[int, Stream]:
        return self._streams

    def append(self, shard: int, number: int, data: bytes, who: str) -> None:
        stream = self.stream(shard)
        if number != stream.next:
            raise WrongEnd(f"wrong last sequence: {stream.next - 1}")
        self._look_at(stream, frames.parse(data), who)
        stream.ends.append((self._loop.time(), stream.next))
        while stream.ends[0][0] < self._loop.time() - BEHIND_S:
            stream.ends.popleft()
        stream.stored.append(data)
        self.frames += 1
        _wake(stream.waiting)

    def _look_at(self, stream: Stream, frame: Frame, who: str) -> None:
        """A stale owner's append must not be accepted, and no two nodes may append under one epoch."""
        if frame.epoch < stream.epoch:
            self._violated(
                "owners", f"shard {frame.shard}: frame {frame.number} of epoch {frame.epoch} after {stream.epoch}"
            )
        owner = stream.owner.setdefault(frame.epoch, who)
        if owner != who:
            self._violated("owners", f"shard {frame.shard}: {owner} and {who} append under epoch {frame.epoch}")
        stream.epoch = max(stream.epoch, frame.epoch)
        if frame.number == stream.next:
            self._witness.committed(frame.shard, frame)
        else:
            self._violated("owners", f"shard {frame.shard}: frame {frame.number} is stored as {stream.next}")

    def bounds(self, shard: int) -> Bounds:
        stream = self.stream(shard)
        stop = stream.next
        if stream.ends and self._is_stale():
            stop = max(self._random.choice(stream.ends)[1], stream.first + 1)  # the last frame is never dropped
        return Bounds(stream.first, stop)

    def find(self, shard: int, number: int) -> bytes | None:
        stream = self.stream(shard)
        stop = stream.ends[0][1] if stream.ends and self._is_stale() else stream.next
        return stream.stored[number - stream.first] if stream.first <= number < stop else None

    def read(self, shard: int, start: int) -> list[Entry]:
        stream = self.stream(shard)
        if start < stream.first:
            raise LogGap(f"frame {start} is no longer retained")
        if start > stream.next:
            raise LogCorrupt(f"the stream ends before frame {start}")
        stop = min(start + BATCH_FRAMES, stream.next)
        return [Entry(number, stream.stored[number - stream.first]) for number in range(start, stop)]

    def growth(self, shard: int, start: int) -> asyncio.Future[None]:
        """Done when the frame `start` exists."""
        stream = self.stream(shard)
        grown = self._loop.create_future()
        if stream.next > start:
            grown.set_result(None)
        else:
            stream.waiting.append(grown)
        return grown

    def drop_front(self, shard: int, before: int) -> None:
        stream = self.stream(shard)
        if stream.first < before < stream.next:
            del stream.stored[: before - stream.first]
            stream.first = before

    # --- keys -------------------------------------------------------------------------------------

    def get(self, key: str) -> Value:
        kept = self._keys.get(key)
        if kept is None:
            return NOTHING
        return kept.before if self._is_stale() else kept.value

    def put(self, key: str, text: str, revision: int, ttl_s: int) -> int | None:
        value = self._keys[key].value if key in self._keys else NOTHING
        if value.revision != revision:
            return None
        if key.startswith("owner.") and value.text and text:
            self._look_at_lease(key, json.loads(value.text), json.loads(text))
        return self._write(key, text, ttl_s)

    def _look_at_lease(self, key: str, before: dict[str, str], after: dict[str, str]) -> None:
        """While a lease is running no other node gets one, and epochs never decrease."""
        if before["node"] != after["node"] or before["epoch"] > after["epoch"]:
            self._violated("owners", f"{key}: the lease {after} takes the place of {before}, which runs still")

    def _write(self, key: str, text: str, ttl_s: int = 0) -> int:
        self._revision += 1
        revision = self._revision
        before = self._keys[key].value if key in self._keys else NOTHING
        self._keys[key] = Kept(Value(text, revision), before)
        if ttl_s and text:
            self._loop.call_later(ttl_s, self._run_out, key, revision, context=self._outside)
        if text != before.text:  # watchers are not told that a lease was renewed
            _wake(self._watching.setdefault(f"{key.partition('.')[0]}.", []))
        return revision

    def _run_out(self, key: str, revision: int) -> None:
        if self._keys[key].value.revision == revision:
            self._write(key, "")

    def since(self, prefix: str, revision: int) -> list[tuple[int, str, str]]:
        """Writes to keys with this prefix after a revision: the new revision, the rest of the name, the text."""
        found = [
            (kept.value.revision, key.removeprefix(prefix), kept.value.text)
            for key, kept in self._keys.items()
            if key.startswith(prefix) and kept.value.revision > revision
        ]
        return sorted(found)

    def change(self, prefix: str) -> asyncio.Future[None]:
        """Done when a key with this prefix is changed."""
        changed = self._loop.create_future()
        self._watching.setdefault(prefix, []).append(changed)
        return changed


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
    waiting.clear()
