"""Ownership in a JetStream KV bucket: a lease is a key with a time to live, an epoch is a permanent key.

    node.<name>     a live node, with its URL and a note; it also expires
    epoch.<shard>   the last epoch, increased under the key's revision, so that no two owners get the same
    owner.<shard>   the owner; the server removes the key unless it is written again in time, and leaves a marker
    expected.<name> a node of the cluster, whether it runs or not
    fact.<name>     what all nodes agree on, such as the proof of the cluster's secret
    time.<name>     written by a starting node, which reads the server's time from it

A KV bucket is a stream and is used as one here: a marker has a revision, on which the next owner's write depends.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Collection
from math import ceil
from typing import NamedTuple, Protocol, TypeVar

from nats.js.api import ConsumerConfig, DeliverPolicy, Header
from nats.js.errors import APIError

from batonq.errors import Fenced, LogCorrupt, OwnershipHeld
from batonq.log.backend import NameTaken, Unreachable
from batonq.log.interface import Lease, Member
from batonq.log.jetstream.connections import Line
from batonq.log.jetstream.requests import NO_MESSAGE, WRONG_LAST_SEQUENCE, Puller, ask

T = TypeVar("T")
MARKER_S = 60  # how long the marker of a released lease stays
EPOCH_TRIES = 5
OPERATION = "KV-Operation"


class Value(NamedTuple):
    """The value of a key: `text` is empty for a marker, `revision` is 0 if there is nothing."""

    text: str
    revision: int
    stored_ms: int = 0  # when it was written, by the server's clock; 0: unknown


NOTHING = Value("", 0)


class Held(NamedTuple):
    """A lease of this node, and the last revisions of its keys."""

    epoch: int
    revision: int
    epoch_revision: int


class Keys(Protocol):
    """Keys with revisions. Any method may raise Unreachable."""

    @property
    def where(self) -> str: ...

    async def get(self, key: str) -> Value:
        """The value of a key."""

    async def put(self, key: str, text: str, revision: int, ttl_s: int = 0) -> int | None:
        """Write a key if it still has this revision. Returns the new revision, or None if it has another. An empty text
        deletes it.
        """

    def read(self, keys: str) -> AsyncGenerator[tuple[str, str] | None, None]:
        """The last state of each of these keys (the end of its name, and the text) and every later one; None at the
        current end.
        """


class Bucket:
    """See Keys: a KV bucket, read from the leader."""

    def __init__(self, name: str, line: Line, timeout_s: float) -> None:
        self.stream = f"KV_{name}"
        self.prefix = f"$KV.{name}."
        self.where = f"bucket {name}"
        self.line = line
        self.timeout_s = timeout_s

    async def get(self, key: str) -> Value:
        try:
            message = await self._ask(self.line.context.get_msg(self.stream, subject=self.prefix + key))
        except APIError as refused:
            if refused.err_code == NO_MESSAGE:
                return NOTHING
            raise self._unsettled(refused) from None
        stored_ms = int(message.time.timestamp() * 1000) if message.time is not None else 0
        return Value((message.data or b"").decode(), message.seq or 0, stored_ms)

    async def put(self, key: str, text: str, revision: int, ttl_s: int = 0) -> int | None:
        headers = {Header.EXPECTED_LAST_SUBJECT_SEQUENCE.value: str(revision)}
        if ttl_s:
            headers[Header.MSG_TTL.value] = str(ttl_s)
        if not text:
            headers[OPERATION] = "DEL"
        try:
            stored = await self._ask(
                self.line.context.publish(self.prefix + key, text.encode(), timeout=self.timeout_s, headers=headers)
            )
        except APIError as refused:
            if refused.err_code in WRONG_LAST_SEQUENCE:
                return None
            raise self._unsettled(refused) from None
        return stored.seq

    async def read(self, keys: str) -> AsyncGenerator[tuple[str, str] | None, None]:
        puller = Puller(self.line, self.stream, self.where, self.timeout_s)
        try:
            await puller.open(
                ConsumerConfig(deliver_policy=DeliverPolicy.LAST_PER_SUBJECT, filter_subject=f"{self.prefix}{keys}")
            )
            while True:
                messages = await puller.batch()
                for message in messages:
                    yield message.subject.rpartition(".")[2], message.data.decode()
                if not messages or not messages[-1].metadata.num_pending:
                    yield None
        finally:
            await puller.close()

    def _unsettled(self, refused: APIError) -> Unreachable:
        return Unreachable(f"{self.where}: {refused.description} ({refused.err_code})")

    async def _ask(self, question: Awaitable[T]) -> T:
        return await ask(self.line.client, self.where, question, self.timeout_s)


class JetStreamLeases:
    """See interface.Leases. A term is whole seconds, at least one."""

    def __init__(self, bucket: Keys, *, node: str, address: str, ttl_s: float) -> None:
        assert node
        self._bucket = bucket
        self._node = node
        self._address = address
        self._ttl_s = max(1, ceil(ttl_s))
        self._held: dict[int, Held] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._member = -1  # revision of this node's own key; -1: it has to be looked up
        self._announced = 0  # revision of the last announcement of this process
        self._incarnation = ""
        self._replaces = ""

    async def acquire(self, shard: int, above: int = 0) -> int:
        async with self._at(shard):
            return await self._acquire(shard, above)

    async def _acquire(self, shard: int, above: int) -> int:
        key = f"owner.{shard}"
        value = await self._bucket.get(key)
        if value.text:
            lease = _parse(shard, value.text)
            if lease.node != self._node:
                raise OwnershipHeld(f"shard {shard} is owned by node {lease.node} at {lease.address}")
        epoch, epoch_revision = await self._raise_epoch(shard, above)
        revision = await self._bucket.put(key, self._text(epoch), value.revision, self._ttl_s)
        if revision is None:
            raise OwnershipHeld(f"shard {shard} was just taken by another node")
        self._held[shard] = Held(epoch, revision, epoch_revision)
        return epoch

    async def _raise_epoch(self, shard: int, above: int) -> tuple[int, int]:
        """The new epoch, and its revision."""
        key = f"epoch.{shard}"
        for _ in range(EPOCH_TRIES):
            value = await self._bucket.get(key)
            epoch = max(int(value.text or 0), above) + 1
            revision = await self._bucket.put(key, str(epoch), value.revision)
            if revision is not None:
                return epoch, revision
        raise OwnershipHeld(f"shard {shard} is being taken by other nodes")

    async def renew(self, shard: int) -> None:
        async with self._at(shard):
            await self._renew(shard)

    async def _renew(self, shard: int) -> None:
        if shard not in self._held:
            raise Fenced(f"node {self._node} has no lease on shard {shard}")
        key, text = f"owner.{shard}", self._text(self._held[shard].epoch)
        renewed = await self._bucket.put(key, text, self._held[shard].revision, self._ttl_s)
        if renewed is None:
            # An earlier renewal may have succeeded although its answer was lost, or the lease has expired.
            value = await self._bucket.get(key)
            if value.text == text or (not value.text and await self._is_last(shard)):
                renewed = await self._bucket.put(key, text, value.revision, self._ttl_s)
        if renewed is None:
            del self._held[shard]
            raise Fenced(f"the lease of node {self._node} on shard {shard} has expired")
        self._held[shard] = self._held[shard]._replace(revision=renewed)

    async def _is_last(self, shard: int) -> bool:
        """Whether no higher epoch was issued since. Proven by writing it again, because a read may be stale."""
        key, held = f"epoch.{shard}", self._held[shard]
        revision = await self._bucket.put(key, str(held.epoch), held.epoch_revision)
        if revision is None:  # or this was done before, and its answer was lost
            value = await self._bucket.get(key)
            if value.text == str(held.epoch):
                revision = await self._bucket.put(key, value.text, value.revision)
        if revision is None:
            return False
        self._held[shard] = held._replace(epoch_revision=revision)
        return True

    async def release(self, shard: int) -> None:
        async with self._at(shard):
            held = self._held.pop(shard, None)
            if held is None or await self._bucket.put(f"owner.{shard}", "", held.revision, MARKER_S) is not None:
                return
            # a renewal may have succeeded although its answer was lost
            value = await self._bucket.get(f"owner.{shard}")
            if value.text == self._text(held.epoch):
                await self._bucket.put(f"owner.{shard}", "", value.revision, MARKER_S)

    def _at(self, shard: int) -> asyncio.Lock:
        """One operation at a time per shard: each depends on the revision that the previous one left."""
        return self._locks.setdefault(shard, asyncio.Lock())

    def incarnate(self, incarnation: str, replaces: str = "") -> None:
        self._incarnation, self._replaces = incarnation, replaces

    async def announce(self, note: str) -> None:
        key = f"node.{self._node}"
        text = json.dumps({"address": self._address, "note": note, "incarnation": self._incarnation})
        for _ in range(EPOCH_TRIES):
            if self._member < 0:
                value = await self._bucket.get(key)
                self._check_name(value)
                self._member = value.revision
            revision = await self._bucket.put(key, text, self._member, self._ttl_s)
            self._member = -1 if revision is None else revision
            if revision is not None:
                self._announced = revision
                return
        raise Unreachable(f"{self._bucket.where}: the key of node {self._node} is being written by another process")

    def _check_name(self, value: Value) -> None:
        """Raise NameTaken if another process has announced itself. A read may be stale, and shows what was there before
        this process announced itself last.
        """
        if not value.text or not self._incarnation or value.revision <= self._announced:
            return
        other = _parse_member(self._node, value.text)
        if other.incarnation not in ("", self._incarnation, self._replaces):
            raise NameTaken(self._node, other.address)

    async def withdraw(self) -> None:
        if self._member > 0:
            revision, self._member = self._member, -1
            await self._bucket.put(f"node.{self._node}", "", revision, MARKER_S)

    async def members(self) -> list[Member]:
        members: dict[str, Member] = {}
        async for told in self._bucket.read("node.*"):
            if told is None:
                break
            name, text = told
            members.pop(name, None)
            if text:
                members[name] = _parse_member(name, text)
        return sorted(members.values())

    async def agree(self, name: str, text: str, replaces: Collection[str] = ()) -> str:
        key = f"fact.{name}"
        for _ in range(EPOCH_TRIES):
            value = await self._bucket.get(key)
            if value.text == text:
                return text
            settled = text if not value.text or value.text in replaces else value.text
            # Also when nothing changes: a read may be stale.
            if await self._bucket.put(key, settled, value.revision) is not None:
                return settled
        raise Unreachable(f"{self._bucket.where}: {key} is being written by other nodes")

    async def expect(self, node: str, is_expected: bool) -> None:
        key, text = f"expected.{node}", node if is_expected else ""
        for _ in range(EPOCH_TRIES):
            value = await self._bucket.get(key)
            if value.text == text or await self._bucket.put(key, text, value.revision) is not None:
                return
        raise Unreachable(f"{self._bucket.where}: {key} is being written by other nodes")

    async def expected(self) -> list[str]:
        found: dict[str, str] = {}
        async for told in self._bucket.read("expected.*"):
            if told is None:
                break
            found[told[0]] = told[1]
        return sorted(name for name, text in found.items() if text)

    async def store_time_ms(self) -> int:
        key = f"time.{self._node}"
        for _ in range(EPOCH_TRIES):
            value = await self._bucket.get(key)
            written = await self._bucket.put(key, "now", value.revision, self._ttl_s)
            value = await self._bucket.get(key)
            if written is not None and value.revision >= written:
                return value.stored_ms
        return 0

    def held(self) -> list[int]:
        return list(self._held)

    async def holders(self) -> dict[int, Lease]:
        leases = {}
        async for told in self._bucket.read("owner.*"):
            if told is None:
                break
            lease = _parse(int(told[0]), told[1])
            if lease.node:
                leases[lease.shard] = lease
        return leases

    async def watch(self) -> AsyncGenerator[Lease, None]:
        known: dict[int, Lease] = {}
        async for told in self._bucket.read("owner.*"):
            if told is None:
                continue
            lease = _parse(int(told[0]), told[1])
            before = known.get(lease.shard)
            if before is None and not lease.node:
                continue  # it has no owner, and had none before
            if not lease.node and before is not None:
                lease = lease._replace(epoch=before.epoch)
            if lease != before:
                known[lease.shard] = lease
                yield lease

    def _text(self, epoch: int) -> str:
        return json.dumps({"node": self._node, "address": self._address, "epoch": epoch})


def _parse_member(name: str, text: str) -> Member:
    try:
        told = json.loads(text)
        return Member(name, str(told["address"]), str(told["note"]), str(told.get("incarnation", "")))
    except (ValueError, KeyError, TypeError):
        raise LogCorrupt(f"the status of node {name} cannot be read: {text!r}") from None


def _parse(shard: int, text: str) -> Lease:
    if not text:
        return Lease(shard, "", "", 0)
    try:
        told = json.loads(text)
        return Lease(shard, str(told["node"]), str(told["address"]), int(told["epoch"]))
    except (ValueError, KeyError, TypeError):
        raise LogCorrupt(f"the lease of shard {shard} cannot be read: {text!r}") from None
