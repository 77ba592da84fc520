"""The client object: one per program, shared by all of its tasks."""

from __future__ import annotations

import ssl as tls
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack
from urllib.parse import quote, urlencode
from weakref import WeakSet, WeakValueDictionary

from batonq.client import codec, telemetry
from batonq.client.aio.batching import Batcher
from batonq.client.aio.calls import Calls
from batonq.client.aio.http import HttpTransport
from batonq.client.aio.jobs import Job
from batonq.client.aio.message import Message, Messages
from batonq.client.aio.pauses import to_thread
from batonq.client.aio.queue import Queue
from batonq.client.aio.schedules import AllSchedules
from batonq.client.aio.topic import Topic
from batonq.client.batches import REQUEST_COUNT_MAX, BatchLimits
from batonq.client.environment import DEFAULT_URL, Access, from_environment, trusted
from batonq.client.models import Nack
from batonq.client.producers import Producers
from batonq.client.queue_settings import QueueInfo, QueueSettings
from batonq.client.retry import Retries, as_retries
from batonq.client.specs import to_wire
from batonq.client.topic_models import TopicInfo, TopicPage
from batonq.client.transport import AsyncTransport
from batonq.errors import InvalidInput, QueueExists, TopicExists

if TYPE_CHECKING:
    from batonq.client.payloads import Payloads
    from batonq.client.signing import Signer


