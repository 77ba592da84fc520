"""Several processes of one server, from within: the catalog that is followed, and shards whose process is away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from batonq.core.commands import Accepted
from batonq.errors import InvalidInput, LogError, Unavailable
from batonq.log.interface import Lease
from batonq.log.layout import CATALOG_SHARD
from batonq.log.ownership import LockFileOwnership, SharedDirectory
from batonq.node.processes.place import Place, ToldOwners
from batonq.node.settings import Settings
from tests.node.nodes import make_send
from tests.node.stage import Shown
from tests.processes.server import Processes
from tests.support import brokers

ACCOUNT = "000000000000"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"processes": 0}, "1 to 64"),
        ({"processes": 65, "shards": 65}, "1 to 64"),
        ({"processes": 3, "shards": 2}, "--shards 3"),
        ({"processes": 2, "shards": 2, "log_url": "nats://127.0.0.1/baton"}, "Start several nodes instead"),
        ({"processes": 2, "shards": 2, "advertise": "http://127.0.0.1:9324"}, "Start several nodes instead"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Settings(**given).check()  # type: ignore[arg-type]


def run(tmp_path: Path, work: Callable[[Processes], Coroutine[Any, Any, None]]) -> None:
    """With two processes that are up."""

    async def main() -> None:
        processes = Processes(Settings(data=str(tmp_path), processes=2, shards=2))
        await processes.start(0, 1)
        try:
            await work(processes)
        finally:
            await processes.stop()

    asyncio.run(main())


def test_each_shard_has_one_process_and_the_catalog_is_in_the_first() -> None:
    places = [Place("data", number, 3) for number in range(3)]
    assert [[shard for shard in range(7) if place.has(shard)] for place in places] == [[0, 3, 6], [1, 4], [2, 5]]
    assert [place.has(CATALOG_SHARD) for place in places] == [True, False, False]
    owners = ToldOwners(places[0])
    assert owners.owner(1) is None
    owners.tell({0: 1, 1: 5})
    assert owners.owner(4) == Lease(4, "p1", places[1].address, 5) and owners.owner(2) is None
    assert owners.others() == {1: places[1].address}


def test_epochs_rise_whoever_takes_them(tmp_path: Path) -> None:
    parent = LockFileOwnership(str(tmp_path))
    with pytest.raises(LogError, match="no server has used it yet"):
        SharedDirectory(str(tmp_path)).take()
    parent.take()
    children = [SharedDirectory(str(tmp_path)) for _ in range(2)]
    for child in children:
        child.take()
        assert child.cluster == parent.cluster

    async def main() -> None:
        given = [await children[at % 2].acquire(at % 2) for at in range(6)]
        assert given == sorted(set(given))
        assert await children[0].acquire(0, above=1_000) > 1_000

    asyncio.run(main())
    parent.close()


def test_a_process_that_is_away_keeps_nobody_from_other_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(processes: Processes) -> None:
        node = processes.nodes[0]
        broker = node.broker
        here, there = [await broker.create_queue(ACCOUNT, name, {}, {}) for name in ("even", "odd")]
        wide = await broker.create_queue(ACCOUNT, "wide", {"Baton.Spread": "2"}, {})
        assert (here.shard, there.shard) == (0, 1)
        monkeypatch.setattr("batonq.node.cluster.routing.OWNER_WAIT_S", 0.2)
        await processes.end(1)
        for queue in (here, wide):
            (sent,) = await brokers.send(broker, queue, [make_send("x")], first_try=True)
            assert isinstance(sent, Accepted)
        with pytest.raises(Unavailable):
            await brokers.send(broker, there, [make_send("x")])
        assert [shard.state for shard in (await node.overview()).shards] == ["serving", "stopped"]
        assert node.not_ready() == "", "clients need not go elsewhere"
        monkeypatch.setattr("batonq.node.cluster.routing.OWNER_WAIT_S", 30)
        waiting = asyncio.create_task(brokers.send(broker, there, [make_send("x")]))
        await processes.start(1)
        assert isinstance((await waiting)[0], Accepted), "it had waited for the process"

    run(tmp_path, main)


def test_commands_are_forwarded_to_the_process_that_has_the_shard(tmp_path: Path) -> None:
    async def main(processes: Processes) -> None:
        broker = processes.nodes[0].broker
        here, there = [await broker.create_queue(ACCOUNT, name, {}, {}) for name in ("even", "odd")]
        assert broker.serves(here.shard) and not broker.serves(there.shard)
        sends = [make_send("a"), make_send("b")]
        sent = await brokers.send(broker, there, sends, "a request")
        again = await brokers.send(broker, there, sends, "a request")
        expected = [one._replace(duplicate=True) for one in sent if isinstance(one, Accepted)]
        assert again == expected and len(expected) == 2, "the same request makes no second message"
        found = await brokers.receive(broker, there, 10, None, 0, "tester", "")
        assert [(delivery.message_id, delivery.body) for delivery in found] == [
            (one.message_id, send.body) for one, send in zip(sent, sends, strict=True) if isinstance(one, Accepted)
        ]
        assert await brokers.delete(broker, there, [delivery.receipt for delivery in found]) == [None, None]
        counters = await broker.counters(there)
        assert (counters.sent, counters.received, counters.deleted) == (2, 2, 2)

    run(tmp_path, main)


def test_a_change_waits_for_those_that_follow_and_not_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(processes: Processes) -> None:
        for at in range(20):
            queue = await processes.nodes[at % 2].broker.create_queue(ACCOUNT, f"queue-{at}", {}, {})
            assert processes.nodes[1 - at % 2].broker.queue_by_number(queue.number) is not None
        monkeypatch.setattr("batonq.node.processes.catalog.TOLD_S", 0.05)
        tailing = processes.nodes[1].catalog._tailing
        assert tailing is not None
        tailing.cancel()  # it follows no more
        queue = await processes.nodes[0].broker.create_queue(ACCOUNT, "unseen", {}, {})
        assert queue.shard == 0, "of the first process, which knows it"

    run(tmp_path, main)


def test_a_catalog_that_does_not_fit_is_read_anew(tmp_path: Path) -> None:
    async def main(processes: Processes) -> None:
        broker = processes.nodes[0].broker
        first, second = (processes.nodes[number].catalog for number in (0, 1))
        queue = await broker.create_queue(ACCOUNT, "queue", {}, {})
        before = second.replica()
        assert second._chain is not None
        second._chain.digest = bytes(16)  # so the next frame does not follow what it has
        await broker.set_tags(queue, {"a": "b"}, [])
        await asyncio.wait_for(second.reached(first.current().version), 20)
        assert second.replica() is not before
        assert processes.nodes[1].broker.queue(ACCOUNT, "queue").tags == {"a": "b"}

    run(tmp_path, main)


def test_metrics_cover_all_processes_and_say_whose_they_are(tmp_path: Path) -> None:
    async def main(processes: Processes) -> None:
        broker = processes.nodes[0].broker
        for name, count in (("even", 1), ("odd", 2)):
            queue = await broker.create_queue(ACCOUNT, name, {}, {})
            await brokers.send(broker, queue, [make_send("x")] * count)
            found = await brokers.receive(broker, queue, 1, None, 0, "tester")
            await brokers.delete(broker, queue, [delivery.receipt for delivery in found])
            await brokers.receive(broker, queue, 10, 0, 0, "tester")
            if name == "even":
                await brokers.receive(broker, queue, 10, 0, 0, "tester")
        for node in processes.nodes.values():
            shown = Shown((await node.metrics.text()).decode())
            assert shown.sum("baton_queue_deleted_total", {"queue": "odd"}) == 1
            assert shown.sum("baton_queue_wait_seconds_count") == 3, "of both processes"
            assert shown.sum("baton_queue_empty_receives_total", {"queue": "even"}) == 2
            assert shown.sum("baton_shard_up") == 2
            for name, samples in shown.samples.items():
                processes_told = {labels.get("process") for labels, _ in samples}
                per_process = name.startswith(("process_", "python_", "baton_limit", "baton_event_loop", "baton_disk"))
                assert processes_told == ({"p0", "p1"} if per_process else processes_told), name
                if {"queue", "shard"} & samples[0][0].keys():
                    assert processes_told == {None}, name

    run(tmp_path, main)


def test_any_process_shows_the_whole_server(tmp_path: Path) -> None:
    async def main(processes: Processes) -> None:
        node = processes.nodes[1]
        queues = [await node.broker.create_queue(ACCOUNT, name, {}, {}) for name in ("even", "odd")]
        wide = await node.broker.create_queue(ACCOUNT, "wide", {"Baton.Spread": "2"}, {})
        for queue in (*queues, wide):
            await brokers.send(node.broker, queue, [make_send("x"), make_send("y")], first_try=True)
        overview = await node.overview()
        assert [(queue.name, queue.counters.visible, queue.shards) for queue in overview.queues] == [
            ("even", 2, 1),
            ("odd", 2, 1),
            ("wide", 2, 2),
        ]
        assert overview.missing == 0 and [shard.owner for shard in overview.shards] == ["p0", "p1"]
        assert [(told.name, told.problem) for told in overview.nodes] == [("p1", ""), ("p0", "")]
        await processes.end(1)
        overview = await processes.nodes[0].overview()
        assert overview.missing == 2, "the odd one, and half of the wide one"
        assert [queue.name for queue in overview.queues] == ["even", "wide"]
        assert overview.nodes[1].name == "p1" and "may be restarting" in overview.nodes[1].problem
        assert (await processes.nodes[0].broker.history.listed(False)).unavailable == [1]

    run(tmp_path, main)
