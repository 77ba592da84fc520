"""A short form of `make campaign`: two faults on a real cluster with a proxy on its links; and the proxy itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from campaign.cluster import Cluster
from campaign.proxy import Door, Proxy
from campaign.rounds import Pace, Report, Rounds, summary
from tests.support.ports import reserve_port

SEED = 1
PACE = Pace(scale=0.5, quiet_s=1.0, after_s=1.0)


def test_an_owner_that_is_stopped_or_cut_off_under_load_costs_nobody_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("campaign.cluster.free_port", reserve_port)

    async def main() -> None:
        async with Cluster(tmp_path, lease_s=2.0) as cluster:
            rounds = Rounds(cluster, SEED, tmp_path, PACE)
            for fault in ("stop-owner", "cut-out"):
                report = await rounds.run(fault)
                assert not report.violations, report.line()
                assert report.sent and report.delivered and report.stored
                assert all(report.fanout[name] for name in ("published", "firings", "replayed", "commits"))

    asyncio.run(main())


@pytest.mark.parametrize("reset", [False, True])
def test_a_link_is_cut_in_one_direction_and_what_was_sent_comes_late(reset: bool) -> None:
    async def main() -> None:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(100):
                writer.write(data)
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        target = server.sockets[0].getsockname()[1]
        proxy = Proxy([Door("there", "127.0.0.1", "127.0.0.1", target, "here")], {})
        (port,) = await proxy.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        proxy.links.cut([["there", "here"]])
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(3), 0.2)
        late, later = await asyncio.open_connection("127.0.0.1", port)
        if reset:
            writer.transport.abort()
        proxy.links.heal()
        if not reset:
            assert await reader.readexactly(3) == b"two"
        assert await late.read() == b"", "a connection that was begun over a cut link leads nowhere"
        for each in (writer, later):
            each.close()
            await asyncio.gather(each.wait_closed(), return_exceptions=True)
        await proxy.close()
        server.close()

    asyncio.run(main())


def test_all_rounds_of_a_fault_are_summed_up() -> None:
    slow = Report(1, "kill-owner", "", away_s={0: 5.0, 1: 6.0}, quiet_ms=[10.0] * 99, others_ms=[12.0] * 99)
    quick = Report(2, "kill-owner", "", away_s={2: 4.0}, quiet_ms=[10.0] * 99, others_ms=[12.0] * 97 + [50.0] * 2)
    told = [line.split() for line in summary([slow, Report(3, "clock", ""), quick])]
    assert told[1:] == [
        ["kill-owner", "2", "5.0", "s", "6.0", "s", "50", "ms", "10", "ms", "5.0"],
        ["clock", "1", "none", "none", "-", "-", "-"],
    ]
