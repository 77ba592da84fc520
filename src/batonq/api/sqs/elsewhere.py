"""Hot calls to a queue whose shard another node serves: relayed with the others of this turn, and answered here.

What that node has not run goes the general way after all, see together.py and node/relaying.py.
"""

from __future__ import annotations

from typing import Any

from batonq.api.http import Reply
from batonq.api.sqs import protocol_json
from batonq.api.sqs.app import SqsApp
from batonq.api.sqs.operations.receiving import deliver
from batonq.api.sqs.together import AnswerHeads, Deleting, Receiving, Sending, received
from batonq.core.ids import message_ids
from batonq.core.payload import AS_IS
from batonq.errors import BatonError
from batonq.node.broker import Queue
from batonq.node.relayed import (
    RelayedAnswer,
    RelayedDelete,
    RelayedDeliveries,
    RelayedDone,
    RelayedProblem,
    RelayedReceive,
    RelayedSend,
    RelayedSent,
    RelayedTexts,
    claims_of,
)

_encode = protocol_json.encode


class Elsewhere:
    """Ask `Broker.is_relayed` before."""

    def __init__(self, app: SqsApp, heads: AnswerHeads) -> None:
        self._app = app
        self._service = app.service
        self._broker = app.service.broker
        self._relaying = app.service.broker.relaying
        self._heads = heads

    def send(self, queue: Queue, sender: str, one: Sending) -> None:
        bodies, digests, invocation, answer, operation, reply = one

        def answered(told: RelayedAnswer | BatonError) -> None:
            if isinstance(told, RelayedSent):
                self._app.calls[operation] += 1
                reply(self._heads.answer_by(operation, answer, queue.shard, told.first, digests))
            else:
                self._other(told, operation, reply)

        call = RelayedSend(queue.number, sender, AS_IS, invocation, bodies, digests)
        self._relaying.add(queue.shard, call, sum(map(len, bodies)), answered)

    def receive(self, queue: Queue, visibility_ms: int | None, one: Receiving) -> None:
        holder, count, reply = one

        def answered(told: RelayedAnswer | BatonError) -> None:
            if isinstance(told, RelayedTexts | RelayedDeliveries):
                self._app.calls["ReceiveMessage"] += 1
                if not self._deliver(queue, told, reply):  # no answer has left: the messages are the next one's
                    self._relaying.give_back(queue.shard, queue.number, claims_of(told))
            else:
                self._other(told, "ReceiveMessage", reply)

        call = RelayedReceive(queue.number, queue.account, queue.name, holder, count, visibility_ms)
        self._relaying.add(queue.shard, call, 0, answered)

    def _deliver(self, queue: Queue, found: RelayedTexts | RelayedDeliveries, reply: Reply) -> bool:
        """Whether the messages have left."""
        try:
            answer = self._heads.answer(self._received(queue, found))
        except BatonError as problem:
            reply(self._heads.error(problem))
            return False
        except Exception:
            reply(self._heads.fault("ReceiveMessage"))
            return False
        return reply(answer)

    def _received(self, queue: Queue, found: RelayedTexts | RelayedDeliveries) -> bytes:
        if isinstance(found, RelayedDeliveries):
            output: Any = deliver(self._service, queue, found.deliveries, (), [])
            return _encode(output)
        receipts = self._broker.seal_relayed(queue, found)
        names = message_ids(queue.shard, found.sequences)
        return received(names, receipts, found.contents, found.digests, found.bodies)

    def delete(self, queue: Queue, one: Deleting) -> None:
        claims, answer, operation, reply = one

        def answered(told: RelayedAnswer | BatonError) -> None:
            if isinstance(told, RelayedDone):
                self._app.calls[operation] += 1
                reply(self._heads.answer_by(operation, answer, told.problems()))
            else:
                self._other(told, operation, reply)

        self._relaying.add(queue.shard, RelayedDelete(queue.number, claims), 0, answered)

    def _other(self, told: RelayedAnswer | BatonError, operation: str, reply: Reply) -> None:
        """It was not run: the general way; or nobody knows whether it was: never again."""
        if told is None:
            reply(None)
            return
        self._app.calls[operation] += 1
        problem = told.problem() if isinstance(told, RelayedProblem) else told
        assert isinstance(problem, BatonError)
        reply(self._heads.error(problem))
