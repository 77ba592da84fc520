"""Tells webhooks of alarms: in order, signed, and retried with exponential backoff and jitter.

Each webhook has a bounded queue and a task of its own, so that one that does not answer delays no other.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

import msgspec

from batonq.errors import InvalidInput
from batonq.log.cancellation import end
from batonq.node import events
from batonq.node.alarms import book, document
from batonq.node.alarms.kinds import INFO
from batonq.node.alarms.webhook_request import (
    DELIVERY_HEADER,
    EVENT_HEADER,
    SECRET_LENGTH_MIN,
    SIGNATURE_HEADER,
    Failed,
    Refused,
    Webhook,
    parse_webhooks,
    post,
    signature,
)
from batonq.node.settings import Settings

WAITING_MAX = 1_000  # events per webhook that are not delivered yet; beyond it the oldest are dropped
ATTEMPTS_MAX = 10
RETRY_FIRST_S = 1.0
RETRY_MAX_S = 120.0
KIND = "webhook-failing"


class Server(msgspec.Struct):
    node: str
    url: str


class Delivery(msgspec.Struct):
    """The body of a request."""

    event: str
    alarm: document.Alarm
    server: Server


class Tried(NamedTuple):
    """The result of a test."""

    webhook: str
    delivered: bool
    status: int = 0
    problem: str = ""


class Webhooks:
    """Add `tell` to a book's listeners. `time_s` is the time of day, which is signed."""

    def __init__(
        self,
        settings: Settings,
        alarms: book.AlarmBook,
        *,
        time_s: Callable[[], float],
        random_bytes: Callable[[int], bytes],
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self.dropped = 0
        self.delivered = 0
        self.failed = 0
        self._hooks = parse_webhooks(
            settings.alarm_webhooks, settings.alarm_webhook_hosts, settings.alarm_webhook_private
        )
        self._secret = read_secret(settings) if self._hooks else b""
        self._alarms = alarms
        self._server = Server(settings.node, settings.public_url or settings.advertise or _url(settings))
        self._time_s = time_s
        self._random_bytes = random_bytes
        self._random = Random(random_bytes(8)) if self._hooks else Random(0)
        self._trust = trust
        self._waiting: list[deque[tuple[str, bytes]]] = [deque(maxlen=WAITING_MAX) for _ in self._hooks]
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._closed = False

    @property
    def names(self) -> list[str]:
        return [hook.name for hook in self._hooks]

    def tell(self, event: str, alarm: book.Alarm) -> None:
        """Send an event to all webhooks, soon."""
        if not self._hooks or self._closed or alarm.kind == KIND:  # that one could not arrive anyway
            return
        body = self._body(event, alarm)
        for at, waiting in enumerate(self._waiting):
            self.dropped += len(waiting) == WAITING_MAX
            waiting.append((event, body))
            if at not in self._tasks:
                self._tasks[at] = asyncio.get_running_loop().create_task(self._deliver(at))

    async def test(self) -> Sequence[Tried]:
        """Send a test event to all webhooks once, without retries."""
        now_ms = int(self._time_s() * 1000)
        alarm = book.Alarm(
            id="test",
            kind="test",
            severity=INFO,
            text="This is a test of the alarm webhooks.",
            raised_ms=now_ms,
            last_ms=now_ms,
            node=self._server.node,
        )
        body = self._body(book.TEST, alarm)
        return await asyncio.gather(*(self._try(hook, body) for hook in self._hooks))

    async def _try(self, hook: Webhook, body: bytes) -> Tried:
        try:
            return Tried(hook.name, True, await self._post(hook, book.TEST, body, self._delivery_id()))
        except (Refused, Failed) as problem:
            return Tried(hook.name, False, 0, _sentence(problem))

    async def close(self) -> None:
        """Stop. Events that wait for a retry are dropped."""
        self._closed = True
        await end(*self._tasks.values())

    # --- one webhook

    async def _deliver(self, at: int) -> None:
        """Run while there is something to deliver."""
        hook, waiting = self._hooks[at], self._waiting[at]
        try:
            while waiting:
                event, body = waiting.popleft()
                problem = await self._deliver_one(hook, event, body)
                if problem:
                    self.failed += 1
                    text = f"An alarm could not be sent to the webhook {hook.name}: {problem}"
                    self._alarms.put(KIND, text, of=at + 1)
                else:
                    self.delivered += 1
                    self._alarms.clear(KIND, at + 1)
        finally:
            del self._tasks[at]

    async def _deliver_one(self, hook: Webhook, event: str, body: bytes) -> str:
        """Deliver an event. Returns why that was not possible."""
        delivery, pause_s = self._delivery_id(), RETRY_FIRST_S
        said = ""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                await self._post(hook, event, body, delivery)
                return ""
            except Refused as problem:
                return _sentence(problem)
            except Failed as problem:
                said = _sentence(problem)
            events.info("webhook_retry", f"The webhook {hook.name} failed: {said}", attempt=attempt)
            if attempt < ATTEMPTS_MAX:
                await asyncio.sleep(pause_s * self._random.uniform(0.5, 1.0))
                pause_s = min(pause_s * 2, RETRY_MAX_S)
        return f"{said} (after {ATTEMPTS_MAX} attempts)"

    async def _post(self, hook: Webhook, event: str, body: bytes, delivery: str) -> int:
        headers = {
            SIGNATURE_HEADER: signature(self._secret, int(self._time_s()), body),
            EVENT_HEADER: event,
            DELIVERY_HEADER: delivery,
        }
        return await post(hook, body, headers, self._trust)

    def _body(self, event: str, alarm: book.Alarm) -> bytes:
        return msgspec.json.encode(Delivery(event, document.shown(alarm), self._server))

    def _delivery_id(self) -> str:
        return self._random_bytes(16).hex()


def read_secret(settings: Settings) -> bytes:
    """The secret that signs webhooks. Raises InvalidInput."""
    path = settings.alarm_webhook_secret_file
    try:
        with open(os.path.expanduser(path), "rb") as file:
            secret = file.read().strip()
    except OSError as problem:
        raise InvalidInput(f"The webhooks' secret cannot be read from {path}: {problem.strerror}.") from None
    if len(secret) < SECRET_LENGTH_MIN:
        raise InvalidInput(
            f"The secret in {path} is too short: it must have at least {SECRET_LENGTH_MIN} characters. Create one "
            "with: openssl rand -hex 32"
        )
    return secret


def _url(settings: Settings) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{'https' if settings.tls_cert else 'http'}://{host}:{settings.port}"


def _sentence(problem: Exception) -> str:
    text = str(problem)
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
