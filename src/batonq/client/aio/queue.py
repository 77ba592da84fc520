"""A queue of the client: send, receive, and batch operations on received messages."""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Unpack
from urllib.parse import quote

from msgspec import UNSET, Raw
from msgspec.structs import replace

from batonq.client import codec, telemetry
from batonq.client.aio.batching import Batcher
from batonq.client.aio.jobs import Job, Jobs
from batonq.client.aio.message import Message, Messages
from batonq.client.aio.pauses import sleep, to_thread
from batonq.client.aio.reader import HistoryPage, Reader, Readers, RetainedMessage, start_text
from batonq.client.aio.schedules import QueueSchedules
from batonq.client.batches import REQUEST_COUNT_MAX, split
from batonq.client.models import (
    AttributeValue,
    Explanation,
    Nack,
    Outgoing,
    Peeked,
    Priority,
    QueueCounters,
    ReaderInfo,
    Sent,
    Stats,
)
from batonq.client.queue_settings import QueueInfo, QueueSettings
from batonq.client.retry import helps
from batonq.client.specs import RedriveSettings, ReplaySettings, redrive_to_wire, replay_to_wire, to_wire
from batonq.client.transport import NotSent
from batonq.errors import BatonError, JobConflict, LeaseLost, MessageGone, MessageNotFound, QueueDoesNotExist

if TYPE_CHECKING:
    from batonq.client.aio.baton import Baton


