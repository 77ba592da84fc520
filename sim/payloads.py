"""A payload store in memory that fails now and then, and a check of its objects.

The hours by which the sweeper decides are seconds here, so that it deletes objects in the middle of a run. They are
still much longer than a request takes, as they are in production.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Set
from dataclasses import replace
from random import Random

from batonq import payload_store
from batonq.core.shard.state import stored_payloads
from batonq.node.messages import payload_sweeper
from batonq.node.settings import Settings
from sim.ledger import Ledger
from sim.patches import Patches

ROOT = "store"
HOUR_S = 5.0  # stands for an hour
SWEEP_S = 2.0
THRESHOLD_BYTES = 1024  # a third of the bodies are larger, see bodies.py
FAIL_EVERY_S = 4.0
FAIL_MAX_S = 3.0
KEY_PARTS = 2  # the hour and the digest


def with_payload_store(settings: Settings) -> Settings:
    return replace(
        settings, payload_store="memory://payloads", payload_threshold=THRESHOLD_BYTES, payload_sweep_s=SWEEP_S
    )


class ObjectStorage:
    """The file system below a payload store, with the methods of fsspec that payload_store.py calls. An object stays
    when a node crashes. A call that fails may have had its effect.

    `settle_s` is how long after the end of an hour its objects may still be sent, and how long shards remember what
    they have moved.
    """

    def __init__(self, random: Random, settle_s: float) -> None:
        self.objects: dict[str, bytes] = {}  # by path
        self.written: dict[str, bytes] = {}  # all objects that were ever to be written, by key
        self.fail_rate = 0.0
        self.failures = 0
        self.deleted = 0
        self._random = random
        self._settle_s = settle_s

    def patches(self) -> Patches:
        return [
            (payload_store, "_open", lambda url: (self, ROOT)),
            (payload_store, "hour_of", lambda seconds: f"{int(seconds // HOUR_S):010}"),
            (payload_store, "end_of", lambda hour: (int(hour) + 1) * HOUR_S),
            (payload_store, "SETTLE_S", self._settle_s),
            (stored_payloads, "KEPT_MS", int(self._settle_s * 1000)),
            (payload_sweeper, "ASK_S", self._settle_s / 6),
        ]

    @property
    def swept_s(self) -> float:
        """After this time all objects that nobody needs now are deleted."""
        return self._settle_s + HOUR_S + 3 * SWEEP_S

    async def fail_often(self) -> None:
        """Fail for some time, again and again."""
        random = self._random
        while True:
            await asyncio.sleep(random.expovariate(1 / FAIL_EVERY_S))
            self.fail_rate = random.choice((0.1, 0.5, 1.0))
            await asyncio.sleep(random.random() * FAIL_MAX_S)
            self.fail_rate = 0.0

    # --- the file system ---------------------------------------------------------------------------

    def pipe_file(self, path: str, data: bytes) -> None:
        def write() -> None:
            self.objects[path] = data

        self.written[path.removeprefix(f"{ROOT}/")] = data
        self._change(write)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        self._change(lambda: None)
        if path not in self.objects:
            raise FileNotFoundError(path)
        return self.objects[path][start:end]

    def rm_file(self, path: str) -> None:
        def delete() -> None:
            if path not in self.objects:
                raise FileNotFoundError(path)
            del self.objects[path]
            self.deleted += 1

        self._change(delete)

    def ls(self, path: str, detail: bool) -> list[str]:
        assert not detail
        self._change(lambda: None)
        below = [each.removeprefix(f"{path}/") for each in self.objects if each.startswith(f"{path}/")]
        if not below:
            raise FileNotFoundError(path)
        return [f"{path}/{name}" for name in dict.fromkeys(each.partition("/")[0] for each in below)]

    def invalidate_cache(self) -> None:
        """There is no cache."""

    def _change(self, change: Callable[[], None]) -> None:
        if self.fail_rate and self._random.random() < self.fail_rate:
            self.failures += 1
            if self._random.random() < 0.5:
                change()
            raise OSError("the storage does not answer")
        change()

    # --- checks ------------------------------------------------------------------------------------

    def missing(self, ledger: Ledger) -> Iterator[str]:
        """Messages that exist without their object."""
        for copy in ledger.copies():
            if copy.present and copy.key and f"{ROOT}/{copy.key}" not in self.objects:
                yield f"message {copy.sequence} of shard {copy.shard} needs {copy.key[:20]}, which is not in the store"

    def unneeded(self, ledger: Ledger, retaining: Set[int]) -> list[str]:
        """Objects that nobody needs; `retaining` are the queues that retain their messages."""
        needed = {f"{ROOT}/{copy.key}" for copy in ledger.copies() if copy.present or copy.queue in retaining}
        objects = [path for path in self.objects if path.count("/") == KEY_PARTS]
        return [f"{path[:30]} is in the store, and nobody needs it" for path in objects if path not in needed]
