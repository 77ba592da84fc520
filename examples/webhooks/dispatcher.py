"""The dispatcher: one worker for all receivers. A delivery is a POST; any response but 2xx is a failure."""

from __future__ import annotations

import http.client
import json
import time
from urllib.parse import urlsplit

from batonq import sync
from batonq.client import Message
from batonq.idempotency import Store, idempotent
from batonq.worker import Poison, Worker
from examples.webhooks.endpoints import Endpoint, Endpoints
from examples.webhooks.policy import ONCE_FOR_S, OWNERS, PATTERN, PREFIX
from examples.webhooks.signing import ID_HEADER, SIGNATURE_HEADER, signature

TIMEOUT_S = 5.0
GONE = 410


class DeliveryFailed(Exception):
    """The receiver did not accept the event. The queue's retry policy schedules the retry."""


class Dispatcher:
    """`delivered` remembers for a day which event was delivered to which receiver, so that a message that is
    delivered twice, or an event that is published twice, is posted once.
    """

    def __init__(self, baton: sync.Baton, endpoints: Endpoints, delivered: Store, tries: int) -> None:
        self._baton = baton
        self._endpoints = endpoints
        self._tries = tries
        once = idempotent(delivered, key=_receiver_and_event, ttl=ONCE_FOR_S, lease=2 * TIMEOUT_S, scope="deliveries")
        self.deliver = once(self._deliver)

    def worker(self) -> Worker:
        app = Worker(self._baton.url, name="dispatcher")
        # Threads, because a delivery mostly waits. A slow receiver occupies some of them, for at most 5 s.
        app.task(queue=PATTERN, concurrency=16, visibility=30, deadline=60)(self.deliver)
        return app

    def _deliver(self, message: Message) -> None:
        endpoint = self._endpoints.get(message.queue.removeprefix(PREFIX))
        if endpoint is None or endpoint.disabled:
            raise Poison("the endpoint is disabled; redrive this when it is enabled again")
        status, problem = _post(endpoint, message)
        if 200 <= status < 300:
            return
        if status == GONE or message.receive_count >= self._tries:
            self._give_up(endpoint, problem, message.receive_count)
            raise Poison(f"gave up after {message.receive_count} attempts: {problem}")
        raise DeliveryFailed(problem)

    def _give_up(self, endpoint: Endpoint, problem: str, tries: int) -> None:
        """Notify first, then mark. After a crash in between, the repeated notification is a duplicate by key."""
        text = f"{endpoint.name} was disabled after {tries} attempts: {problem}"
        letter = {"to": endpoint.owner, "endpoint": endpoint.name, "text": text}
        self._baton.queue(OWNERS).send(letter, dedup_key=f"disabled-{endpoint.name}")
        self._endpoints.disable(endpoint.name, problem)


def _receiver_and_event(message: Message) -> str:
    return f"{message.queue.removeprefix(PREFIX)}:{message.body['id']}"


def _post(endpoint: Endpoint, message: Message) -> tuple[int, str]:
    """The status (0 without a response) and a description."""
    parts = urlsplit(endpoint.url)
    event_id, body = str(message.body["id"]), json.dumps(message.body, separators=(",", ":")).encode()
    headers = {
        "Content-Type": "application/json",
        ID_HEADER: event_id,  # the same for every attempt, so that the receiver recognizes duplicates
        SIGNATURE_HEADER: signature(endpoint.secret, event_id, body, time.time()),
    }
    connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_S)
    try:
        connection.request("POST", parts.path, body, headers)
        status = connection.getresponse().status
        return status, f"status {status}"
    except (OSError, http.client.HTTPException) as problem:
        return 0, f"no response: {str(problem) or type(problem).__name__}"
    finally:
        connection.close()
