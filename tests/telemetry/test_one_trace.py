"""One message from its sender through failures, a dead-letter queue and a redrive: one trace, in client, worker and
broker.
"""

from __future__ import annotations

import asyncio

from opentelemetry.trace import SpanKind, StatusCode

from batonq.testing import memory_async
from batonq.worker import Message, Worker
from tests.telemetry.support import (
    BODY,
    Collected,
    TracedBroker,
    attributes,
    collected,
    id_of,
    parent_of,
    trace_of,
)
from tests.worker.support import until

__all__ = ["collected"]


def test_a_message_is_one_trace_through_dead_letters_and_redrive(collected: Collected) -> None:
    async def main() -> None:
        async with await memory_async() as baton:
            broker = TracedBroker(baton._transport.node)  # type: ignore[attr-defined]
            orders = await baton.create_queue("orders", max_receives=2, dead_letter_queue="orders-dead")
            app = Worker(baton=baton)
            repaired = asyncio.Event()

            @app.task(queue="orders")
            async def handle(message: Message) -> None:
                if not repaired.is_set():
                    raise RuntimeError("the shop is closed")
                await baton.queue("receipts").send("thank you")

            await baton.create_queue("receipts")
            sent = await orders.send(BODY)
            serving = asyncio.create_task(app.serve())
            await until(lambda: app.counters and app.counters["handle"].dead_lettered == 1)
            dead = baton.queue("orders-dead")
            (letter,) = await dead.receive(wait=20)  # the worker's answer may still be on its way
            assert letter.id == sent.id
            assert letter.trace is not None and letter.trace.span_id == id_of(collected.one("send orders"))
            await letter.nack(delay=0, untried=True)
            repaired.set()
            job = await dead.redrive()
            await job.wait()
            await until(lambda: app.counters["handle"].acked == 1)
            app.stop()
            assert await serving == 0
            check(collected, broker, sent.id)

    asyncio.run(main())


def check(collected: Collected, broker: TracedBroker, message_id: str) -> None:
    send = collected.one("send orders")
    assert send.kind is SpanKind.PRODUCER and send.parent is None
    assert attributes(send) == {
        "messaging.system": "baton",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.message.id": message_id,
    }
    # Two failures, and the success after the redrive, all children of the send.
    processed = collected.named("process orders")
    assert [span.kind for span in processed] == [SpanKind.CONSUMER] * 3
    assert {parent_of(span) for span in processed} == {id_of(send)}
    assert [span.status.status_code for span in processed] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert [attributes(span).get("error.type") for span in processed] == ["RuntimeError", "RuntimeError", None]
    assert [attributes(span)["baton.message.receive_count"] for span in processed] == [1, 2, 1]
    assert attributes(processed[2])["baton.dead_letter.queue"] == "orders"
    # What the handler sent belongs to it, and each answer to the handler's run.
    thanks = collected.one("send receipts")
    assert parent_of(thanks) == id_of(processed[2])
    nacks, ack = collected.named("nack orders"), collected.one("ack orders")
    assert [parent_of(span) for span in (*nacks, ack)] == [id_of(span) for span in processed]
    assert {span.kind for span in (*nacks, ack)} == {SpanKind.CLIENT}
    # The receives: one message each, so they are in its trace, with a link to it.
    receives = collected.named("receive orders")
    assert len(receives) == 3
    for span in receives:
        assert parent_of(span) == id_of(send) and [link.context.span_id for link in span.links] == [
            send.get_span_context().span_id  # type: ignore[union-attr]
        ]
    # The broker: stored once, and waited for three times, the last time after the redrive.
    stored, *waits = [span for span in broker.spans() if attributes(span)["messaging.destination.name"] == "orders"]
    assert (stored.name, stored.kind, parent_of(stored)) == ("send orders", SpanKind.SERVER, id_of(send))
    assert attributes(stored)["messaging.message.id"] == message_id
    assert [span.name for span in waits] == ["wait orders"] * 3
    assert {parent_of(span) for span in waits} == {id_of(send)}
    assert [attributes(span)["baton.message.receive_count"] for span in waits] == [1, 2, 1]
    assert [attributes(span).get("baton.moved") for span in waits] == [None, None, "redrive"]
    assert all(attributes(span)["baton.queue.wait_seconds"] >= 0 for span in waits)
    everything = [send, *processed, thanks, *nacks, ack, *receives, stored, *waits]
    assert len({trace_of(span) for span in everything}) == 1
