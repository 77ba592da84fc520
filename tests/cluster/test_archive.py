"""An archive of a cluster: each shard's owner writes it, and owners that come after each other leave one history."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from batonq.core.commands import Accepted
from batonq.core.records import Type
from batonq.errors import LogCorrupt
from batonq.log.file_log import FileLogSettings
from batonq.log.frames import NO_DIGEST, Frame
from batonq.log.intake import MirrorSettings
from batonq.log.interface import Log
from batonq.log.layout import log_directory
from batonq.log.ownership import MirrorDirectory
from batonq.log.replicated_log import MirroredLog
from batonq.node.broker import Queue
from batonq.node.cluster.keeper import ClusterKeeper
from batonq.node.cluster.node import ClusterNode
from batonq.node.shard_host.archiving import ArchiveProcess
from batonq.pipeline.reading.archive import Archive, Manifest
from batonq.pipeline.reading.archiver import archive_shard
from tests.cluster.memory import Nodes, run_nodes
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers
from tests.support.far_log import FarLog, MemoryBackend
from tests.support.logs import CLUSTER, make_frame

PIECE_BYTES = 20_000
SEGMENT_BYTES = 64 << 10
BODY = "x" * 2_000


def of(node: ClusterNode, queue: Queue) -> Log:
    return cast(ClusterKeeper, node.shards[queue.shard]).reading()[1]


def test_owners_that_follow_each_other_leave_one_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = Archive.at(f"file://{tmp_path}/archive")

    async def copy(self: ArchiveProcess, shard: int) -> tuple[int, str]:
        """What the child process does, in this one: its time would not be the simulated one."""
        return archive_shard(self._data_directory, shard, archive, self._segment_bytes), ""

    monkeypatch.setattr(ArchiveProcess, "copy", copy)

    async def main(nodes: Nodes) -> None:
        queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
        sent: list[int] = []

        async def fill(node: ClusterNode, until: int) -> None:
            """Until the archive has this much, and more is in the log."""
            while not (firsts := archive.firsts(queue.shard)) or archive.manifest(queue.shard, firsts[-1]).last < until:
                (accepted,) = await brokers.send(node.broker, queue, [make_send(BODY)])
                assert isinstance(accepted, Accepted)
                sent.append(accepted.sequence)
                (found,) = await brokers.receive(node.broker, queue, 1, None, 0, "tester")
                assert await brokers.delete(node.broker, queue, [found.receipt]) == [None]
                await asyncio.sleep(0.01)

        first = await nodes.owned(queue.shard)
        await fill(first, 40)
        second = next(node for node in nodes.hub.nodes.values() if node is not first)
        await first.ownership_loop.move(queue.shard, second.settings.node)
        await fill(second, of(second, queue).next + 40)
        await nodes.crash(second.settings.node)
        third = await nodes.owned(queue.shard)
        await fill(third, of(third, queue).next + 40)
        log = of(third, queue)
        await nodes.until(lambda: log.first > 1)  # what is archived may go
        frames = list(archive.frames(queue.shard, 1))
        frames += list(log.frames(frames[-1].number + 1))
        assert [frame.number for frame in frames] == list(range(1, log.next)), "no hole, and nothing twice"
        assert len({frame.epoch for frame in frames}) == 3
        assert sequences(frames) == sent

    run_nodes(
        tmp_path,
        main,
        *("a", "b", "c"),
        archive=archive.store.url,
        segment_bytes=SEGMENT_BYTES,
        history_bytes=0,
        history_hours=0.0,
        maintenance_every_s=0.05,
        shards=1,
    )


def sequences(frames: list[Frame]) -> list[int]:
    found = []
    for frame in frames:
        words = frame.words()
        found += [words[at + 1] for at in range(0, len(words), 8) if words[at] & 0xFF == Type.SENT]
    return found


class Mirrors:
    """A log, and nodes' mirrors of it, each with its segments cut in its own way."""

    def __init__(self, directory: Path, content: bytes = b"x") -> None:
        self.far = FarLog(0)
        self._content = content
        self._directory = directory
        self._digest = NO_DIGEST

    def grow(self, count: int) -> None:
        for _ in range(count):
            size = 100 + 397 * self.far.next % 3_000
            frame = make_frame(self.far.next, self._digest, variable=self._content * size)
            self.far.append(frame.number, b"".join((frame.header, frame.rows, frame.variable)))
            self._digest = frame.digest

    def read(self, name: str, segment_bytes: int) -> str:
        """What a node with a mirror of this name has read by now; gives its data directory."""

        async def run() -> None:
            files = FileLogSettings(segment_bytes=segment_bytes, prewrite=False)
            log = await MirroredLog.open(
                MemoryBackend(self.far),
                log_directory(data, 0),
                cluster=CLUSTER,
                settings=MirrorSettings(files=files),
            )
            log.close()
            await log.wait_closed()

        data = str(self._directory / name)
        directory = MirrorDirectory(data, cluster=CLUSTER, where="a log in memory")
        directory.take()
        asyncio.run(run())
        directory.close()
        return data


