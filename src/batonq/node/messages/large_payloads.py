"""Large bodies: puts them into the payload store before a message is sent, and reads them back for whoever receives or
looks at it. In the log and between nodes there is only a pointer, see core/payload.py.

A client may have stored a body itself, and send a pointer of its own. That is marked, so that the shards know which
objects they need, and otherwise left as it is.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, ParamSpec, TypeVar

from batonq.core.commands import Send
from batonq.core.payload import (
    CLIENT_SIZE,
    IN_STORE,
    REFERS,
    STORED,
    UNSAFE_POINTER,
    Content,
    decode_pointer,
    encode_pointer,
    referred_key,
)
from batonq.errors import BatonError, InvalidInput, PayloadDamaged, PayloadStoreUnavailable
from batonq.node import events
from batonq.node.alarms.book import AlarmBook
from batonq.node.messages.peek import Peeked
from batonq.node.messages.received import ANSWER_BYTES_MAX, Delivery
from batonq.node.messages.retained_reader import RetainedPage
from batonq.payload_store import PayloadStore, client_folder, is_current

P = ParamSpec("P")
T = TypeVar("T")
AT_ONCE_MAX = 8  # objects that one node reads or writes at the same time
CALL_S = 25.0  # for one object, with the wait for others; less than the usual visibility timeout
BEGIN_S = 5.0  # for looking whose store it is when a server starts
LIST_S = 600.0  # for what the sweeper asks for, such as a list of all objects
NO_STORE = (
    "The message's body is in a payload store, and this server has none. Start every server of the cluster with the "
    "same --payload-store."
)
NO_ANSWER = "The payload store did not answer in time. Retry later."
TOO_LATE = "Writing to the payload store took too long, so the message was not sent. Retry."
NOT_OURS = (
    "The body is a pointer to {key} in a payload store that belongs to another server or cluster, which deletes the "
    "object when its own messages no longer need it. Read the body with a client of that store, and send it again."
)
TOO_OLD = (
    "The body is a pointer to {key} in the payload store, and that hour (in UTC) is over: the object may be deleted at "
    "any moment. Read the body with a client of the store, and send it again: it is then stored again. If it was "
    "stored just now, check the sender's clock."
)


class Resolved(NamedTuple):
    """Messages with their bodies; those that are given back, because they do not fit or the store does not answer; and
    the reason, if it is the store.
    """

    complete: list[Delivery]
    returned: list[Delivery]
    problem: BatonError | None = None


class LargePayloads:
    """`open_store` is None if the server has no store: then nothing is put there, and pointers cannot be followed.
    `cluster` names this server or cluster as the owner of a store.
    """

    def __init__(
        self,
        alarms: AlarmBook,
        open_store: Callable[[], PayloadStore] | None = None,
        threshold_bytes: int = 0,
        bytes_max: int = 0,
        *,
        cluster: str = "",
        time_s: Callable[[], float] = time.time,
        threads: bool = True,
    ) -> None:
        # Threads of its own: a store that hangs must not take those that read the disk.
        self._threads = ThreadPoolExecutor(AT_ONCE_MAX, "payload-store") if threads and open_store else None
        self._open_store = open_store
        self._store: PayloadStore | None = None
        self._threshold_bytes = threshold_bytes
        self.bytes_max = bytes_max  # of one body
        self.client_folder = client_folder(cluster)  # of objects that clients of this cluster have stored
        self._time_s = time_s
        self._alarms = alarms
        self.written = self.read = self.failed = 0  # objects, since the start

    @property
    def enabled(self) -> bool:
        return self._open_store is not None

    def concern(self, command: Send, is_published: bool) -> bool:
        """Whether the command may have the pointer of a client, or a body that belongs in the store. The bodies of
        messages that are published do not.
        """
        if command.attributes and CLIENT_SIZE in b"".join(command.attributes):  # much faster than one by one
            return True
        return not is_published and self.exceeds(command)

    def exceeds(self, command: Send) -> bool:
        """Whether the command has a body that belongs in the store."""
        return self._open_store is not None and max(map(len, command.bodies), default=0) > self._threshold_bytes

    async def begin(self) -> None:
        """Note whose store it is, so that clients know who deletes what they store there. If that fails now, it is done
        when the store is needed.
        """
        if self._open_store is not None:
            try:
                self._store = await self.call(BEGIN_S, self._open_store)
            except BatonError as problem:
                self._fail(problem)
                events.warning("payload_store_not_opened", problem.message)

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

    def refer(self, command: Send, is_internal: bool = False) -> tuple[Send, dict[int, InvalidInput]]:
        """The command with a mark for each pointer of a client to an object that this server deletes, so that it is
        kept while a message needs it. That is also done by a server without the store, which it may get later.

        Returns with it why messages must be refused, by their indexes: the object may be deleted before the message is
        sent. These are marked as unsafe, so that the shard refuses them, unless the request is a retry and the shard
        has them already. Messages that the server sends itself (`is_internal`), from the retained history, are not
        refused; one that has the mark already keeps its object.
        """
        refused: dict[int, InvalidInput] = {}
        if not command.attributes:
            return command, refused
        contents = [*(command.contents or [command.content] * len(command.bodies))]
        marked = False
        for at, attributes in enumerate(command.attributes):
            if CLIENT_SIZE not in attributes or contents[at] & IN_STORE:
                continue
            key = referred_key(command.bodies[at])
            if not key:
                continue
            is_ours = key.startswith(f"{self.client_folder}/")
            if is_internal:
                mark = REFERS if is_ours else 0
            elif is_ours and is_current(key, self._time_s()):
                mark = REFERS
            else:
                mark = UNSAFE_POINTER
                refused[at] = InvalidInput((TOO_OLD if is_ours else NOT_OURS).format(key=key))
            contents[at] |= mark
            marked |= bool(mark)
        return replace(command, contents=contents) if marked else command, refused

    async def offload(self, command: Send) -> Send:
        """The command with pointers instead of its large bodies. Raises PayloadStoreUnavailable."""
        count = len(command.bodies)
        contents = [*(command.contents or [command.content] * count)]
        places = [
            at
            for at, (body, content) in enumerate(zip(command.bodies, contents, strict=True))
            if len(body) > self._threshold_bytes and not content & IN_STORE
        ]
        store = await self.store()
        keys = await asyncio.gather(*(self._write(store, command.bodies[at]) for at in places))
        if not all(map(store.is_current, keys)):
            raise PayloadStoreUnavailable(TOO_LATE)
        bodies = [*command.bodies]
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
                self._unreadable(row.message_id, body)
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
                if isinstance(found, PayloadDamaged):
                    self._unreadable(page.message_ids()[0], found)
                raise found
            bodies.append(found)
        page = page.first_messages(len(bodies))
        return replace(page, bodies=bodies, contents=[content & ~STORED for content in page.contents])

    def _unreadable(self, message_id: str, problem: PayloadDamaged) -> None:
        self._alarms.put("message-unreadable", f"Message {message_id} cannot be read: {problem.message}")

    def _fail(self, problem: BatonError) -> None:
        self.failed += 1
        if isinstance(problem, PayloadStoreUnavailable):
            self._alarms.put("payload-store", problem.message)
