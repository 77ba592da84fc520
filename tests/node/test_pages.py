"""What a node shows of itself: the metrics' form, events, readiness."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from batonq.core.commands import Counters
from batonq.errors import Unavailable
from batonq.node.alarms.verdict import judge
from batonq.node.clock import duration
from batonq.node.events import JsonFormatter, TextFormatter, TracebackLimit
from batonq.node.monitoring.overview import QueueReading, ShardReading
from batonq.node.operations.pages import Asked, Pages
from batonq.node.shard_host.group_commit import CommitStatistics
from tests.node.nodes import ACCOUNT, Faults, open_node, send
from tests.node.support import VirtualLoop, run_virtual

NOW_MS = 1_700_000_000_000


def counters(**given: int) -> Counters:
    return Counters(**{**dict.fromkeys(Counters._fields, 0), **given})


def queue(name: str, *, sla_seconds: int = 0, dead_letters: bool = False, **given: int) -> QueueReading:
    return QueueReading(ACCOUNT, name, False, 0, sla_seconds, dead_letters, 0, counters(**given))


def shard(state: str = "serving", room: str = "plenty") -> ShardReading:
    return ShardReading(0, state, "its disk is gone" if state != "serving" else "", 3, 4096, room, 1, statistics())


def statistics() -> CommitStatistics:
    made = CommitStatistics()
    made.frames, made.rows, made.bytes, made.seconds = 8, 80, 4096, 0.25
    return made


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0, "0.0 s"), (240, "0.2 s"), (45_000, "45 s"), (90_000, "1.5 min"), (7_200_000, "2 h"), (200_000_000, "2.3 d")],
)
def test_durations_are_short(ms: int, text: str) -> None:
    assert duration(ms) == text


# --- events -----------------------------------------------------------------------------------


def test_events_are_a_json_object_or_a_readable_line() -> None:
    record = logging.LogRecord("batonq", logging.WARNING, "", 0, "%s", ("the disk is full",), None)
    record.event, record.fields = "disk_full", {"shard": 3}
    said: dict[str, Any] = json.loads(JsonFormatter().format(record))
    assert (said["event"], said["level"], said["text"], said["shard"]) == (
        "disk_full",
        "warning",
        "the disk is full",
        3,
    )
    assert TextFormatter().format(record).endswith(" warning the disk is full shard=3")


def test_a_flood_of_tracebacks_is_cut_short_and_told() -> None:
    now_s = 100.0
    limit = TracebackLimit(3, lambda: now_s)

    def lines(count: int) -> list[str]:
        shown = []
        for _ in range(count):
            problem = ZeroDivisionError("a bug")
            seen = (type(problem), problem, None)
            record = logging.LogRecord("batonq", logging.ERROR, "", 0, "it failed", None, seen)
            if limit.filter(record):
                shown.append(TextFormatter().format(record).partition(" error   ")[2].partition("\n")[0])
        return shown

    assert lines(10) == ["it failed"] * 3
    now_s += 59
    assert lines(1) == []
    assert limit.filter(logging.LogRecord("batonq", logging.ERROR, "", 0, "without one", None, None))
    now_s += 1
    assert lines(10) == ["it failed left_out=8", "it failed", "it failed"]


# --- pages of a node --------------------------------------------------------------------------


def ask(path: str) -> Asked:
    return Asked("GET", path, "http://127.0.0.1:9324")


def test_readiness_follows_the_shards(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, faults=faults)
        pages = Pages(node)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, "a")
        assert (await pages.readyz(ask("/readyz"))).status == 200
        faults.planned[0] = ["refuse"]
        with pytest.raises(Unavailable, match="refused by the test"):
            await send(node, queue, "b")
        routes = {path: answer for path, _, answer in pages.routes}
        assert (await pages.readyz(ask("/readyz"))).status == (await routes["/health"](ask("/health"))).status == 503
        assert (await routes["/docs"](ask("/docs"))).headers == (("Location", "/v1/docs"),)
        assert (await pages.livez(ask("/livez"))).status == 200
        assert "shard 0 is stopped" in judge(await node.overview()).sentence
        assert b'baton_shard_up{shard="0"} 0\n' in (await pages.metrics(ask("/metrics"))).body
        node.stop_waiting()
        await node.stop()

    run_virtual(main)


def test_what_is_shown_is_committed(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, faults=faults)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, "a")
        assert (await node.overview()).queues[0].counters.visible == 1
        faults.planned[0] = ["hang"]
        sending = loop.create_task(send(node, queue, "never answered"))
        began_s = loop.time()
        shown = await node.overview()
        assert shown.queues[0].counters.visible == 1 and loop.time() - began_s < 3
        await node.stop()  # gives up after a while, and answers
        with pytest.raises(Unavailable):
            await sending

    run_virtual(main)