def pieces(archive: Archive) -> list[tuple[int, int]]:
    return [(manifest.first, manifest.last) for manifest in archive.manifests(0)]


def test_mirrors_that_are_cut_elsewhere_give_the_same_pieces(tmp_path: Path) -> None:
    mirrors = Mirrors(tmp_path)
    archives = [Archive.at(f"file://{tmp_path}/{name}") for name in ("alone", "taking turns")]
    sizes = {"a": 9_000, "b": 14_000, "c": 30_000}
    for turn in range(9):
        mirrors.grow(20)
        name = "abc"[turn % 3]
        archive_shard(mirrors.read(name, sizes[name]), 0, archives[1], PIECE_BYTES)
    done = archive_shard(mirrors.read("a", sizes["a"]), 0, archives[0], PIECE_BYTES)
    assert archive_shard(mirrors.read("a", sizes["a"]), 0, archives[1], PIECE_BYTES) == done
    assert pieces(archives[0]) == pieces(archives[1]) and len(pieces(archives[0])) > 5
    for archive in archives:
        assert [frame.number for frame in archive.frames(0, 1)] == list(range(1, done))


def test_of_two_that_copy_at_once_the_first_ones_piece_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrors = Mirrors(tmp_path)
    mirrors.grow(100)
    asleep, awake = mirrors.read("asleep", 9_000), mirrors.read("awake", 14_000)
    archive = Archive.at(f"file://{tmp_path}/archive")
    write = Archive.write_new
    written: list[bool] = []

    def sleepy(self: Archive, manifest: Manifest, data: bytes) -> bool:
        """Before the first piece is written, another owner writes several, cut in another way."""
        if not written:
            monkeypatch.setattr(Archive, "write_new", write)
            archive_shard(awake, 0, archive, PIECE_BYTES // 2)
            monkeypatch.setattr(Archive, "write_new", sleepy)
        written.append(write(self, manifest, data))
        return written[-1]

    monkeypatch.setattr(Archive, "write_new", sleepy)
    archive_shard(asleep, 0, archive, PIECE_BYTES)
    assert written[0] is False, "what is there is not written over"
    found = pieces(archive)
    assert all(after[0] == before[1] + 1 for before, after in pairwise(found))
    assert [frame.number for frame in archive.frames(0, 1)] == list(range(1, found[-1][1] + 1))


def test_an_archive_of_another_history_is_left_alone(tmp_path: Path) -> None:
    archive = Archive.at(f"file://{tmp_path}/archive")
    mirrors, others = Mirrors(tmp_path / "ours"), Mirrors(tmp_path / "theirs", b"y")
    mirrors.grow(40)
    archive_shard(mirrors.read("a", 9_000), 0, archive, PIECE_BYTES)
    before = pieces(archive)
    others.grow(100)
    with pytest.raises(LogCorrupt, match="has other frames than the log"):
        archive_shard(others.read("a", 9_000), 0, archive, PIECE_BYTES)
    assert pieces(archive) == before
