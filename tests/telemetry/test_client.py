"""Spans and metrics of the client and the worker, by the semantic conventions for messaging."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from batonq import sync
from batonq.client import Outgoing, TraceContext, tracing
from batonq.client.models import MessageFields
from batonq.client.telemetry import is_sampled
from batonq.errors import BatonError, QueueDoesNotExist
from batonq.testing import memory, memory_async
from batonq.worker import Message, Worker
from tests.client.support import Blocking, run
from tests.telemetry.support import Collected, attributes, collected, id_of, parent_of, trace_of
from tests.worker.memory import MemorySource
from tests.worker.support import until, work

__all__ = ["collected"]
SAMPLED = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")
UNSAMPLED = TraceContext("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00")
NEVER = ParentBased(ALWAYS_OFF)


@pytest.fixture(params=["async", "sync"])
def form(request: pytest.FixtureRequest) -> str:
    form: str = request.param
    return form


def test_an_operation_of_each_kind(form: str, collected: Collected) -> None:
    async def body() -> None:
        client = await memory_async() if form == "async" else Blocking(memory())
        async with client as baton:
            jobs = await baton.create_queue("jobs")
            with collected.tracers.get_tracer("program").start_as_current_span("program") as program:
                await jobs.send("a")
                await jobs.send_many(["b", "c"])
                first, *rest = await jobs.receive(wait=0)
                assert await jobs.receive(wait=0) == []  # no span: nothing happened
                await first.extend(60)
                await first.ack()
                await rest[0].nack(reason="no")
                await jobs.ack_many([rest[1].receipt])
                with pytest.raises(BatonError):
                    await first.ack()
            root = f"{program.get_span_context().span_id:016x}"
            assert {parent_of(span) for span in collected.spans if span.name != "program"} == {root}
            assert [(span.name, span.kind) for span in collected.spans if span.name != "program"] == [
                ("send jobs", SpanKind.PRODUCER),
                ("send jobs", SpanKind.PRODUCER),
                ("receive jobs", SpanKind.CLIENT),
                ("extend jobs", SpanKind.CLIENT),
                ("ack jobs", SpanKind.CLIENT),
                ("nack jobs", SpanKind.CLIENT),
                ("ack jobs", SpanKind.CLIENT),
                ("ack jobs", SpanKind.CLIENT),
            ]
            single, batch = collected.named("send jobs")
            assert "messaging.batch.message_count" not in attributes(single)
            assert attributes(batch)["messaging.batch.message_count"] == 2
            receive = collected.one("receive jobs")
            assert attributes(receive)["messaging.batch.message_count"] == 3
            senders = [link.context.span_id for link in receive.links]
            assert [f"{sender:016x}" for sender in senders] == [id_of(single), id_of(batch), id_of(batch)]
            *_, refused = collected.named("ack jobs")
            assert refused.status.status_code is StatusCode.ERROR
            assert attributes(refused)["error.type"] == "message_gone"
            assert attributes(refused)["messaging.operation.type"] == "settle"

    run(body())


def test_a_message_without_a_sampled_trace_gets_no_span(collected: Collected) -> None:
    with memory() as baton:
        jobs = baton.create_queue("jobs")
        with tracing.within(UNSAMPLED):
            jobs.send("quiet")
        jobs.send_many([Outgoing("own", traceparent=UNSAMPLED.traceparent)])
        for message in jobs.receive(wait=0):
            assert message.trace is not None and message.trace.traceparent.endswith("-00")
            assert message.trace.trace_id == UNSAMPLED.trace_id
            message.ack()
    assert [span.name for span in collected.spans] == ["send jobs"]  # of send_many, which was in no trace
    assert sum(point.value for point in collected.points("messaging.client.consumed.messages")) == 2


@pytest.mark.parametrize("collected", [NEVER], indirect=True)
def test_the_programs_sampler_decides_about_new_traces(collected: Collected) -> None:
    with memory() as baton:
        jobs = baton.create_queue("jobs")
        jobs.send("x")
        (message,) = jobs.receive(wait=0)
        assert message.traceparent and not is_sampled(message.traceparent)  # consumers respect it
        message.ack()
    assert collected.spans == []
    assert sum(point.value for point in collected.points("messaging.client.sent.messages")) == 1


def test_a_consumer_outside_of_any_span_continues_the_senders_trace(collected: Collected) -> None:
    with memory() as baton:
        jobs = baton.create_queue("jobs")
        jobs.send_many([Outgoing("x", traceparent=SAMPLED.traceparent, tracestate=SAMPLED.tracestate)])
        (message,) = jobs.receive(wait=0)
        message.ack()
    for name in ("receive jobs", "ack jobs"):
        span = collected.one(name)
        assert (trace_of(span), parent_of(span)) == (SAMPLED.trace_id, SAMPLED.span_id)
        assert span.get_span_context().trace_state.to_header() == "vendor=1"  # type: ignore[union-attr]


def test_metrics_of_the_client(collected: Collected) -> None:
    with memory() as baton:
        jobs = baton.create_queue("jobs")
        jobs.send_many(range(5))
        jobs.receive(3, wait=0)
        with pytest.raises(QueueDoesNotExist):
            baton.queue("nope").send("x")
    sent = {
        (point.attributes["messaging.destination.name"], point.attributes.get("error.type")): point.value
        for point in collected.points("messaging.client.sent.messages")
    }
    assert sent == {("jobs", None): 5, ("nope", "queue_does_not_exist"): 1}
    (consumed,) = collected.points("messaging.client.consumed.messages")
    assert consumed.value == 3
    durations = {
        (point.attributes["messaging.operation.name"], point.attributes.get("error.type")): point.count
        for point in collected.points("messaging.client.operation.duration")
    }
    assert durations == {("send", None): 1, ("send", "queue_does_not_exist"): 1, ("receive", None): 1}
    (point, *_) = collected.points("messaging.client.operation.duration")
    assert point.explicit_bounds[0] == 0.005 and point.attributes["messaging.system"] == "baton"


def test_the_servers_address_is_an_attribute(collected: Collected) -> None:
    with sync.Baton("http://127.0.0.1:1", retries=0) as baton, pytest.raises(BatonError):
        baton.queue("jobs").send("x")
    span = collected.one("send jobs")
    assert (attributes(span)["server.address"], attributes(span)["server.port"]) == ("127.0.0.1", 1)
    assert attributes(span)["error.type"] == "unavailable"


# --- the worker


def test_the_worker_measures_what_its_handlers_do(collected: Collected) -> None:
    source = MemorySource()
    source.send("q", "fine", "broken")
    app = Worker(source=source)

    @app.task(queue="q")
    async def handle(message: Message) -> None:
        if message.body == "broken" and message.receive_count == 1:
            raise KeyError("id")

    work(app, lambda: source.left == 0)
    counts = {
        point.attributes.get("error.type"): point.count for point in collected.points("messaging.process.duration")
    }
    assert counts == {None: 2, "KeyError": 1}
    spans = collected.named("process q")
    assert len(spans) == 3 and all(span.parent is None for span in spans)  # no sender's trace: each is a new one
    (failed,) = [span for span in spans if span.status.status_code is StatusCode.ERROR]
    assert [event.name for event in failed.events] == ["exception"]


def test_a_batch_handler_is_linked_to_its_messages(collected: Collected) -> None:
    async def main() -> None:
        async with await memory_async() as baton:
            jobs = await baton.create_queue("jobs")
            await jobs.send_many([Outgoing(at, traceparent=SAMPLED.traceparent) for at in range(3)])
            app = Worker(baton=baton)

            @app.task(queue="jobs", batch=10)
            async def handle(messages: list[MessageFields]) -> None:
                """All done."""

            serving = asyncio.create_task(app.serve())
            await until(lambda: app.counters and app.counters["handle"].acked == 3)
            app.stop()
            await serving

    asyncio.run(main())
    span = collected.one("process jobs")
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [SAMPLED.trace_id] * 3
    assert attributes(span)["messaging.batch.message_count"] == 3
    assert {parent_of(ack) for ack in collected.named("ack jobs")} == {id_of(span)}


def test_a_handler_on_a_thread_is_in_its_span(collected: Collected) -> None:
    async def main() -> None:
        async with await memory_async() as baton:
            jobs = await baton.create_queue("jobs")
            await jobs.send("x")
            found: list[TraceContext | None] = []
            app = Worker(baton=baton)

            @app.task(queue="jobs")
            def handle(message: Message) -> None:
                found.append(tracing.outgoing())

            serving = asyncio.create_task(app.serve())
            await until(lambda: app.counters and app.counters["handle"].acked == 1)
            app.stop()
            await serving
            assert found[0] is not None and found[0].span_id == id_of(collected.one("process jobs"))

    asyncio.run(main())


@pytest.mark.parametrize("collected", [ParentBased(ALWAYS_ON)], indirect=True)
@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-zz-11-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_broken_trace_context_is_ignored(collected: Collected, traceparent: str) -> None:
    message = MessageFields(id="1", receipt="r", queue="q", traceparent=traceparent)
    from batonq.client import telemetry

    async def handler(given: Message) -> str:
        return "done"

    async def main() -> None:
        assert telemetry.active is not None
        assert await telemetry.active.around(handler)(message) == "done"

    asyncio.run(main())
    assert collected.one("process q").parent is None


# --- off


def test_nothing_of_opentelemetry_is_imported_unless_it_is_enabled() -> None:
    program = (
        "import sys, batonq.client, batonq.sync, batonq.worker, batonq.node.node\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_without_the_package_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import batonq\n"
        "try: batonq.telemetry.enable()\n"
        "except batonq.BatonError as problem: print(problem)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert "pip install 'batonq[otel]'" in said