class Baton:
    """A client of a Baton server: `async with Baton("http://127.0.0.1:9324") as baton: ...`.

    Without a URL, the URL and credentials are those of the environment, as for `connect`.
    `timeout` is the maximum time for one response, in seconds; `retries` sets how often and how long requests are
    retried. `connections` limits the connections for normal requests, `polls` those for long polls. `batching` limits
    automatic batching. With `access_key` and `secret_key`, every request is signed. `token` is the server's admin
    token, for tools that operate the server. With it, or on a development server, `account` chooses the account. `ssl`
    replaces the system's certificates. `consumer` is the name that the server shows for this client in the list of
    workers. With `payload_store`, the URL of a directory or bucket, bodies above `payload_threshold` bytes are stored
    there, and the server gets a pointer; see the guide to large payloads.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        access_key: str | None = None,
        secret_key: str | None = None,
        token: str | None = None,
        account: str | None = None,
        timeout: float = 30.0,
        retries: Retries | int | None = None,
        connections: int = 8,
        polls: int = 256,
        batching: BatchLimits | None = None,
        ssl: tls.SSLContext | None = None,
        consumer: str = "",
        transport: AsyncTransport | None = None,
        payload_store: str = "",
        payload_threshold: int | None = None,
    ) -> None:
        if url is not None:
            access = Access(url, access_key, secret_key, token, account).checked()
        else:
            access = from_environment(None, access_key, secret_key, token, account).checked()
            ssl = ssl or trusted()
        if timeout <= 0 or connections < 1 or polls < 1:
            raise InvalidInput("timeout, connections and polls must be greater than 0.")
        self._limits = batching or BatchLimits()
        if self._limits.lanes < 1 or not 1 <= self._limits.count <= REQUEST_COUNT_MAX:
            raise InvalidInput(f"batching needs at least 1 lane, and 1 to {REQUEST_COUNT_MAX:,} messages per request.")
        signer: Signer | None = None
        if access.access_key is not None and access.secret_key is not None:
            from batonq.client import signing  # imported late: only clients that sign need it

            signer = signing.Signer(access.access_key, access.secret_key)
        self._payloads: Payloads | None = None
        if payload_store:
            from batonq.client import payloads  # imported late: few clients have a payload store

            self._payloads = payloads.Payloads(payload_store, payload_threshold)
        self.url = access.url
        self._transport = transport or HttpTransport(
            self.url, connections=connections, polls=polls, ssl=ssl, consumer=consumer
        )
        self._calls = Calls(self._transport, signer, as_retries(retries), timeout, access.token, access.account)
        self._producers = Producers()
        self._queues: WeakValueDictionary[str, Queue] = WeakValueDictionary()
        self._topics: WeakValueDictionary[str, Topic] = WeakValueDictionary()
        self._batchers: WeakSet[Batcher[Any, Any]] = WeakSet()
        self._lock = threading.Lock()
        self._closing = False

    # --- queues ---------------------------------------------------------------------------------

    def queue(self, name: str) -> Queue:
        """The queue with this name. No request is made, and the queue need not exist."""
        queue = self._queues.get(name)
        if queue is None:
            with self._lock:  # one per queue for all threads, because it keeps the order of groups
                queue = self._queues.setdefault(name, Queue(self, name))
        return queue

    async def create_queue(
        self, name: str, *, fifo: bool = False, exist_ok: bool = True, **settings: Unpack[QueueSettings]
    ) -> Queue:
        """Create a queue. If it already exists with the same settings, that is not an error, unless `exist_ok` is
        False.

        Raises QueueExists if it exists with different settings; change them with `queue.update`.
        """
        spec = {"name": name, **({"mode": "FIFO"} if fifo else {}), **to_wire(settings)}
        reply = await self._calls.request("POST", "/v1/queues", spec)
        if reply.answer.status == 200 and not exist_ok and not reply.doubtful:
            raise QueueExists(f"Queue {name} already exists.")
        return self.queue(name)

    async def queues(self, prefix: str = "") -> AsyncIterator[QueueInfo]:
        """All queues whose names start with `prefix`, sorted by name."""
        cursor: str | None = ""
        while cursor is not None:
            query = {name: value for name, value in (("prefix", prefix), ("cursor", cursor)) if value}
            reply = await self._calls.request("GET", "/v1/queues" + (f"?{urlencode(query)}" if query else ""))
            page = codec.decode(codec.QueuePage, reply.answer)
            for found in page.queues:
                yield found
            cursor = page.next_cursor or None

    # --- topics ---------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """The topic with this name. No request is made, and the topic need not exist."""
        topic = self._topics.get(name)
        if topic is None:
            with self._lock:  # one per topic for all threads, because it keeps the order of groups
                topic = self._topics.setdefault(name, Topic(self, name))
        return topic

    async def create_topic(
        self,
        name: str,
        *,
        fifo: bool = False,
        exist_ok: bool = True,
        retention: int | None = None,
        content_based_deduplication: bool = False,
        display_name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Topic:
        """Create a topic. If it already exists with the same settings, that is not an error, unless `exist_ok` is
        False. `retention` is how many seconds a copy waits for a queue that is full or paused.
        """
        given = {
            "mode": "FIFO" if fifo else None,
            "retentionSeconds": retention,
            "contentBasedDeduplication": content_based_deduplication or None,
            "displayName": display_name,
            "tags": tags,
        }
        spec = {"name": name, **{field: value for field, value in given.items() if value is not None}}
        reply = await self._calls.request("POST", "/v1/topics", spec)
        if reply.answer.status == 200 and not exist_ok and not reply.doubtful:
            raise TopicExists(f"Topic {name} already exists.")
        return self.topic(name)

    async def topics(self, prefix: str = "") -> AsyncIterator[TopicInfo]:
        """All topics whose names start with `prefix`, sorted by name."""
        cursor: str | None = ""
        while cursor is not None:
            query = {name: value for name, value in (("prefix", prefix), ("cursor", cursor)) if value}
            reply = await self._calls.request("GET", "/v1/topics" + (f"?{urlencode(query)}" if query else ""))
            page = codec.decode(TopicPage, reply.answer)
            for found in page.topics:
                yield found
            cursor = page.next_cursor or None

    # --- messages of several queues -------------------------------------------------------------

    async def receive(
        self,
        queues: Sequence[str],
        max_messages: int = 10,
        wait: float = 20.0,
        *,
        visibility: float | None = None,
        consumer: str = "",
    ) -> list[Message]:
        """Receive from several queues with one long poll, with a fair share for each. Accepts names and patterns like
        `hooks-*`.
        """
        value: dict[str, Any] = {"queues": list(queues), "maxMessages": max_messages, "waitSeconds": wait}
        if visibility is not None:
            value["visibilityTimeoutSeconds"] = visibility
        if consumer:
            value["consumer"] = consumer
        with telemetry.operation("receive", ",".join(queues), self.url) as operation:
            reply = await self._calls.request("POST", "/v1/messages:receive", value, wait=wait)
            received = codec.decode(Messages, reply.answer).messages
            operation.received(received)
        for one in received:
            one._home = self.queue(one.queue)
        return await self._with_bodies(received)

    async def _with_bodies(self, received: list[Message]) -> list[Message]:
        """The messages with their bodies from the payload store. One whose body is missing or damaged is nacked. If the
        store cannot be reached, its messages are given back, and if there are no others, its error is raised. In a FIFO
        queue, the messages of a group behind one without a body are given back.
        """
        if self._payloads is None or not received:
            return received
        failed, problem = await to_thread(self._payloads.resolve, received)
        if not failed:
            return received
        lost = {one.receipt for one in failed}
        for queue in {one.queue: one._home for one in received if one.receipt in lost}.values():
            own = [one for one in received if one._home is queue]
            is_fifo = any(one.group for one in own) and (await queue.info()).fifo
            why = "its body cannot be read from the payload store"
            nacks: list[Nack] = []
            held_up: set[str | None] = set()
            for one in own:
                if one.receipt in lost:
                    nacks.append(Nack(one.receipt, reason=why, untried=problem is not None))
                    held_up.add(one.group)
                elif is_fifo and one.group in held_up:
                    nacks.append(Nack(one.receipt, untried=True))
                    lost.add(one.receipt)
            await queue.nack_many(nacks)
        kept = [one for one in received if one.receipt not in lost]
        if problem is not None and not kept:
            raise problem
        return kept

    @cached_property
    def schedules(self) -> AllSchedules:
        """The schedules of all queues. A queue's own are in `queue.schedules`."""
        return AllSchedules(self._calls)

    async def job(self, job_id: str) -> Job:
        """The redrive job with this id."""
        reply = await self._calls.request("GET", f"/v1/jobs/{quote(job_id, safe='')}")
        job = codec.decode(Job, reply.answer)
        job._calls = self._calls
        return job

    # --- life -----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the client is closed and refuses new requests."""
        return self._calls.closed

    async def flush(self) -> None:
        """Wait until all requests made so far are answered."""
        for batcher in list(self._batchers):
            await batcher.flush()

    async def close(self) -> None:
        """Wait for sends and acks in progress, then close all connections."""
        if self._calls.closed:
            return
        self._closing = True
        for batcher in list(self._batchers):
            batcher.refusing = True
        try:
            await self.flush()
        finally:
            self._calls.closed = True
            for batcher in list(self._batchers):
                batcher.abandon()
            await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _batcher(self, post: Callable[[list[Any]], Awaitable[list[Any]]]) -> Batcher[Any, Any]:
        batcher: Batcher[Any, Any] = Batcher(post, self._limits)
        batcher.refusing = self._closing
        with self._lock:
            self._batchers.add(batcher)
        return batcher


def connect(url: str | None = None, **options: Any) -> Baton:
    """Create a client from the environment: BATON_URL, BATON_ACCESS_KEY_ID with BATON_SECRET_ACCESS_KEY, BATON_TOKEN,
    BATON_ACCOUNT and BATON_CA_FILE. Arguments have precedence.
    """
    given = [options.pop(name, None) for name in ("access_key", "secret_key", "token", "account")]
    access = from_environment(url, *given)
    return Baton(
        access.url,
        access_key=access.access_key,
        secret_key=access.secret_key,
        token=access.token,
        account=access.account,
        ssl=options.pop("ssl", None) or trusted(),
        **options,
    )


__all__ = ["DEFAULT_URL", "Baton", "Job", "Message", "Queue", "Topic", "connect"]
