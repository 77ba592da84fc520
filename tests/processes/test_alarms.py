"""Alarms of a server with several processes: the first one evaluates, all show them, and one that is away is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

from batonq.api.rest.status import status_of
from batonq.node.settings import Settings
from tests.node.nodes import ACCOUNT, make_send
from tests.processes.server import Processes
from tests.support import brokers

DEAD = {"RedrivePolicy": f'{{"maxReceiveCount":1,"deadLetterTargetArn":"arn:aws:sqs:us-east-1:{ACCOUNT}:dead"}}'}


def test_all_processes_show_the_alarms_that_the_first_one_raises(tmp_path: Path) -> None:
    async def main() -> None:
        settings = Settings(data=str(tmp_path), processes=2, shards=2, alarm_disk_share=0.9999)
        processes = Processes(settings)
        await processes.start(0, 1)
        first, second = processes.nodes[0], processes.nodes[1]
        try:
            dead = await second.broker.create_queue(ACCOUNT, "dead", {}, {})
            await second.broker.create_queue(ACCOUNT, "orders", DEAD, {})
            await brokers.send(second.broker, dead, [make_send("x")], first_try=True)
            for node in (first, second):
                await node.alarm_desk.evaluate()
            await first.advance_clock(60_000)
            for node in (first, second):
                await node.alarm_desk.evaluate()
            assert (first.alarms.evaluating, second.alarms.evaluating) == (True, False)
            for node in (first, second):
                assert [alarm.id for alarm in (await node.alarm_desk.listed(True)).active] == ["dead-letters.dead"]
                assert [alarm.id for alarm in (await node.overview()).alarms] == ["dead-letters.dead"]
            acknowledged = await second.alarm_desk.acknowledge("dead-letters.dead", "ann", "")
            assert acknowledged.acknowledged_by == first.alarms.ruled()[0].acknowledged_by == "ann"

            second.alarms.put("lease-store", "of the second process")
            listed = (await first.alarm_desk.listed(False)).active
            assert [(alarm.id, alarm.node) for alarm in listed if not alarm.ruled] == [("lease-store@p1", "p1")]

            status = status_of(await second.overview(), 0)
            assert [node.name for node in status.nodes] == ["p1", "p0"]
            assert {(shard.number, shard.owner) for shard in status.shards} == {(0, "p0"), (1, "p1")}
            view = await second.cluster_view()
            assert not view.clustered and view.catalog_owner == "p0" and [node.shards for node in view.nodes] == [1, 1]

            await processes.end(1)
            await first.alarm_desk.evaluate()
            await first.advance_clock(15_000)
            await first.alarm_desk.evaluate()
            assert "shard-unserved.1" in [alarm.id for alarm in first.alarms.active()]
        finally:
            await processes.stop()

    asyncio.run(main())
    assert sorted(path.name for path in tmp_path.glob("alarms*.json")) == ["alarms-p0.json", "alarms-p1.json"]