class Queue:
    """One queue of a Baton. `baton.queue(name)` creates it without a request."""

    def __init__(self, baton: Baton, name: str, path: str = "") -> None:
        self.name = name
        self._baton = baton
        self._calls = baton._calls
        self._path = path or f"/v1/queues/{quote(name, safe='')}"  # a topic has another path

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    def _operation(
        self, name: str, count: int = 1, messages: Sequence[Message] = ()
    ) -> telemetry.Operation | telemetry.Off:
        return telemetry.operation(name, self.name, self._baton.url, count, messages)

    # --- sending --------------------------------------------------------------------------------

    async def send(
        self,
        body: Any,
        *,
        dedup_key: str | None = None,
        group: str | None = None,
        delay: float | None = None,
        deliver_at: datetime | None = None,
        ttl: float | None = None,
        priority: Priority | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        max_receives: int | None = None,
        batch: bool = True,
    ) -> Sent:
        """Send a message: any JSON value, or bytes. When this returns, the message is stored durably.

        It becomes visible after `delay` seconds or at `deliver_at`, which needs a time zone; at most in a year. Sends
        of many tasks at once share one request, unless `batch` is False. A retry does not create a second message.
        """
        outgoing = Outgoing(body, dedup_key, group, delay, ttl, priority, attributes, max_receives)
        outgoing.deliver_at = deliver_at
        return await self._send_one(outgoing, batch)

    async def _send_one(self, outgoing: Outgoing, batch: bool) -> Sent:
        with self._operation("send") as operation:
            raw = await self._encoded(_traced(outgoing, operation))
            if batch:
                result: Sent | BatonError = await self._sends.put(raw, len(bytes(raw)), outgoing.group)
            else:
                (result,) = await self._send_apart([raw])
            if isinstance(result, BatonError):
                raise result
            operation.sent([result])
            return result

    async def send_many(
        self, messages: Iterable[Outgoing | Any], *, producer: tuple[str, int] | None = None
    ) -> list[Sent | BatonError]:
        """Send any number of messages, bodies or `Outgoing`s, in order. Returns one result per message.

        They are sent in requests of up to 1,000. If the first request fails as a whole, its error is raised. If a later
        one fails, its error is the result of its messages and of all after them. `producer`, an id and the number of
        the first message, is for programs that number their messages themselves: each number is accepted once.
        """
        raws: list[Raw] = []
        places: list[int] = []
        results: list[Sent | BatonError] = []
        given = [one if isinstance(one, Outgoing) else Outgoing(one) for one in messages]
        with self._operation("send", len(given)) as operation:
            for at, outgoing in enumerate(given):
                results.append(_NOT_TRIED)
                try:
                    raws.append(await self._encoded(_traced(outgoing, operation)))
                    places.append(at)
                except BatonError as problem:
                    results[at] = problem
            for at, result in zip(places, await self._send_apart(raws, producer, places), strict=True):
                results[at] = result
            operation.sent(results)
        return results

    async def _encoded(self, outgoing: Outgoing) -> Raw:
        """The message as it is sent. A large body goes to the payload store first, if the client has one."""
        raw = codec.encode_message(outgoing)
        payloads = self._baton._payloads
        if payloads is None or len(bytes(raw)) <= payloads.threshold:
            return raw
        return codec.encode_message(await to_thread(payloads.offload, outgoing))

    async def _send_apart(
        self, raws: list[Raw], producer: tuple[str, int] | None = None, places: Sequence[int] = ()
    ) -> list[Sent | BatonError]:
        """Send the messages in as many requests as needed, one after another."""
        results: list[Sent | BatonError] = []
        for part in split([len(bytes(raw)) for raw in raws]):
            try:
                if producer is None:
                    results += await self._post(raws[part])
                else:
                    sent, _ = await self._post_once(raws[part], producer[0], producer[1] + places[part.start])
                    results += sent
            except BatonError as problem:
                if not results:
                    raise
                results += [problem] * (part.stop - part.start)
                results += [_NOT_TRIED] * (len(raws) - part.stop)
                break
        return results

    async def _post(self, raws: list[Raw]) -> list[Sent | BatonError]:
        """Send one request and repeat it until it is answered; then retry the messages that were refused temporarily.

        A repeated request has the same numbers, so no message is stored twice. A refused message gets a new number.
        """
        producers = self._baton._producers
        retries = self._calls.retries
        started = time.monotonic()
        results: list[Sent | BatonError] = [_NOT_TRIED] * len(raws)
        places: Sequence[int] = range(len(raws))
        attempt = 0
        producer = producers.borrow()
        try:
            while True:
                number = producers.take(len(places))
                answers, doubtful = await self._post_once([raws[at] for at in places], producer, number)
                again: list[int] = []
                pause: float | None = None
                for at, answer in zip(places, answers, strict=True):
                    results[at] = answer
                    if isinstance(answer, BatonError):
                        if helps(answer):
                            again.append(at)
                            pause = retries.pause(attempt, answer, time.monotonic() - started)
                    elif doubtful and answer.duplicate and not answer.id and codec.has_key(raws[at]):
                        # It is unknown whether it was stored or was a duplicate by its key, because the response was
                        # lost. Sending it again with its key returns the answer.
                        again.append(at)
                        pause = pause or 0.0
                if pause is None:
                    return results
                await sleep(pause)
                places = again
                attempt += 1
        finally:
            producers.give_back(producer)

    async def _post_once(self, raws: list[Raw], producer: str, number: int) -> tuple[list[Sent | BatonError], bool]:
        value = {"messages": raws, "producer": {"id": producer, "sequence": number}}
        reply = await self._calls.request("POST", f"{self._path}/messages:batch", value)
        results = codec.decode(codec.SendResults, reply.answer).results
        sent: list[Sent | BatonError] = [
            Sent(result.message_id or "", result.sequence or 0, result.duplicate)
            if result.error is None
            else codec.as_error(result.error)
            for result in results
        ]
        return sent, reply.doubtful

    @cached_property
    def _sends(self) -> Batcher[Raw, Sent]:
        return self._baton._batcher(self._post)

    # --- receiving ------------------------------------------------------------------------------

    async def receive(
        self,
        max_messages: int = 10,
        wait: float = 20.0,
        *,
        visibility: float | None = None,
        consumer: str = "",
        attempt_id: str | None = None,
    ) -> list[Message]:
        """Receive up to `max_messages` (at most 1,000), waiting up to `wait` seconds (at most 20) for the first.

        The messages are leased for `visibility` seconds, or for the queue's default. The server shows `consumer` as
        their holder. On a FIFO queue, a repeated receive with the same `attempt_id` returns the same messages again.
        """
        value: dict[str, Any] = {"maxMessages": max_messages, "waitSeconds": wait}
        if visibility is not None:
            value["visibilityTimeoutSeconds"] = visibility
        if consumer:
            value["consumer"] = consumer
        if attempt_id is not None:
            value["attemptId"] = attempt_id
        with self._operation("receive") as operation:
            reply = await self._calls.request("POST", f"{self._path}/messages:receive", value, wait=wait)
            received = codec.decode(Messages, reply.answer).messages
            operation.received(received)
        for one in received:
            one._home = self
        return await self._baton._with_bodies(received)

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def messages(
        self, *, prefetch: int = 1, visibility: float | None = None, consumer: str = ""
    ) -> AsyncGenerator[Message, None]:
        """Iterate over messages as they arrive, until the Baton is closed: `async for message in queue`.

        Ack each message yourself. With `prefetch`, several are received at a time: this is faster, but the leases of
        later messages run while the first is processed. Messages that the loop did not reach are returned to the queue
        when it ends.
        """
        held: list[Message] = []
        try:
            while not self._over():
                try:
                    held = await self.receive(prefetch, visibility=visibility, consumer=consumer)
                except BatonError:
                    if self._over():
                        return
                    raise
                held.reverse()
                while held:
                    yield held.pop()
        finally:
            if held and not self._over():
                await self.extend_many([(one.receipt, 0.0) for one in held])

    def _over(self) -> bool:
        return self._calls.closed

    # --- with receipts --------------------------------------------------------------------------

    async def ack_many(self, receipts: Sequence[str]) -> list[BatonError | None]:
        """Ack any number of messages by their receipts. Returns None or an error per message."""
        results: list[BatonError | None] = []
        with self._operation("ack", len(receipts)):
            for start in range(0, len(receipts), REQUEST_COUNT_MAX):
                results += await self._post_acks(list(receipts[start : start + REQUEST_COUNT_MAX]))
        return results

    async def nack_many(self, nacks: Sequence[Nack]) -> list[BatonError | None]:
        """Nack any number of messages. Returns None or an error per message."""
        results: list[BatonError | None] = []
        with self._operation("nack", len(nacks)):
            for start in range(0, len(nacks), REQUEST_COUNT_MAX):
                results += await self._post_nacks(list(nacks[start : start + REQUEST_COUNT_MAX]))
        return results

    async def extend_many(self, extensions: Sequence[tuple[str, float]]) -> list[float | BatonError]:
        """Extend the leases of messages: pairs of receipt and seconds from now. Returns the new deadline or an error
        per message.
        """
        results: list[float | BatonError] = []
        with self._operation("extend", len(extensions)):
            for start in range(0, len(extensions), REQUEST_COUNT_MAX):
                part = await self._post_extensions(list(extensions[start : start + REQUEST_COUNT_MAX]))
                results += [one if isinstance(one, BatonError) else one / 1000 for one in part]
        return results

    async def _post_acks(self, receipts: list[str]) -> list[BatonError | None]:
        reply = await self._calls.request("POST", f"{self._path}/messages:ack", {"receiptHandles": receipts})
        found = codec.decode(codec.LeaseResults, reply.answer).results
        return [None if one.error is None else _unless_done(codec.as_error(one.error), reply.doubtful) for one in found]

    async def _post_nacks(self, nacks: list[Nack]) -> list[BatonError | None]:
        reply = await self._calls.request("POST", f"{self._path}/messages:nack", {"messages": nacks})
        found = codec.decode(codec.LeaseResults, reply.answer).results
        return [
            None if one.error is None else _unless_given_back(codec.as_error(one.error), reply.doubtful)
            for one in found
        ]

    async def _post_extensions(self, extensions: list[tuple[str, float]]) -> list[int | BatonError]:
        entries = [{"receiptHandle": receipt, "visibilityTimeoutSeconds": given} for receipt, given in extensions]
        reply = await self._calls.request("POST", f"{self._path}/messages:change-visibility", {"messages": entries})
        found = codec.decode(codec.LeaseResults, reply.answer).results
        return [one.deadline_ms or 0 if one.error is None else codec.as_error(one.error) for one in found]

    @cached_property
    def _acks(self) -> Batcher[str, None]:
        return self._baton._batcher(self._post_acks)

    @cached_property
    def _nacks(self) -> Batcher[Nack, None]:
        return self._baton._batcher(self._post_nacks)

    @cached_property
    def _extensions(self) -> Batcher[tuple[str, float], int]:
        return self._baton._batcher(self._post_extensions)

    # --- the queue itself -----------------------------------------------------------------------

    async def info(self) -> QueueInfo:
        """The queue's settings."""
        reply = await self._calls.request("GET", self._path)
        return codec.decode(QueueInfo, reply.answer)

    async def update(self, **settings: Unpack[QueueSettings]) -> QueueInfo:
        """Change some of the queue's settings; the others do not change."""
        reply = await self._calls.request("PATCH", self._path, to_wire(settings))
        return codec.decode(QueueInfo, reply.answer)

    async def pause(self, what: Literal["delivery", "sends", "both"] = "delivery") -> QueueInfo:
        """Stop deliveries, or refuse new messages, until `resume`. Long polls wait meanwhile."""
        return await self.update(paused=what)

    async def resume(self) -> QueueInfo:
        """Deliver and accept all messages again. A cap on deliveries per second stays: see `pace`."""
        changes = {"paused": None, "onlyGroup": None, "minimumPriority": None}
        reply = await self._calls.request("PATCH", self._path, changes)
        return codec.decode(QueueInfo, reply.answer)

    async def pace(self, deliveries_per_second: int) -> QueueInfo:
        """Deliver at most so many messages per second, evenly spaced; 0 removes the cap."""
        return await self.update(deliveries_per_second=deliveries_per_second)

    async def drain(self) -> Stats:
        """Refuse new messages while deliveries go on. Returns what is left; ask `stats` for the progress."""
        await self.pause("sends")
        return await self.stats()

    async def explain(self) -> Explanation:
        """Why the queue's messages wait, with figures and what to do."""
        reply = await self._calls.request("GET", f"{self._path}:explain")
        return codec.decode(Explanation, reply.answer)

    async def delete(self) -> None:
        """Delete the queue and all its messages."""
        await self._calls.request("DELETE", self._path, done_before=(QueueDoesNotExist,))

    async def purge(self) -> None:
        """Delete all current messages of the queue."""
        await self._calls.request("POST", f"{self._path}:purge")

    async def stats(self) -> Stats:
        """The queue's exact statistics."""
        reply = await self._calls.request("GET", f"{self._path}/stats")
        return codec.decode(Stats, reply.answer)

    async def counters(self) -> QueueCounters:
        """The queue's exact counters, with the log position of each shard that they describe."""
        reply = await self._calls.request("GET", f"{self._path}/counters")
        return codec.decode(QueueCounters, reply.answer)

    async def peek(self, *, after: int = 0, limit: int = 10, state: str | None = None) -> list[Peeked]:
        """Messages in any state, in order of arrival, without receiving them. `after` is a sequence number."""
        query = f"after={after}&limit={limit}" + (f"&state={quote(state)}" if state else "")
        reply = await self._calls.request("GET", f"{self._path}/messages?{query}")
        found = codec.decode(codec.PeekedPage, reply.answer).messages
        if self._baton._payloads is not None:
            await to_thread(self._baton._payloads.show, found)
        return found

    def reader(self, group: str, *, member: str | None = None) -> Reader:
        """A member of a reader group of this queue, which must retain its history. No request is made."""
        return Reader(self, group, member)

    async def readers(self) -> list[ReaderInfo]:
        """The reader groups of this queue, by name, with how far each is behind."""
        reply = await self._calls.request("GET", f"{self._path}/readers")
        return codec.decode(Readers, reply.answer).readers

    async def history(
        self, start: str | datetime = "start", *, page_size: int = 500
    ) -> AsyncGenerator[RetainedMessage, None]:
        """The retained messages of this queue from "start", a time or a position on, without a reader group.

        It ends at the newest message, and changes nothing. Raises PayloadDamaged at a message whose body is lost in the
        payload store; continue after its position.
        """
        query = f"from={quote(start_text(start))}&"
        while query:
            reply = await self._calls.request("GET", f"{self._path}/history?{query}limit={page_size}")
            page = codec.decode(HistoryPage, reply.answer)
            for message in page.messages:
                if self._baton._payloads is not None:
                    await to_thread(self._baton._payloads.fill, message)
                yield message
            query = f"cursor={quote(page.next_cursor)}&" if page.next_cursor else ""

    # --- single messages ------------------------------------------------------------------------

    async def delete_message(self, message_id: str) -> None:
        """Delete a message by its id, for example one that is delayed and no longer wanted. Raises MessageHeld if a
        consumer holds it, and MessageNotFound if it has been processed.
        """
        path = f"{self._path}/messages/{quote(message_id, safe='')}"
        await self._calls.request("DELETE", path, done_before=(MessageNotFound,))

    async def edit_message(
        self, message_id: str, body: Any = UNSET, *, attributes: Mapping[str, AttributeValue] | None = None
    ) -> None:
        """Replace the body or all attributes of a message by its id. Raises MessageHeld if a consumer holds it, and
        MessageNotFound if it has been processed.
        """
        changes: dict[str, Any] = {} if body is UNSET else {"body": body}
        if isinstance(body, bytes):
            changes = {"bodyBase64": b64encode(body).decode()}
        if attributes is not None:
            changes["attributes"] = attributes
        await self._calls.request("PATCH", f"{self._path}/messages/{quote(message_id, safe='')}", changes)

    @cached_property
    def schedules(self) -> QueueSchedules:
        """The queue's schedules, which send messages at recurring times."""
        return QueueSchedules(self._calls, self.name)

    async def redrive(
        self, to: str | None = None, *, dry_run: bool = False, **settings: Unpack[RedriveSettings]
    ) -> Job:
        """Move this queue's dead letters to `to`, or each to its source queue. With `dry_run`, only count and show
        them.
        """
        spec = redrive_to_wire(to, dry_run, settings)
        reply = await self._calls.request("POST", f"{self._path}:redrive", spec, done_before=(JobConflict,))
        if not reply.answer.body:  # the first attempt started it, and its response was lost
            return (await self.jobs())[0]
        job = codec.decode(Job, reply.answer)
        job._calls = self._calls
        return job

    async def replay(self, to: str | None = None, *, dry_run: bool = False, **settings: Unpack[ReplaySettings]) -> Job:
        """Send messages of this queue's retained history again, to `to` or to this queue. With `dry_run`, only count
        and show them.
        """
        spec = replay_to_wire(to, dry_run, settings)
        reply = await self._calls.request("POST", f"{self._path}:replay", spec, done_before=(JobConflict,))
        if not reply.answer.body:  # the first attempt started it, and its response was lost
            return (await self.jobs())[0]
        job = codec.decode(Job, reply.answer)
        job._calls = self._calls
        return job

    async def jobs(self) -> list[Job]:
        """The jobs of this queue, newest first."""
        reply = await self._calls.request("GET", f"{self._path}/jobs")
        found = codec.decode(Jobs, reply.answer).jobs
        for job in found:
            job._calls = self._calls
        return found


_NOT_TRIED = NotSent("An earlier request failed, so this message was not sent.")


def _traced(outgoing: Outgoing, operation: telemetry.Operation | telemetry.Off) -> Outgoing:
    if outgoing.traceparent is not None:
        return outgoing
    context = operation.context()
    if context is None:
        return outgoing
    return replace(outgoing, traceparent=context.traceparent, tracestate=context.tracestate or None)


def _unless_done(problem: BatonError, doubtful: bool) -> BatonError | None:
    """A repeated ack of a message that no longer exists: the first attempt deleted it, and its response was lost."""
    return None if doubtful and isinstance(problem, MessageGone) else problem


def _unless_given_back(problem: BatonError, doubtful: bool) -> BatonError | None:
    """A repeated nack of an ended lease: the first attempt ended it, and its response was lost."""
    return None if doubtful and isinstance(problem, (LeaseLost, MessageGone)) else problem
