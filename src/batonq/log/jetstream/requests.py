"""Requests to NATS: every kind of missing answer becomes Unreachable. Streams are read by pulling."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import AckPolicy, ConsumerConfig

from batonq.log.backend import Leaderless, Unreachable
from batonq.log.cancellation import end, heard
from batonq.log.jetstream.client import LongClient
from batonq.log.jetstream.connections import Line

T = TypeVar("T")
WRONG_LAST_SEQUENCE = (10071, 10164)
NO_MESSAGE = 10037
NO_STREAM = 10059
NO_ROOM = (10002, 10023, 10047, 10077)
PULL_FRAMES = 256
PULL_BYTES = 16 << 20
PULL_S = 1.0  # an empty pull is answered after this time, so that silence means trouble
INACTIVE_S = 30.0
AGAIN_S = 1.0  # an unanswered request is repeated after this time, while the first one is still awaited
HEADERS_BYTES = 64 << 10


async def ask(client: LongClient, where: str, question: Awaitable[T], timeout_s: float) -> T:
    """The answer, or an APIError as an answer. Raises Unreachable for everything else."""
    if not client.is_connected:
        # Nothing may stay in the client's buffer, which would send it, with all retries after it, at some later time.
        if asyncio.iscoroutine(question):
            question.close()
        raise Unreachable(f"{where}: not connected")
    try:
        async with client.expect(timeout_s):
            answer = await question
    except nats.js.errors.APIError:
        client.answered()
        raise
    except nats.js.errors.NoStreamResponseError as problem:
        await client.unanswered()
        raise Leaderless(f"{where}: {problem}") from None
    except (nats.errors.Error, OSError, TimeoutError, json.JSONDecodeError) as problem:
        await client.unanswered()
        raise Unreachable(f"{where}: {str(problem) or type(problem).__name__}") from None
    client.answered()
    return answer


async def ask_repeatedly(client: LongClient, where: str, question: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    """The same for a read-only request that only the stream's leader answers.

    While there is no leader the request is lost, and a newly elected leader has not received earlier requests.
    """
    asked: list[asyncio.Task[T]] = []
    clock = asyncio.get_running_loop().time
    ends_s = clock() + timeout_s
    try:
        while True:
            left_s = ends_s - clock()
            asked.append(asyncio.create_task(ask(client, where, question(), left_s)))
            asked[-1].add_done_callback(heard)  # if several fail at once, one error is raised
            pause_s = AGAIN_S if left_s > AGAIN_S else None
            answered, _ = await asyncio.wait(asked, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
            if answered:
                return answered.pop().result()
    finally:
        await end(*asked)


class Puller:
    """Reads a stream in order through its own consumer, which the server removes when it is no longer pulled.

    `way` is the connection to the server that has the consumer.
    """

    def __init__(
        self, home: Line, stream: str, where: str, timeout_s: float, way: Callable[[str], Line] | None = None
    ) -> None:
        self.line = home
        self._way = way
        self._stream = stream
        self._where = where
        self._timeout_s = timeout_s
        self._consumer = ""
        self._inbox: Subscription | None = None
        self._wanted = 0  # messages of the current pull that have not arrived
        # otherwise the longest message would never arrive
        self._pull_bytes = max(PULL_BYTES, home.client.max_payload + HEADERS_BYTES)

    async def open(self, config: ConsumerConfig) -> None:
        config.ack_policy = AckPolicy.NONE
        config.mem_storage = True
        config.num_replicas = 1
        config.inactive_threshold = INACTIVE_S
        try:
            info = await self._ask(self.line.context.add_consumer(self._stream, config))
        except nats.js.errors.APIError as refused:
            raise Unreachable(f"{self._where}: {refused.description}") from None
        self._consumer = info.name
        if self._way is not None and info.cluster is not None:
            self.line = self._way(info.cluster.leader or "")
        client = self.line.client
        self._inbox = await client.subscribe(client.new_inbox(), pending_bytes_limit=4 * self._pull_bytes)

    async def batch(self) -> list[Msg]:
        """The next messages, at least one, or none after a while without any."""
        assert self._inbox is not None
        if not self._wanted:
            await self._pull()
        messages: list[Msg] = []
        while not messages or self._inbox.pending_msgs:
            try:
                async with self.line.client.expect(PULL_S + self._timeout_s):
                    message = await self._inbox.next_msg(None)
            except (nats.errors.Error, TimeoutError) as problem:
                raise Unreachable(f"{self._where}: {str(problem) or 'no answer'}") from None
            if message.headers and "Status" in message.headers and not message.reply:
                self._wanted = 0
                status = message.headers["Status"]
                if status == "409" and "Exceeds" not in message.headers.get("Description", ""):
                    raise Unreachable(f"{self._where}: {message.headers.get('Description')}")
                if messages or status in ("404", "408"):
                    break
                await self._pull()
                continue
            self._wanted = max(self._wanted - 1, 0)
            messages.append(message)
            if not self._wanted:
                break
        return messages

    async def close(self) -> None:
        """Never waits for an answer."""
        client = self.line.client
        if self._inbox is not None and not client.is_closed:
            try:
                await self._inbox.unsubscribe()
                if self._consumer and client.is_connected:
                    await client.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}")
            except (nats.errors.Error, OSError):
                pass

    async def _pull(self) -> None:
        assert self._inbox is not None
        request = {"batch": PULL_FRAMES, "max_bytes": self._pull_bytes, "expires": int(PULL_S * 1e9)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        publish = self.line.client.publish(subject, json.dumps(request).encode(), reply=self._inbox.subject)
        await self._ask(publish)
        self._wanted = PULL_FRAMES

    async def _ask(self, question: Awaitable[T]) -> T:
        return await ask(self.line.client, self._where, question, self._timeout_s)
