"""A reader group of a queue, with this client as one of its members."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from uuid import uuid4

from msgspec import Struct

from batonq.client import codec
from batonq.client.aio.pauses import sleep, to_thread
from batonq.client.models import FailedPosition, ReaderInfo, RetainedFields
from batonq.errors import (
    BatonError,
    InvalidInput,
    PayloadDamaged,
    PositionInvalid,
    ReaderDoesNotExist,
    StaleMember,
)

if TYPE_CHECKING:
    from batonq.client.aio.queue import Queue

RETRY_S = 1.0  # how long a fetch waits before a message that cannot be skipped yet is read again
BLOCKED_MAX = 3  # how often iteration reads it again
UNREADABLE = "its body is missing or damaged in the payload store"
NOT_SKIPPED = "The reader group has no dead-letter queue for it. Seek past it."


class RetainedMessage(RetainedFields):
    """A message of a queue's retained history, read by a reader group."""


class Fetched(Struct, rename="camel"):
    messages: list[RetainedMessage]
    blocked_at: str = ""


class HistoryPage(Struct, rename="camel"):
    messages: list[RetainedMessage]
    next_cursor: str = ""


class Readers(Struct):
    readers: list[ReaderInfo]


class _Joined(Struct, rename="camel"):
    epoch: int
    shards: list[int] = []
    reset_epoch: int = 0
    session_seconds: float = 30.0


