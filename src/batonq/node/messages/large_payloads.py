"""Large bodies: puts them into the payload store before a message is sent, and reads them back for whoever receives or
looks at it. In the log and between nodes there is only a pointer, see core/payload.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

from batonq.core.commands import Send
from batonq.core.payload import STORED, Content, decode_pointer, encode_pointer
from batonq.errors import BatonError, PayloadDamaged, PayloadStoreUnavailable
from batonq.node.alarms.book import AlarmBook
from batonq.node.messages.peek import Peeked
from batonq.node.messages.received import ANSWER_BYTES_MAX, Delivery
from batonq.node.messages.retained_reader import RetainedPage
from batonq.payload_store import PayloadStore

P = ParamSpec("P")
T = TypeVar("T")
AT_ONCE_MAX = 8  # objects that one node reads or writes at the same time
CALL_S = 25.0  # for one object, with the wait for others; less than the usual visibility timeout
LIST_S = 600.0  # for what the sweeper asks for, such as a list of all objects
NO_STORE = (
    "The message's body is in a payload store, and this server has none. Start every server of the cluster with the "
    "same --payload-store."
)
NO_ANSWER = "The payload store did not answer in time. Retry later."
TOO_LATE = "Writing to the payload store took too long, so the message was not sent. Retry."


class Resolved(NamedTuple):
    """Messages with their bodies; those that are given back, because they do not fit or the store does not answer; and
    the reason, if it is the store.
    """

    complete: list[Delivery]
    returned: list[Delivery]
    problem: BatonError | None = None


class LargePayloads:
    """`open_store` is None if the server has no store: then nothing is put there, and pointers cannot be followed."""

    def __init__(
        self,
        alarms: AlarmBook,
        open_store: Callable[[], PayloadStore] | None = None,
        threshold_bytes: int = 0,
        bytes_max: int = 0,
        *,
        threads: bool = True,
    ) -> None:
        # Threads of its own: a store that hangs must not take those that read the disk.
        self._threads = ThreadPoolExecutor(AT_ONCE_MAX, "payload-store") if threads and open_store else None
        self._open_store = open_store
        self._store: PayloadStore | None = None
        self._threshold_bytes = threshold_bytes
        self.bytes_max = bytes_max  # of one body
        self._alarms = alarms
        self.written = self.read = self.failed = 0  # objects, since the start

    @property
    def enabled(self) -> bool:
        return self._open_store is not None

    def concern(self, command: Send) -> bool:
        """Whether the command has a body that belongs in the store."""
        return self._open_store is not None and max(map(len, command.bodies), default=0) > self._threshold_bytes

    async def store(self, again: bool = False) -> PayloadStore:
        """The store, which is opened when it is first needed, or `again`: then it is checked whose it is. Raises
        PayloadStoreUnavailable, InvalidInput.
        """
        if self._open_store is None:
            raise PayloadStoreUnavailable(NO_STORE)
        if self._store is None or again:
            self._store = await self.call(CALL_S, self._open_store)
        return self._store

    async def call(self, limit_s: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that waits for the storage, on a thread. In simulated time there are no threads. Raises
        PayloadStoreUnavailable if it takes longer than the limit.
        """
        if self._threads is None:
            return function(*args, **kwargs)
        work = asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *args, **kwargs))
        try:
            return await asyncio.wait_for(work, limit_s)
        except TimeoutError:
            raise PayloadStoreUnavailable(NO_ANSWER) from None

    def close(self) -> None:
        """Use the storage no more. Calls in progress are not waited for."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    # --- sending

    async def offload(self, command: Send) -> Send:
        """The command with pointers instead of its large bodies. Raises PayloadStoreUnavailable."""
        places = [at for at, body in enumerate(command.bodies) if len(body) > self._threshold_bytes]
        store = await self.store()
        keys = await asyncio.gather(*(self._write(store, command.bodies[at]) for at in places))
        if not all(map(store.is_current, keys)):
            raise PayloadStoreUnavailable(TOO_LATE)
        count = len(command.bodies)
        bodies, contents = [*command.bodies], [*(command.contents or [command.content] * count)]
        for at, key in zip(places, keys, strict=True):
            bodies[at] = encode_pointer(key, len(bodies[at]))
            contents[at] |= STORED
        return replace(command, bodies=bodies, contents=contents)  # the digests are still those of the bodies

    async def _write(self, store: PayloadStore, body: bytes) -> str:
        try:
            key = await self.call(CALL_S, store.put, body)
        except BatonError as problem:
            self._fail(problem)
            raise
        self.written += 1
        self._alarms.clear("payload-store")
        return key

    # --- receiving

    async def resolve(
        self, rows: Sequence[Delivery], order_of: Callable[[Delivery], Hashable | None], room: int = ANSWER_BYTES_MAX
    ) -> Resolved:
        """Leased messages with their bodies. A message whose body is missing or damaged is left out: it stays leased,
        so that it is dead-lettered in the end.

        `order_of` names the FIFO group of a message, or is None if its queue has no order. Messages of a group behind
        one without a body are given back.
        """
        returned: list[Delivery] = []
        chosen: list[Delivery] = []
        for row in rows:
            room -= decode_pointer(row.body)[1] if row.content & STORED else len(row.body)
            (chosen if room >= 0 or not chosen else returned).append(row)
        bodies = await asyncio.gather(*(self._read(row) for row in chosen))
        complete: list[Delivery] = []
        problem: BatonError | None = None
        held_up: set[Hashable | None] = set()
        for row, body in zip(chosen, bodies, strict=True):
            order = order_of(row)
            if order is not None and order in held_up:
                returned.append(row)
                continue
            if isinstance(body, bytes):
                complete.append(row._replace(body=body, content=row.content & ~STORED))
                continue
            held_up.add(order)
            if isinstance(body, PayloadDamaged):
                text = f"Message {row.message_id} cannot be read: {body.message}"
                self._alarms.put("message-unreadable", text)
            else:
                problem = body
                returned.append(row)
        return Resolved(complete, returned, problem)

    async def _read(self, row: Delivery) -> bytes | BatonError:
        if not row.content & STORED:
            return row.body
        return await self._fetch(row.body)

    async def _fetch(self, pointer: bytes) -> bytes | BatonError:
        try:
            store = await self.store()
            body = await self.call(CALL_S, store.get, *decode_pointer(pointer))
        except BatonError as problem:
            self._fail(problem)
            return problem.with_traceback(None)
        self.read += 1
        self._alarms.clear("payload-store")
        return body

    async def show(self, peeked: Sequence[Peeked], room: int = ANSWER_BYTES_MAX) -> list[Peeked]:
        """Messages that somebody looks at, with their bodies, or with the reason why a body cannot be shown."""
        shown: list[Peeked] = []
        for one in peeked:
            if not one.content & STORED:
                shown.append(one)
                continue
            size = decode_pointer(one.body)[1]
            kind = one.content & ~STORED
            if size > room:
                problem = f"The body of {size} bytes is in the payload store and too large for this list."
                shown.append(one._replace(body=b"", content=int(Content.TEXT), problem=one.problem or problem))
                continue
            body = await self._fetch(one.body)
            if isinstance(body, BatonError):
                shown.append(one._replace(body=b"", content=int(Content.TEXT), problem=body.message))
            else:
                room -= size
                shown.append(one._replace(body=body, content=kind))
        return shown

    async def complete(self, page: RetainedPage, room: int = ANSWER_BYTES_MAX) -> RetainedPage:
        """Retained messages with their bodies, as many as fit. Raises PayloadStoreUnavailable, and PayloadDamaged if
        the first body is missing or damaged.
        """
        if not any(map(STORED.__and__, page.contents)):
            return page
        bodies: list[bytes] = []
        for body, content in zip(page.bodies, page.contents, strict=True):
            room -= decode_pointer(body)[1] if content & STORED else len(body)
            if room < 0 and bodies:
                break
            found = await self._fetch(body) if content & STORED else body
            if isinstance(found, BatonError):
                if bodies:
                    break
                raise found
            bodies.append(found)
        page = page.first_messages(len(bodies))
        return replace(page, bodies=bodies, contents=[content & ~STORED for content in page.contents])

    def _fail(self, problem: BatonError) -> None:
        self.failed += 1
        if isinstance(problem, PayloadStoreUnavailable):
            self._alarms.put("payload-store", problem.message)
