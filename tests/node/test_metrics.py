"""Every metric moves when its thing happens, and has the form that Prometheus reads."""

from __future__ import annotations

import asyncio
import gc
import re
import socket
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from batonq.core.schedule import Schedule
from batonq.core.shard.state.readers import GroupSettings, Start
from batonq.log.replicated_log import MirroredLog
from batonq.node.jobs.job_control import Redrive
from batonq.node.monitoring import metrics
from batonq.node.monitoring.cluster_view import Position, Told
from batonq.node.monitoring.histogram import COUNT_BUCKETS, MESSAGE_BUCKETS, Histogram, percentiles, powers
from batonq.node.monitoring.overview import Overview, QueueReading
from batonq.node.monitoring.queue_metrics import listed
from batonq.node.monitoring.sampler import Rates
from batonq.node.monitoring.tracing import BrokerTracing
from batonq.node.node import Node
from batonq.node.schedules.scheduled_message import ScheduledMessage
from batonq.node.schedules.timing import rate_timing
from batonq.node.shard_host.archiving import Archiving
from tests.cluster.memory import Nodes, run_nodes
from tests.node.nodes import ACCOUNT, make_send
from tests.node.stage import Shown, Stage, on_stage
from tests.node.test_pages import counters
from tests.node.topics import make_queue, make_topic, publish, subscribe
from tests.support import brokers

Act = Callable[[Stage], Awaitable[None]]
ELSEWHERE = {  # metrics that other tests move
    "baton_ownership_changes_total": "test_a_cluster_counts_owners_and_followers_that_are_behind",
    "baton_follower_lag_frames": "test_a_cluster_counts_owners_and_followers_that_are_behind",
    "baton_follower_lag_seconds": "test_a_cluster_counts_owners_and_followers_that_are_behind",
    "baton_replica_lag_frames": "test_a_cluster_counts_owners_and_followers_that_are_behind",
    "baton_cluster_nodes": "test_a_cluster_counts_owners_and_followers_that_are_behind",
    "baton_certificate_expiry_timestamp_seconds": "tests/system/test_tls.py",
}


@dataclass
class Move:
    """A metric's value before and after `act` differs by `by`; by any positive number if that is None."""

    metric: str
    act: Act
    by: float | None = None
    labels: dict[str, str] = field(default_factory=dict)
    sample: str = ""  # the name of the sample, if it is not the metric's
    settings: dict[str, object] = field(default_factory=dict)


MOVES: list[Move] = []


def moves(
    metric: str, by: float | None = None, *, sample: str = "", settings: dict[str, object] | None = None, **labels: str
) -> Callable[[Act], Act]:
    def note(act: Act) -> Act:
        MOVES.append(Move(metric, act, by, labels, sample, settings or {}))
        return act

    return note


def histogram_moves(
    metric: str, count: float, total: float | None, le: str, below: float, **labels: str
) -> Callable[[Act], Act]:
    """The count, the sum and one bucket of a histogram."""

    def note(act: Act) -> Act:
        MOVES.append(Move(metric, act, count, labels, f"{metric}_count"))
        MOVES.append(Move(metric, act, total, labels, f"{metric}_sum"))
        MOVES.append(Move(metric, act, below, {**labels, "le": le}, f"{metric}_bucket"))
        return act

    return note


# --- queues -----------------------------------------------------------------------------------


@moves("baton_queue_messages", 2, state="visible", queue="orders")
@moves("baton_queue_sent_total", 2, queue="orders")
@moves("baton_queue_bytes", queue="orders")
@moves("baton_messages", 2, state="visible")
@moves("baton_messages_bytes")
@moves("baton_commits_total", shard="0")
@moves("baton_commit_records_total", shard="0")
@moves("baton_commit_bytes_total", shard="0")
@moves("baton_commit_duration_seconds", sample="baton_commit_duration_seconds_count", shard="0")
async def send_two(stage: Stage) -> None:
    await stage.send(await stage.queue(), "a", "b")


