"""Schedules of a server with several processes: any process manages all, and the owner of the shard fires."""

from __future__ import annotations

import asyncio
from pathlib import Path

from batonq.core.schedule import Schedule
from batonq.node.schedules.scheduled_message import ScheduledMessage
from batonq.node.schedules.timing import rate_timing
from batonq.node.settings import Settings
from tests.node.nodes import ACCOUNT
from tests.processes.server import Processes


def test_schedules_on_all_processes(tmp_path: Path) -> None:
    async def main() -> None:
        processes = Processes(Settings(data=str(tmp_path), processes=2, shards=2))
        await processes.start(0, 1)
        first, second = processes.nodes[0], processes.nodes[1]
        try:
            message, timing = ScheduledMessage(b"tick").text(), rate_timing(60_000, 0).text()
            for name in ("one", "two"):
                queue = await second.broker.create_queue(ACCOUNT, name, {}, {})
                schedule = Schedule(queue=queue.number, name="often", timing=timing, message=message, missed="all")
                await second.broker.schedules.create(queue, schedule)
            for node in (first, second):
                found, complete = await node.broker.schedules.of_account(ACCOUNT)
                assert complete and [one.queue.name for one in found] == ["one", "two"]
                assert {one.shard for one in found} == {0, 1}
            await first.advance_clock(150_000)
            for node in (first, second):
                for name in ("one", "two"):
                    queue = node.broker.queue(ACCOUNT, name)
                    assert (await node.broker.schedules.find(queue, "often")).schedule.fired == 2
                    assert (await node.broker.counters(queue)).visible == 2
            await processes.end(1)
            found, complete = await first.broker.schedules.of_account(ACCOUNT)
            assert not complete and len(found) == 1
        finally:
            await processes.stop()

    asyncio.run(main())