class Reader:
    """One member of a reader group; `queue.reader(group)` creates it without a request.

    A group reads the retained history of its queue independently of consumers and of other groups. Its members share
    the queue's shards. Every message is read by the group at least once, in order on each shard. The member joins at
    the first fetch, and joins again while it fetches. A member that does not fetch or `join` for the group's session
    time loses its shards.
    """

    def __init__(self, queue: Queue, group: str, member: str | None = None) -> None:
        self.queue = queue
        self.group = group
        self.member = member or f"client-{uuid4().hex}"
        self.shards: list[int] = []  # of the last assignment
        self._calls = queue._calls
        self._path = f"{queue._path}/readers/{quote(group, safe='')}"
        self._epoch = 0  # 0: not joined
        self._joined_at = self._session = 0.0
        self._fetched: dict[int, str] = {}  # shard → the last position that was fetched
        self._reached: dict[int, str] = {}  # shard → the last position that iteration has handed out
        self._committed: dict[int, str] = {}
        self._tenures: dict[int, int] = {}
        self._last_tenure = 0
        self._blocked_at, self._blocked_times = "", 0  # a position that cannot be skipped yet, fetches in a row

    def __repr__(self) -> str:
        return f"<Reader {self.group} of {self.queue.name}>"

    # --- the group --------------------------------------------------------------------------------

    async def create(
        self,
        start: str | datetime = "start",
        *,
        dead_letter_queue: str | None = None,
        max_failures: int = 3,
        session: float = 30.0,
    ) -> ReaderInfo:
        """Create the group, or return it if it exists with the same settings.

        `start` is "start" (the oldest retained message), "end" (only new messages) or a time with a time zone.
        A group that exists stays where it is; `seek` moves it.
        """
        value: dict[str, Any] = {"name": self.group, "from": start_text(start), "maxFailures": max_failures}
        value["sessionSeconds"] = session
        if dead_letter_queue is not None:
            value["deadLetterQueue"] = dead_letter_queue
        reply = await self._calls.request("POST", f"{self.queue._path}/readers", value)
        return codec.decode(ReaderInfo, reply.answer)

    async def info(self) -> ReaderInfo:
        """The group's settings, members, positions and lag."""
        return codec.decode(ReaderInfo, (await self._calls.request("GET", self._path)).answer)

    async def delete(self) -> None:
        """Delete the group with its positions. The history stays."""
        await self._calls.request("DELETE", self._path, done_before=(ReaderDoesNotExist,))

    async def seek(self, to: str | datetime | None = None, *, positions: Sequence[str] = ()) -> ReaderInfo:
        """Let the group continue at "start", "end" or a time; or, on some shards, with the messages at `positions`.

        What any member has fetched before can no longer be committed.
        """
        value = {"positions": list(positions)} if to is None else {"to": start_text(to)}
        reply = await self._calls.request("POST", f"{self._path}:seek", value)
        self._forget()
        return codec.decode(ReaderInfo, reply.answer)

    # --- as a member --------------------------------------------------------------------------------

    async def join(self) -> list[int]:
        """Join the group, or stay a member; returns the shards of this member.

        `fetch` calls it often enough. Call it yourself while you process messages for longer than the session time.
        """
        reply = await self._calls.request("POST", f"{self._path}:join", {"member": self.member})
        joined = codec.decode(_Joined, reply.answer)
        kept = [shard for shard in joined.shards if shard in self.shards] if joined.reset_epoch <= self._epoch else []
        for table in (self._fetched, self._reached, self._committed, self._tenures):
            for shard in [shard for shard in table if shard not in kept]:
                del table[shard]
        for shard in joined.shards:
            if shard not in self._tenures:
                self._last_tenure += 1
                self._tenures[shard] = self._last_tenure
        self.shards, self._epoch, self._session = joined.shards, joined.epoch, joined.session_seconds
        self._joined_at = time.monotonic()
        return self.shards

    async def leave(self) -> None:
        """Leave the group, so that other members get the shards at once."""
        if self._epoch:
            await self._calls.request("POST", f"{self._path}:leave", {"member": self.member})
            self._forget()

    def _forget(self) -> None:
        self._epoch = 0
        self.shards = []
        for table in (self._fetched, self._reached, self._committed, self._tenures):
            table.clear()

    async def _stay(self) -> None:
        if not self.shards or time.monotonic() - self._joined_at > self._session / 3:
            await self.join()

    async def fetch(
        self, max_messages: int = 100, wait: float = 20.0, *, done: Sequence[RetainedMessage] = ()
    ) -> list[RetainedMessage]:
        """Up to `max_messages` (at most 1,000) that this member has not fetched yet, in order on each shard.

        `done` are messages to commit in the same request, as by `commit`; StaleMember is raised as there.
        Waits up to `wait` seconds (at most 20) for the first. After a restart, or when the members have changed, the
        first fetch begins after what is committed. A message whose body is lost in the client's payload store is
        skipped into the group's dead-letter queue; PayloadDamaged is raised if it cannot be skipped.
        """
        positions = _last_per_shard(done)
        if positions and not (self._epoch and set(positions) <= set(self.shards)):
            raise StaleMember("Another member of the reader group has the shard of this message now. Fetch again.")
        before = self.tenures()
        for _ in range(3):
            await self._stay()
            if any(self._tenures.get(shard) != before.get(shard) for shard in positions):
                raise StaleMember("Another member of the reader group has the shard of this message now. Fetch again.")
            wait = min(wait, self._session / 3 if self.shards else 1.0)  # then it looks again which shards it has
            value: dict[str, Any] = {
                "member": self.member,
                "epoch": self._epoch,
                "shards": self.shards,
                "after": list(self._fetched.values()),
                "maxMessages": max_messages,
                "waitSeconds": wait,
            }
            if positions:
                value["commit"] = list(positions.values())
            try:
                reply = await self._calls.request("POST", f"{self._path}:fetch", value, wait=wait)
            except StaleMember:
                await self.join()
                continue
            self._committed.update(positions)
            answer = codec.decode(Fetched, reply.answer)
            self._blocked_at = answer.blocked_at
            found = await self._with_bodies(answer.messages, wait)
            self._blocked_times = self._blocked_times + 1 if self._blocked_at and not found else 0
            if found and len(self.shards) == 1:
                self._fetched[self.shards[0]] = found[-1].position
            else:
                self._fetched.update(_last_per_shard(found))
            return found
        return []

    async def _with_bodies(self, found: list[RetainedMessage], wait: float) -> list[RetainedMessage]:
        """The messages with their bodies from the payload store, on each shard up to the first that has none."""
        payloads = self.queue._baton._payloads
        if payloads is None or not found:
            return found
        unreadable, problem = await to_thread(payloads.resolve, found)
        if not unreadable:
            return found
        ends: dict[int, RetainedMessage] = {}
        for message in unreadable:
            ends.setdefault(message.shard, message)
        kept = [
            one for one in found if one.shard not in ends or _number(one.position) < _number(ends[one.shard].position)
        ]
        if problem is not None:
            if kept:
                return kept
            raise problem
        before, with_messages = self.tenures(), {one.shard for one in kept}
        blocked = ""
        for message in ends.values():
            if message.shard in with_messages:
                continue
            try:
                if not await self._skip_unreadable(message):
                    blocked = message.position
            except BatonError:
                if not kept:
                    raise
        if kept:
            # To skip a message, this member may have joined again.
            return [one for one in kept if self._tenures.get(one.shard) == before.get(one.shard)]
        if blocked:
            self._blocked_at = blocked
            await sleep(min(wait, RETRY_S))
        return []

    async def _skip_unreadable(self, message: RetainedMessage) -> bool:
        """Report a message without a body as failed until it is skipped: trying again does not help. Returns False if
        what was fetched before it is not committed yet. Raises PayloadDamaged if it cannot be skipped.
        """
        try:
            result = await self.fail(message, UNREADABLE)
            for _ in range(result.failures, (await self.info()).max_failures):
                result = await self.fail(message, UNREADABLE)
        except PositionInvalid:
            return False
        if not result.skipped:
            why = result.why or NOT_SKIPPED
            raise PayloadDamaged(f"Position {message.position} cannot be read: {UNREADABLE}. {why}")
        self._fetched[message.shard] = message.position
        return True

    @property
    def session(self) -> float:
        """Seconds after which a member that does not join or fetch loses its shards."""
        return self._session

    def tenures(self) -> dict[int, int]:
        """For each shard of this member a number, which changes when the member has lost the shard and got it again,
        or when the group was told to seek. What was fetched before must not be committed then.
        """
        return dict(self._tenures)

    def rewind(self) -> None:
        """Let the next fetch begin after what is committed, for example after `fail`."""
        self._fetched.clear()
        self._reached.clear()

    async def commit(self, *messages: RetainedMessage) -> None:
        """Store durably that these messages, and all before them on their shards, are done. Without messages:
        everything that iteration has yielded so far.

        Raises StaleMember if another member may have the shard now.
        """
        positions = _last_per_shard(messages) if messages else dict(self._reached)
        changed = {shard: position for shard, position in positions.items() if self._committed.get(shard) != position}
        if changed:
            await self._as_member(":commit", {"positions": list(changed.values())}, list(changed))
            self._committed.update(changed)

    async def fail(self, message: RetainedMessage, error: str | BaseException = "") -> FailedPosition:
        """Report that a message failed; everything before it must be committed.

        After `max_failures` the message is moved to the group's dead-letter queue and is done. Otherwise the next fetch
        begins with it again.
        """
        text = f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else error
        value = {"position": message.position, "error": text[:500]}
        reply = await self._as_member(":fail", value, [message.shard])
        result = codec.decode(FailedPosition, reply.answer)
        if not result.skipped:
            self._fetched.pop(message.shard, None)
            self._reached.pop(message.shard, None)
        return result

    async def _as_member(self, verb: str, value: dict[str, Any], shards: Sequence[int]) -> Any:
        """A request with the member's epoch. If only the epoch has changed, and not who has the shards, it is repeated
        with the new epoch.
        """
        if not self._epoch:
            raise InvalidInput("Fetch before you commit: this member has not joined the reader group.")
        if not set(shards) <= set(self.shards):
            raise StaleMember("Another member of the reader group has the shard of this message now. Fetch again.")
        try:
            return await self._calls.request(
                "POST", self._path + verb, {"member": self.member, "epoch": self._epoch, **value}
            )
        except StaleMember:
            before = self.tenures()
            await self.join()
            if any(self._tenures.get(shard) != before[shard] for shard in shards):
                raise
            return await self._calls.request(
                "POST", self._path + verb, {"member": self.member, "epoch": self._epoch, **value}
            )

    # --- iteration ------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[RetainedMessage]:
        return self.messages()

    async def messages(self, *, prefetch: int = 100) -> AsyncGenerator[RetainedMessage, None]:
        """Iterate over messages as they arrive, until the Baton is closed: `async for message in reader`.

        `await reader.commit()` stores that everything so far is done. When the loop ends, the member leaves the group.

        Raises PayloadDamaged if a body is lost in the payload store and its message cannot be skipped before
        earlier messages are committed. The member then stays in the group: commit, and iterate again.
        """
        is_blocked = False
        try:
            while not self.queue._over():
                try:
                    found = await self.fetch(prefetch)
                except BatonError:
                    if self.queue._over():
                        return
                    raise
                if self._blocked_times >= BLOCKED_MAX:
                    self._blocked_times, is_blocked = 0, True
                    raise PayloadDamaged(
                        f"Position {self._blocked_at} cannot be read: {UNREADABLE}. To skip it, commit what you have "
                        "read, and iterate again."
                    )
                for message in found:
                    if self._fetched.get(message.shard) is None:
                        continue  # another member has the shard now, or this one begins there again
                    self._reached[message.shard] = message.position
                    yield message
        finally:
            if not is_blocked and not self.queue._over():
                await self.leave()


def start_text(given: str | datetime) -> str:
    if isinstance(given, str):
        return given
    if given.tzinfo is None:
        raise InvalidInput(f"The time {given} has no time zone. Use for example datetime.now(timezone.utc).")
    return given.isoformat()


def _last_per_shard(messages: Iterable[RetainedMessage]) -> dict[int, str]:
    last: dict[int, RetainedMessage] = {}
    for message in messages:
        known = last.get(message.shard)
        if known is None or _number(message.position) > _number(known.position):
            last[message.shard] = message
    return {shard: message.position for shard, message in last.items()}


def _number(position: str) -> int:
    return int(position.partition(":")[2])