@moves("baton_queue_paused", 1, queue="orders", what="delivery")
@moves("baton_queue_paused", 1, queue="orders", what="sends")
@moves("baton_queue_limit", 5, queue="orders", limit="deliveries_per_second")
async def pause_and_pace(stage: Stage) -> None:
    queue = await stage.queue()
    attributes = {"Baton.Paused": "both", "Baton.DeliveriesPerSecond": "5"}
    await stage.node.broker.set_attributes(queue, attributes)


@moves("baton_queue_messages", 1, state="in_flight")
@moves("baton_queue_received_total", 1)
@moves("baton_messages", 1, state="in_flight")
async def receive_one(stage: Stage) -> None:
    queue = await stage.queue()
    await stage.send(queue, "a")
    await stage.receive(queue)


@moves("baton_queue_messages", 1, state="delayed")
async def send_delayed(stage: Stage) -> None:
    await stage.send(await stage.queue(), "a", delay_ms=60_000)


@moves("baton_queue_deleted_total", 1)
@moves("baton_queue_drain_per_second", 1 / 30)
@histogram_moves("baton_queue_wait_seconds", 1, 20, "65.536", 1)
@histogram_moves("baton_queue_handling_seconds", 1, 10, "16.384", 1)
@histogram_moves("baton_queue_end_to_end_seconds", 1, 30, "16.384", 0)
@histogram_moves("baton_queue_receive_count", 1, 1, "1", 1)
@histogram_moves("baton_message_wait_seconds", 1, 20, "32.768", 1)
@histogram_moves("baton_message_handling_seconds", 1, 10, "8.192", 0)
@histogram_moves("baton_message_end_to_end_seconds", 1, 30, "32.768", 1)
@moves("baton_messages_total", 1, event="sent")
@moves("baton_messages_total", 1, event="received")
@moves("baton_messages_total", 1, event="acked")
async def handle_one(stage: Stage) -> None:
    queue = await stage.queue()
    await stage.node.sampler.sample()
    await stage.send(queue, "a")
    await stage.later(20)
    found = await stage.receive(queue)
    await stage.later(10)
    await stage.delete(queue, found)
    await stage.later(5)


@moves("baton_queue_oldest_seconds", 15)
@moves("baton_queue_oldest_visible_seconds", 5)
@moves("baton_oldest_visible_seconds", 5)
async def wait(stage: Stage) -> None:
    queue = await stage.queue()
    await stage.send(queue, "a", delay_ms=600_000)
    await stage.later(10)
    await stage.send(queue, "b")
    await stage.later(5)


@moves("baton_queue_waiters", 1)
@moves("baton_limit_used", 1, limit="waiting_receives")
async def wait_for_messages(stage: Stage) -> None:
    queue = await stage.queue()
    stage.keep(asyncio.create_task(stage.receive(queue, wait_ms=5_000)))
    await asyncio.sleep(0.01)


@moves("baton_queue_blocked_groups", 1)
async def block_a_group(stage: Stage) -> None:
    queue = await stage.queue("orders.fifo", FifoQueue="true")
    for text in "abc":
        await stage.send(queue, text, group="g", dedup_id=text)
    await stage.receive(queue, 1)


@moves("baton_queue_retention_seconds", 3_600)
@moves("baton_queue_sla_seconds", 60)
@moves("baton_queue_limit", 5, limit="messages")
@moves("baton_queues", 1)
@moves("baton_queues_listed", 1)
async def create_with_limits(stage: Stage) -> None:
    await stage.queue(**{"MessageRetentionPeriod": "3600", "Baton.SLASeconds": "60", "Baton.MaximumMessages": "5"})


async def dead_letter_one(stage: Stage) -> None:
    dead = await stage.queue("dead")
    arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:{dead.name}"
    queue = await stage.queue(RedrivePolicy=f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":1}}')
    await stage.node.sampler.sample()
    await stage.send(queue, "a")
    await stage.receive(queue, visibility_ms=1_000)
    await stage.later(2)
    assert not await stage.receive(queue)
    await asyncio.sleep(0.05)  # it is moved
    await stage.later(5)


moves("baton_queue_dead_lettered_total", 1, queue="orders")(dead_letter_one)
moves("baton_queue_arrived_total", 1, queue="dead")(dead_letter_one)
moves("baton_queue_expired_leases_total", 1, queue="orders")(dead_letter_one)
moves("baton_queue_returned_total", 1, queue="orders")(dead_letter_one)
moves("baton_queue_is_dead_letter_queue", 1, queue="dead")(dead_letter_one)
moves("baton_queue_empty_receives_total", 1, queue="orders")(dead_letter_one)
moves("baton_messages_total", 1, event="dead_lettered")(dead_letter_one)
moves("baton_messages_total", 1, event="retried")(dead_letter_one)


@moves("baton_jobs", 1, queue="dead", state="running")
@moves("baton_job_messages", 10, queue="dead", progress="to_move")
async def redrive(stage: Stage) -> None:
    await dead_letter_one(stage)
    queue = stage.node.broker.queue(ACCOUNT, "dead")
    await stage.send(queue, *"bcdefghij")
    await stage.node.broker.start_job(queue, Redrive(target=stage.node.broker.queue(ACCOUNT, "orders"), rate_per_s=1))


@moves("baton_queue_retained_messages", 3, queue="orders")
@moves("baton_reader_lag_messages", 2, queue="orders", group="audit")
@moves("baton_reader_lag_seconds", 5, queue="orders", group="audit")
async def read_a_part_of_the_history(stage: Stage) -> None:
    queue = await stage.queue(**{"Baton.RetainSeconds": "600"})
    readers = stage.node.broker.readers
    await readers.create(queue, "audit", GroupSettings(), Start("start"))
    await stage.send(queue, "a", "b", "c")
    own = await readers.join(queue, "audit", "me")
    (fetched,) = await readers.fetch(queue, "audit", "me", own.epoch, own.shards, {}, 1, 0)
    shard = own.shards[0]
    await readers.commit(queue, "audit", "me", own.epoch, [(shard, fetched.page.positions[0])])
    await stage.later(5)


@moves("baton_schedules", 1, queue="orders", state="active")
@moves("baton_schedule_firings_total", 2, queue="orders")
@moves("baton_schedule_late_firings_total", 2, queue="orders")
@moves("baton_schedule_next_firing_timestamp_seconds", queue="orders")
async def fire(stage: Stage) -> None:
    queue = await stage.queue()
    message = ScheduledMessage(b"tick").text()
    timing = rate_timing(60_000, 0).text()
    schedule = Schedule(queue=queue.number, name="often", timing=timing, message=message, missed="all")
    await stage.node.broker.schedules.create(queue, schedule)
    await stage.node.broker.advance_clock(150_000)


@moves("baton_queue_retries_total", 1)
@moves("baton_queue_late_deletes_total", 1)
@moves("baton_queue_stale_deletes_total", 1)
async def hold_for_too_long(stage: Stage) -> None:
    queue = await stage.queue()
    await stage.send(queue, "a")
    first = await stage.receive(queue, visibility_ms=1_000)
    await stage.later(2)
    second = await stage.receive(queue, visibility_ms=1_000)
    await brokers.delete(stage.node.broker, queue, [first[0].receipt])
    await stage.later(2)
    await stage.delete(queue, second)


@moves("baton_queue_expired_messages_total", 1)
@moves("baton_messages_total", 1, event="expired")
async def expire(stage: Stage) -> None:
    queue = await stage.queue(MessageRetentionPeriod="60")
    await stage.node.sampler.sample()
    await stage.send(queue, "a")
    await stage.later(120)
    await stage.receive(queue)
    await stage.later(5)


@moves("baton_queue_duplicates_total", 1)
async def send_twice(stage: Stage) -> None:
    queue = await stage.queue("orders.fifo", FifoQueue="true")
    for _ in range(2):
        await stage.send(queue, "a", group="g", dedup_id="same")


# --- shards, log, alarms ----------------------------------------------------------------------


@moves("baton_shard_up", -1)
@moves("baton_shard_failures_total", 1)
@moves("baton_shard_room", -1)
@moves("baton_queues_unavailable", 1)
async def break_a_shard(stage: Stage) -> None:
    await stage.queue()
    stage.node.shards[0].host().commit.abandon(OSError("planted by the test"))


@moves("baton_shard_epoch", 1, settings={"reopen_first_s": 0.01})
async def reopen_a_shard(stage: Stage) -> None:
    stage.node.shards[0].host().commit.abandon(OSError("planted by the test"))
    while not stage.node.shards[0].serving:  # noqa: ASYNC110 - any condition
        await asyncio.sleep(0.01)


@moves("baton_shard_log_bytes")
@moves("baton_commit_seconds_total")
async def write_much(stage: Stage) -> None:
    queue = await stage.queue()
    for _ in range(20):
        await stage.send(queue, *("x" * 1_000,) * 10)


@moves("baton_alarms", 1)
@moves("baton_alarms_raised_total", 1)
@moves("baton_alarm_active", 1, kind="catalog-stopped")
@moves("baton_limit_used", 1, limit="alarms")
async def raise_an_alarm(stage: Stage) -> None:
    stage.node.alarms.put("catalog-stopped", "The catalog stopped.")


@moves("baton_history_bytes_total")
async def read_history(stage: Stage) -> None:
    await send_two(stage)
    assert (await stage.rest("GET", "/v1/history/0")).status == 200


@moves("baton_history_limited_total", 1, settings={"history_rate_bytes": 0})
async def read_too_much_history(stage: Stage) -> None:
    assert (await stage.rest("GET", "/v1/history/0")).status == 429


@moves("baton_history_readers", 1)
async def wait_for_history(stage: Stage) -> None:
    stage.keep(asyncio.create_task(stage.node.broker.history.read(0, 1_000_000, 1, 5.0)))
    await asyncio.sleep(0.01)


async def fill_segments(stage: Stage) -> None:
    queue = await stage.queue()
    for _ in range(20):
        await stage.send(queue, *("x" * 2_000,) * 10)


@moves("baton_archive_behind_bytes", settings={"archive": "file://{directory}/archive", "segment_bytes": 65_536})
async def seal_segments(stage: Stage) -> None:
    await fill_segments(stage)


@moves("baton_archive_segments_total", settings={"archive": "file://{directory}/archive", "segment_bytes": 65_536})
async def archive_segments(stage: Stage) -> None:
    await fill_segments(stage)
    await archived(stage, lambda archiving: archiving.segments)


@moves("baton_archive_failures_total", settings={"archive": "file:///proc/archive", "segment_bytes": 65_536})
async def fail_to_archive(stage: Stage) -> None:
    await fill_segments(stage)
    await archived(stage, lambda archiving: archiving.failures)


async def archived(stage: Stage, counted: Callable[[Archiving], dict[int, int]]) -> None:
    """Until a segment was archived, or that failed."""
    archiving = stage.node._archiving
    assert archiving is not None
    async with asyncio.timeout(30):
        while not counted(archiving):
            await stage.node.maintenance.step()
            await asyncio.sleep(0.02)


@moves(
    "baton_payload_store_objects_total",
    1,
    settings={"payload_store": "file://{directory}/payloads", "payload_threshold": 1024},
    operation="written",
)
async def send_a_large_body(stage: Stage) -> None:
    await stage.send(await stage.queue(), "x" * 2_000)


@moves("baton_trace_spans_total", 1, result="exported")
async def export_a_span(stage: Stage) -> None:
    @dataclass
    class Export:
        exported: int = 1
        dropped: int = 0
        failed: int = 0

    stage.node.broker.tracing = cast(BrokerTracing, SimpleNamespace(export=Export()))
    asyncio.get_running_loop().call_later(0.5, setattr, stage.node.broker, "tracing", None)


# --- requests ---------------------------------------------------------------------------------


@moves("baton_http_requests_total", 3)  # with the one that reads the metrics
@moves("baton_http_responses_total", 1, method="POST", status="200")
@moves("baton_http_responses_total", 1, method="POST", status="400")
@moves("baton_http_received_bytes_total")
@moves("baton_http_sent_bytes_total")
@moves("baton_sqs_calls_total", 1, operation="CreateQueue")
@moves("baton_sqs_errors_total", 1, code="AWS.SimpleQueueService.NonExistentQueue")
@moves("baton_sqs_request_seconds", 1, sample="baton_sqs_request_seconds_count", operation="CreateQueue")
@moves("baton_sqs_request_seconds", sample="baton_sqs_request_seconds_sum", operation="CreateQueue")
@moves(
    "baton_sqs_request_seconds", 1, sample="baton_sqs_request_seconds_bucket", operation="SendMessage", le="33.554432"
)
async def call_sqs(stage: Stage) -> None:
    assert (await stage.sqs("CreateQueue", QueueName="orders")).status == 200
    url = f"http://127.0.0.1/{ACCOUNT}/missing"
    assert (await stage.sqs("SendMessage", QueueUrl=url, MessageBody="a")).status == 400


@moves("baton_sqs_request_seconds", 1, sample="baton_sqs_request_seconds_count", operation="ListQueues")
async def call_sqs_with_a_form(stage: Stage) -> None:
    body = b"Action=ListQueues&Version=2012-11-05"
    answer = await stage.request("POST", "/", body, **{"Content-Type": "application/x-www-form-urlencoded"})
    assert answer.status == 200


@moves("baton_sns_calls_total", 1, operation="CreateTopic")
@moves("baton_sns_errors_total", 1, code="NotFound")
@moves("baton_sns_request_seconds", 1, sample="baton_sns_request_seconds_count", operation="CreateTopic")
@moves("baton_sns_request_seconds", sample="baton_sns_request_seconds_sum", operation="CreateTopic")
async def call_sns(stage: Stage) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    made = await stage.request("POST", "/", b"Action=CreateTopic&Version=2010-03-31&Name=orders", **form)
    assert made.status == 200
    arn = f"arn:aws:sns:us-east-1:{ACCOUNT}:missing".encode()
    missing = b"Action=GetTopicAttributes&Version=2010-03-31&TopicArn=" + arn
    assert (await stage.request("POST", "/", missing, **form)).status == 404


@moves("baton_rest_calls_total", 1, operation="createQueue")
@moves("baton_rest_errors_total", 1, code="not_found")
@moves("baton_rest_request_seconds", 1, sample="baton_rest_request_seconds_count", operation="createQueue")
@moves("baton_rest_request_seconds", 1, sample="baton_rest_request_seconds_count", operation="sendMessage")
@moves("baton_rest_request_seconds", sample="baton_rest_request_seconds_sum", operation="sendMessage")
async def call_rest(stage: Stage) -> None:
    assert (await stage.rest("POST", "/v1/queues", {"name": "orders"})).status == 201
    assert (await stage.rest("POST", "/v1/queues/orders/messages", {"body": "a"})).status == 202
    assert (await stage.rest("GET", "/v1/nothing")).status == 404


@moves("baton_http_refused_total", 1)
async def send_rubbish(stage: Stage) -> None:
    with socket.create_connection(("127.0.0.1", stage.server.port)) as line:
        line.sendall(b"rubbish\r\n\r\n")
        await asyncio.sleep(0.1)


@moves("baton_http_refused_connections_total", 1, settings={"connections_max": 2})
async def connect_too_often(stage: Stage) -> None:
    lines = [socket.create_connection(("127.0.0.1", stage.server.port)) for _ in range(3)]
    await asyncio.sleep(0.1)
    for line in lines:
        line.close()
    await asyncio.sleep(0.1)


@moves("baton_http_failures_total", 1)
async def fail_inside(stage: Stage) -> None:
    resolve = stage.server.resolve

    def broken(request: object) -> object:
        raise ZeroDivisionError("planted by the test")

    stage.server.resolve = broken  # type: ignore[assignment]
    assert (await stage.request("GET", "/livez")).status == 500
    stage.server.resolve = resolve


@moves("baton_http_connections", 1)
@moves("baton_limit_used", 1, limit="connections")
async def connect(stage: Stage) -> None:
    stage.keep(socket.create_connection(("127.0.0.1", stage.server.port)))
    await asyncio.sleep(0.05)


# --- the process ------------------------------------------------------------------------------


@moves("process_cpu_seconds_total")
async def work(stage: Stage) -> None:
    end_s = time.process_time() + 0.01
    while time.process_time() < end_s:
        pass


@moves("process_open_fds")
async def open_files(stage: Stage) -> None:
    stage.keep(*socket.socketpair())


@moves("process_resident_memory_bytes")
@moves("process_virtual_memory_bytes")
async def use_memory(stage: Stage) -> None:
    stage.keep(bytearray(b"x" * (64 << 20)))


@moves("python_gc_collections_total", 1, generation="2")
@moves("python_gc_objects_collected_total", generation="2")
@moves("baton_gc_seconds_total")
async def collect_garbage(stage: Stage) -> None:
    for _ in range(100):
        cycle: list[object] = []
        cycle.append(cycle)
    gc.collect()


@moves("baton_event_loop_lag_seconds", sample="baton_event_loop_lag_seconds_count")
async def measure_the_loop(stage: Stage) -> None:
    stage.node._lag.histogram.observe(0.3)


@moves("baton_topic_published_total", by=2, topic="news")
@moves("baton_topic_copies_total", by=4, topic="news")
@moves("baton_topic_refused_total", by=1, topic="news")
@moves("baton_topic_waiting_copies", by=1, topic="news")
async def publish_to_a_topic(stage: Stage) -> None:
    topic = await make_topic(stage.node)
    await make_queue(stage.node, "small", {"Baton.MaximumMessages": "1"})
    await make_queue(stage.node, "large")
    for name in ("small", "large"):
        await subscribe(stage.node, topic, name)
    await publish(stage.node, topic, "a", "b")


@moves("baton_topic_dropped_total", by=1, topic="news")
async def publish_for_a_queue_that_was_deleted(stage: Stage) -> None:
    topic = await make_topic(stage.node)
    queue = await make_queue(stage.node, "gone")
    await subscribe(stage.node, topic, "gone")
    await stage.node.broker.delete_queue(queue)
    await publish(stage.node, topic, "a")


ALWAYS: dict[
    str, Callable[[Stage, float], bool]
] = {  # metrics that do not move while a node runs, and a value that they must have
    "baton_info": lambda stage, value: value == 1,
    "baton_limit": lambda stage, value: value > stage.node.settings.connections_max,
    "baton_disk_free_bytes": lambda stage, value: value > 0,
    "baton_disk_size_bytes": lambda stage, value: value > 1 << 20,
    "process_max_fds": lambda stage, value: value > 10,
    "process_start_time_seconds": lambda stage, value: value == 1_700_000_000,
}


def test_every_metric_has_a_test() -> None:
    tested = {move.metric for move in MOVES} | set(ELSEWHERE) | set(ALWAYS)
    assert tested == {metric.name for metric in metrics.ALL}


@pytest.mark.parametrize("act", dict.fromkeys(move.act for move in MOVES), ids=lambda act: act.__name__)
def test_metrics_move(tmp_path: Path, act: Act) -> None:
    expected = [move for move in MOVES if move.act is act]

    async def main() -> None:
        settings = {
            name: value.replace("{directory}", str(tmp_path)) if isinstance(value, str) else value
            for name, value in expected[0].settings.items()
        }
        async with on_stage(tmp_path, **settings) as stage:
            before = await stage.shown()
            await act(stage)
            after = await stage.shown()
            for move in expected:
                name = move.sample or move.metric
                by = after.sum(name, move.labels) - before.sum(name, move.labels)
                right = by > 0 if move.by is None else by == pytest.approx(move.by)
                assert right, f"{name} {move.labels} moved by {by}, not {move.by}"

    asyncio.run(main())


def test_metrics_that_stay_have_the_right_value(tmp_path: Path) -> None:
    async def main() -> None:
        async with on_stage(tmp_path) as stage:
            shown = await stage.shown()
            for name, is_right in ALWAYS.items():
                assert is_right(stage, shown.sum(name)), name

    asyncio.run(main())


# --- the form ---------------------------------------------------------------------------------


def test_the_text_is_what_prometheus_reads(tmp_path: Path) -> None:
    async def main() -> None:
        async with on_stage(tmp_path) as stage:
            await handle_one(stage)
            await call_rest_again(stage)
            shown = await stage.shown()
            kinds = {metric.name: metric.kind for metric in metrics.ALL}
            for name, kind in shown.kinds.items():
                assert kinds.get(name) == kind or kinds[f"{name}_total"] == kind == "counter", name
            assert len(re.findall(r"^# TYPE baton_queue_messages ", shown.text, re.MULTILINE)) == 1
            check_histograms(shown)
            answer = await stage.request("GET", "/metrics")
            assert answer.body.endswith(b"\n") and b"\n\n" not in answer.body

    async def call_rest_again(stage: Stage) -> None:
        assert (await stage.rest("GET", "/v1/queues")).status == 200

    asyncio.run(main())


def check_histograms(shown: Shown) -> None:
    """Buckets rise, and the last one is the count."""
    for metric in metrics.ALL:
        if metric.kind != "histogram":
            continue
        for labels, count in shown.samples.get(f"{metric.name}_count", []):
            same = [
                (own["le"], value)
                for own, value in shown.samples[f"{metric.name}_bucket"]
                if labels.items() <= own.items()
            ]
            bounds, values = [float(bound) for bound, _ in same], [value for _, value in same]
            assert bounds == sorted(bounds) and values == sorted(values) and values[-1] == count


def test_names_follow_the_conventions_of_prometheus() -> None:
    for metric in metrics.ALL:
        assert re.fullmatch(r"(baton|process|python)_[a-z][a-z0-9_]*", metric.name)
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name
        assert not re.search(r"_(ms|millis|milliseconds|kb|mb|minutes|hours)(_|$)", metric.name), "base units only"
        assert (metric.buckets is not None) == (metric.kind == "histogram")
        assert metric.doc.endswith(".") and "\n" not in metric.doc


# --- histograms -------------------------------------------------------------------------------


def test_a_duration_is_in_the_bucket_of_its_size() -> None:
    histogram = Histogram()
    for seconds in (0.0, 0.000_001, 0.0003, 0.002, 5.0):
        histogram.observe(seconds)
    buckets = powers(8, 25, 1e-6)
    below = dict(zip(buckets.bounds, buckets.cumulative(histogram.counts), strict=True))
    assert [below[bound] for bound in buckets.bounds[:2]] == [2, 3]
    assert below[2**12 * 1e-6] == 4 and below[2**23 * 1e-6] == 5
    assert (histogram.count, round(histogram.seconds, 6)) == (5, 5.002301)


def test_percentiles_are_within_their_bucket() -> None:
    counts = [0] * 64
    for value in range(1, 1_001):
        counts[value.bit_length()] += 1
    p50, p95, p99 = percentiles(counts, (0.5, 0.95, 0.99)) or (0, 0, 0)
    assert 256 <= p50 <= 512 and p50 == pytest.approx(500, rel=0.05)
    assert 512 <= p95 <= p99 <= 1_024
    assert percentiles([0] * 64, (0.5,)) is None
    assert percentiles([3] + [0] * 63, (0.5, 0.99)) == pytest.approx([0.5, 0.99]), "below 1 ms"


def test_bounds_are_in_seconds() -> None:
    assert MESSAGE_BUCKETS.bounds[:3] == (0.001, 0.002, 0.004) and COUNT_BUCKETS.bounds[0] == 1


# --- how many queues --------------------------------------------------------------------------


def reading(number: int, **given: int) -> QueueReading:
    rates = Rates(sent=given.pop("rate", 0))
    return QueueReading(
        ACCOUNT,
        f"q{number}",
        False,
        0,
        0,
        bool(given.pop("dead_letters", 0)),
        0,
        counters(**given),
        number,
        rates=rates,
    )


def test_with_many_queues_the_busiest_and_most_troubled_are_listed() -> None:
    queues = [reading(number) for number in range(100)]
    queues[17] = reading(17, rate=50)
    queues[50] = reading(50, rate=9)
    queues[80] = reading(80, visible=3, dead_letters=1)
    queues[90] = reading(90, dead=1)
    overview = Overview(1_000, queues)
    chosen = [queue.number for queue in listed(overview, 4)]
    assert chosen == [17, 50, 80, 90], "in the order of the overview"
    assert listed(overview, 100) is queues
    assert len(listed(overview, 60)) == 60 and listed(overview, 0) == []


def test_a_queue_that_was_listed_stays_while_it_is_near_the_limit() -> None:
    before = [reading(number, rate=100 - number) for number in range(100)]
    first = {queue.number for queue in listed(Overview(1_000, before), 40)}
    after = [*before]
    after[19], after[20] = reading(19, rate=80), reading(20, rate=81)  # they change places
    assert {queue.number for queue in listed(Overview(2_000, after), 40, first)} == first
    after[99] = reading(99, rate=1_000)
    assert 99 in {queue.number for queue in listed(Overview(2_000, after), 40, first)}


def test_past_the_limit_totals_still_include_all_queues(tmp_path: Path) -> None:
    async def main() -> None:
        async with on_stage(tmp_path, metrics_queues_max=3) as stage:
            queues = [await stage.queue(f"orders-{number}") for number in range(8)]
            for number, queue in enumerate(queues):
                await stage.send(queue, *"x" * (number + 1))
            shown = await stage.shown()
            assert shown.sum("baton_messages", {"state": "visible"}) == 36
            names = {labels["queue"] for labels, _ in shown.samples["baton_queue_messages"]}
            assert len(names) == 3 and "orders-7" in names
            assert (shown.sum("baton_queues"), shown.sum("baton_queues_listed")) == (8, 3)

    asyncio.run(main())


# --- several processes, several nodes -----------------------------------------------------------


def test_a_cluster_counts_owners_and_followers_that_are_behind(tmp_path: Path) -> None:
    async def shown(node: Node) -> Shown:
        return Shown((await node.metrics.text()).decode())

    async def main(nodes: Nodes) -> None:
        node = nodes["a"]
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await brokers.send(node.broker, queue, [make_send("x")])
        before = {name: await shown(nodes[name]) for name in "abc"}
        for name, seen in before.items():
            labels = [labels for samples in seen.samples.values() for labels, _ in samples]
            assert all(own["node"] == name for own in labels), "every sample says whose it is"
            assert seen.sum("baton_cluster_nodes") == 3
        assert sum(seen.sum("baton_queue_messages", {"queue": "orders"}) for seen in before.values()) == 1
        assert sum(seen.sum("baton_shard_up") for seen in before.values()) == 3
        owner = nodes.owner(queue.shard)
        assert owner is not None
        follower = nodes[next(name for name in "abc" if name != owner.settings.node)]
        shard = {"shard": str(queue.shard)}
        assert (await shown(follower)).sum("baton_follower_lag_frames", shard) == 0
        follower._owned[queue.shard].follower.heard_s = follower._loop.time() - 5
        told = await owner._tell_cluster({})

        async def ahead(arguments: dict[str, Any]) -> Told:
            positions = {shard: Position(state, end + 2) for shard, (state, end) in told.positions.items()}
            return Told(positions=positions)

        owner.everywhere.provide("cluster", ahead)
        behind = await shown(follower)
        assert behind.sum("baton_follower_lag_frames", shard) == 2
        assert behind.sum("baton_follower_lag_seconds", shard) == pytest.approx(5, abs=1)
        log = owner.keeper(queue.shard).host().log
        assert isinstance(log, MirroredLog)
        log.replica_lags = (("nats-2", 0), ("nats-3", 7))
        lag = (await shown(owner)).samples["baton_replica_lag_frames"]
        assert [(labels["replica"], value) for labels, value in lag if labels["shard"] == shard["shard"]] == [
            ("nats-2", 0),
            ("nats-3", 7),
        ]
        changes = (await shown(follower)).sum("baton_ownership_changes_total", shard)
        await owner.ownership_loop.move(queue.shard, follower.settings.node)
        await nodes.until(lambda: nodes.owner(queue.shard) is follower)
        await nodes.until(lambda: follower.ownership_loop.moves.counts.get(queue.shard, 0) > changes)
        assert (await shown(follower)).sum("baton_ownership_changes_total", shard) == changes + 1

    run_nodes(tmp_path, main, "a", "b", "c")
