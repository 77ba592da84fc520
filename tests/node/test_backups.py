"""The point of a backup: consistent between shards and processes, and the logs' fronts are kept while it is read."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from batonq.core.records import Type
from batonq.errors import BatonError, InvalidInput, LogCorrupt, NotFound, OverLimit, Unavailable
from batonq.log.backup_files import Backup as BackupFiles
from batonq.log.backup_files import BackupLog, LogWriter, Manifest, make_tar, restore, write_manifest
from batonq.log.frames import Frame
from batonq.log.interface import Log, Room
from batonq.log.layout import CATALOG_SHARD
from batonq.node.backup.backups import Point
from batonq.node.backup.front_holds import HOLDS_MAX, IDLE_S, LIFE_S, FrontHolds
from batonq.node.backup.state_check import StateCheck
from batonq.node.node import Node
from tests.node.nodes import ACCOUNT, SEGMENT_BYTES, drain, open_node, receive, send
from tests.node.support import VirtualLoop, run_virtual, until
from tests.node.test_channels import fail_all, make_pair, settled
from tests.node.test_maintenance import churn

# --- the fronts of logs --------------------------------------------------------------------------


def fake_log(shard: int = 0, *, room: Room = Room.PLENTY, first: int = 1) -> Log:
    return cast(Log, SimpleNamespace(shard=shard, first=first, room=lambda: room, droppable=lambda before: before))


def test_a_hold_keeps_a_front_until_it_is_released_or_forgotten() -> None:
    now = [100.0]
    holds = FrontHolds(lambda: now[0])
    holds.hold("a", {0: (5, 9)})
    holds.hold("b", {0: (7, 9), 1: (2, 3)})
    assert [holds.limit(fake_log(), until) for until in (3, 6, 20)] == [3, 5, 5]
    assert holds.limit(fake_log(1), 20) == 2 and holds.limit(fake_log(2), 20) == 20
    assert holds.release("a") and not holds.release("a") and holds.limit(fake_log(), 20) == 7
    now[0] += IDLE_S - 1
    holds.used(0, 8)
    now[0] += IDLE_S - 1
    holds.used(0, 9)  # after its end: somebody who only follows the log
    assert holds.knows("b")
    now[0] += 2
    assert not holds.knows("b") and holds.limit(fake_log(), 20) == 20


def test_a_hold_ends_after_a_day_and_does_not_count_on_a_full_disk() -> None:
    now = [0.0]
    holds = FrontHolds(lambda: now[0])
    holds.hold("a", {0: (5, 9)})
    assert holds.limit(fake_log(room=Room.RESERVE), 20) == 20
    while now[0] < LIFE_S:
        now[0] += IDLE_S / 2
        holds.used(0, 5)
        assert holds.knows("a") == (now[0] <= LIFE_S)
    now[0] += 1
    assert not holds.knows("a")


def test_few_backups_at_a_time() -> None:
    holds = FrontHolds(lambda: 0.0)
    for number in range(HOLDS_MAX):
        holds.hold(str(number), {0: (1, 2)})
    holds.hold("0", {1: (1, 2)})
    with pytest.raises(OverLimit, match="4 backups are in progress"):
        holds.hold("one more", {0: (1, 2)})


def test_the_log_is_not_shortened_while_a_backup_reads_it(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, history_bytes=SEGMENT_BYTES)
        await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        random = Random(1)
        await churn(node, random, 40)
        point = await node.backups.create()
        for _ in range(3):
            await churn(node, random, 40)
            await node.maintenance.step()
        assert node.shards[0].host().log.first == point.shards[0].first == 1
        await node.backups.finish(point.backup)
        await node.maintenance.step()
        assert node.shards[0].host().log.first > 1
        with pytest.raises(NotFound, match="is not in progress"):
            await node.backups.finish(point.backup)
        await node.stop()

    run_virtual(main)


# --- a point that fits together -----------------------------------------------------------------


def frames_of(node: Node, shard: int) -> list[Frame]:
    log = node.catalog.log_here() if shard == CATALOG_SHARD else node.shards[shard].host().log
    assert log is not None
    return list(log.frames(log.first))


def checked(node: Node, stops: dict[int, int]) -> StateCheck:
    """Replay the logs up to these frames; the whole log where none is named."""
    check = StateCheck()
    for shard in (*range(len(node.shards)), CATALOG_SHARD):
        frames = [frame for frame in frames_of(node, shard) if frame.number < stops.get(shard, 1 << 40)]
        log = BackupLog(shard, 1, 0, "")
        for frame in frames:
            check(log, frame)
    return check


def first_with(frames: Iterable[Frame], kind: Type) -> int:
    return next(frame.number for frame in frames if kind in {word & 0xFF for word in frame.words()[::8]})


def test_a_cut_that_loses_or_doubles_a_message_is_noticed(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        queue, dead = await make_pair(node)
        await send(node, queue, "moved")
        await fail_all(node, queue, 1)
        owed, arrived = (
            first_with(frames_of(node, queue.shard), Type.OWED),
            first_with(frames_of(node, dead.shard), Type.ARRIVED),
        )
        assert checked(node, {}).result().messages == 1
        assert checked(node, {queue.shard: owed, dead.shard: arrived}).result().messages == 1
        on_its_way = first_with(frames_of(node, queue.shard), Type.SETTLED)
        assert checked(node, {queue.shard: on_its_way}).result().messages == 1, "it is in both logs, and counted once"
        with pytest.raises(LogCorrupt, match="Messages were lost between shard"):
            checked(node, {dead.shard: arrived}).result()
        with pytest.raises(LogCorrupt, match="Messages were doubled between shard"):
            checked(node, {queue.shard: owed}).result()
        with pytest.raises(LogCorrupt, match="knows version"):
            checked(node, {CATALOG_SHARD: 3}).result()
        await node.stop()

    run_virtual(main)


def save(node: Node, point: Point, directory: Path) -> BackupFiles:
    """What `baton backup` does, without the network."""
    directory.mkdir()
    logs = []
    for cut in (*point.shards, point.catalog):
        writer = LogWriter(str(directory), BackupLog(cut.shard, cut.first, cut.next, cut.digest), point.cluster)
        for frame in frames_of(node, cut.shard):  # also those that were committed after the point
            writer.write(frame.header + frame.rows + frame.variable)
        logs.append(writer.finish())
    write_manifest(str(directory), Manifest(point.at_ms, "test", f"{point.cluster:016x}", ACCOUNT, tuple(logs)))
    return BackupFiles(str(directory))


@pytest.mark.parametrize("seed", range(6))
def test_at_any_moment_of_a_move_the_cut_fits_together(tmp_path: Path, seed: int) -> None:
    """Points are taken between the steps of many moves; each has every message once."""

    async def main(loop: VirtualLoop) -> None:
        random = Random(seed)
        node = await open_node(loop, tmp_path / "data", shards=2, seed=seed)
        queue, dead = await make_pair(node)
        count, transit = 0, 0
        for number in range(12):
            texts = [f"{number}-{one}" for one in range(random.randrange(1, 9))]
            await send(node, queue, *texts)
            count += len(texts)
            moving = loop.create_task(fail_all(node, queue, len(texts)))
            shard = node.shards[queue.shard].host().shard
            while not shard.unsettled() and not moving.done():  # noqa: ASYNC110 - turn by turn
                await asyncio.sleep(0)
            for _ in range(random.randrange(4)):
                await asyncio.sleep(0)
            point = await node.backups.create()
            backup = save(node, point, tmp_path / f"backup-{number}")
            check = StateCheck()
            for log in backup.manifest.logs:
                for frame in backup.frames(log):
                    check(log, frame)
            assert check.result().messages == count
            transit += any(owed[2] for facts in check._facts.values() for owed in facts.owed.values())
            await node.backups.finish(point.backup)
            await moving
        assert transit, "some points were taken during a move"
        await settled(node)
        assert len(await drain(node, dead)) == count
        await node.stop()

    run_virtual(main)


# --- several processes ---------------------------------------------------------------------------


def test_a_pause_stops_deliveries_and_settling(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        queue, dead = await make_pair(node)
        channels = node._channels
        assert channels.pause("one") and channels.pause("one") and not channels.pause("two")
        await send(node, queue, "waits")
        for _ in range(3):
            await receive(node, queue, visibility_ms=0)
        await until(lambda: bool(node.shards[queue.shard].host().shard.unsettled()))
        await asyncio.sleep(5)
        assert (await node.broker.counters(dead)).arrived == 0
        assert not channels.resume("two") and channels.paused_for("one")
        assert channels.resume("one") and not channels.resume("one")
        await settled(node)
        assert (await node.broker.counters(dead)).arrived == 1
        assert channels.pause("three")
        await asyncio.sleep(25)  # whoever asked for it is gone
        assert not channels.paused_for("three")
        await node.stop()

    run_virtual(main)


class OtherProcess:
    """Answers like another process, and notes what it is asked."""

    def __init__(self, **answers: Any) -> None:
        self.asked: list[str] = []
        steps = {"pause": True, "cut": [], "catalog": None, "resume": True, "keep": True, "release": True}
        self._answers = {**steps, **answers}

    def names(self) -> list[str]:
        return ["p1"]

    async def ask(self, name: str, command: str, body: bytes, timeout_s: float) -> bytes:
        if command != "backup":
            raise Unavailable("It answers nothing else.")
        what, _, _, _ = msgspec.msgpack.decode(body)
        self.asked.append(what)
        answer = self._answers[what]
        if isinstance(answer, BatonError):
            raise answer
        return msgspec.msgpack.encode(answer)


def test_all_processes_pause_before_any_is_cut_and_the_catalog_comes_last(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        other = OtherProcess()
        node.everywhere.others = other
        point = await node.backups.create()
        assert other.asked == ["pause", "cut", "catalog", "resume"] and point.catalog.shard == CATALOG_SHARD
        assert not node._channels.paused_for(point.backup)
        await node.stop()

    run_virtual(main)


def test_all_processes_keep_their_parts_while_one_part_is_read(tmp_path: Path) -> None:
    """A large shard can take longer than the time after which a hold that nobody uses ends."""

    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        other = OtherProcess()
        node.everywhere.others = other
        await node.backups.create()
        del other.asked[:]
        for _ in range(10):
            await asyncio.sleep(IDLE_S / 5)
            node.front_holds.used(0, 1)  # as the history is read
            node.front_holds.used(0, 1)
            await asyncio.sleep(1)
        assert len(other.asked) == 10 and {*other.asked} == {"keep"}
        await node.stop()

    run_virtual(main)


def test_a_part_is_kept_while_another_process_is_read(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        point = await node.backups.create()
        for _ in range(10):
            await asyncio.sleep(IDLE_S / 5)
            assert await node.backups.here("keep", point.backup, 0, 0) is True
        await node.backups.finish(point.backup)
        assert await node.backups.here("keep", point.backup, 0, 0) is False
        await node.stop()

    run_virtual(main)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ({"pause": False}, "Another backup"),
        ({"pause": Unavailable("gone")}, "gone"),
        ({"cut": Unavailable("A process was restarted")}, "was restarted"),
        ({"resume": False}, "could not be stopped at one point"),
        ({"resume": Unavailable("gone")}, "could not be stopped at one point"),
    ],
)
def test_a_process_that_does_not_follow_makes_no_backup(tmp_path: Path, answers: dict[str, Any], said: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        node.everywhere.others = OtherProcess(**answers)
        with pytest.raises(Unavailable, match=said):
            await node.backups.create()
        assert not node.front_holds._holds, "nothing is kept for it"
        channels = node._channels
        assert channels.pause("next") and channels.resume("next"), "and deliveries go on"
        await node.stop()

    run_virtual(main)


def test_a_cluster_is_told_what_to_use_instead(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        object.__setattr__(node.settings, "advertise", "http://node:9324")
        with pytest.raises(InvalidInput, match="nats stream backup"):
            await node.backups.create()
        await node.stop()

    run_virtual(main)


def test_without_history_reads_there_is_no_backup(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, history_rate_bytes=0)
        with pytest.raises(InvalidInput, match="--history-rate-bytes 0"):
            await node.backups.create()
        await node.stop()

    run_virtual(main)


def test_a_shard_that_is_not_served_is_named(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path, shards=2)
        await node.shards[1].close()
        with pytest.raises(Unavailable, match="Shard 1 is not served"):
            await node.backups.create()
        await node.stop()

    run_virtual(main)


# --- the files ------------------------------------------------------------------------------------


def test_a_backup_that_was_changed_is_not_restored(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path / "data")
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await send(node, queue, *(f"message {number}" for number in range(20)))
        save(node, await node.backups.create(), tmp_path / "saved").__exit__()
        await node.stop()

    run_virtual(main)
    path = tmp_path / "saved" / "shard-0000.frames"
    whole, manifest = path.read_bytes(), (tmp_path / "saved" / "backup.json").read_text()

    def read() -> None:
        with BackupFiles(str(tmp_path / "saved")) as backup:
            for log in backup.manifest.logs:
                for _ in backup.frames(log):
                    pass

    read()
    for at in range(0, len(whole), max(1, len(whole) // 40)):
        path.write_bytes(whole[:at] + bytes((whole[at] ^ 1,)) + whole[at + 1 :])
        with pytest.raises(LogCorrupt):
            read()
        path.write_bytes(whole[:at])
        with pytest.raises(LogCorrupt):
            read()
    path.write_bytes(whole)
    found = json.loads(manifest)
    wrongs: list[dict[str, Any]] = [{"format": "other"}, {"version": 2}, {"logs": []}, {"cluster": "x"}]
    for wrong in wrongs:
        (tmp_path / "saved" / "backup.json").write_text(json.dumps({**found, **wrong}))
        with pytest.raises(InvalidInput, match="backup"):
            read()
    found["logs"][0]["digest"] = "00" * 16
    (tmp_path / "saved" / "backup.json").write_text(json.dumps(found))
    with pytest.raises(LogCorrupt, match="another digest"):
        read()


def test_a_mount_point_is_refused_before_anything_is_restored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty volume is an empty directory, but it cannot be replaced by the restored one."""
    catalog = BackupLog(CATALOG_SHARD, 1, 1, "", 0, hashlib.sha256().hexdigest())
    (tmp_path / catalog.file).touch()
    write_manifest(str(tmp_path), Manifest(0, "1", "1", ACCOUNT, (catalog,)))
    volume = tmp_path / "volume"
    volume.mkdir()
    monkeypatch.setattr("os.path.ismount", lambda path: path == str(volume))
    with BackupFiles(str(tmp_path)) as backup:
        with pytest.raises(InvalidInput, match=r"is a mount point.*volume/data"):
            restore(backup, str(volume), now_ms=0)
        restore(backup, str(volume / "data"), now_ms=0)
    assert [each.name for each in volume.iterdir()] == ["data"]


def test_a_file_that_appears_meanwhile_is_not_replaced_or_removed(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "backup.json").write_text("{}")
    path = tmp_path / "backup.tar"
    path.write_text("another backup, which finished earlier")
    with pytest.raises(FileExistsError):
        make_tar(str(saved), str(path))
    assert path.read_text() == "another backup, which finished earlier"


def test_half_a_tar_file_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: object, *arguments: object, **named: object) -> None:
        raise KeyboardInterrupt

    saved = tmp_path / "saved"
    saved.mkdir()
    (saved / "backup.json").write_text("{}")
    monkeypatch.setattr("tarfile.TarFile.add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make_tar(str(saved), str(tmp_path / "backup.tar"))
    assert [each.name for each in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("shard", ["abcd/../../outside", 1.5, -1, True, None])
def test_a_manifest_cannot_name_a_place_outside(tmp_path: Path, shard: object) -> None:
    rest = {"first": 1, "next": 1, "digest": "", "bytes": 0, "sha256": hashlib.sha256().hexdigest()}
    logs = [{"shard": one, **rest} for one in (shard, CATALOG_SHARD)]
    manifest = {"format": "baton-backup", "version": 1, "at_ms": 1, "release": "1", "cluster": "1", "account": "1"}
    (tmp_path / "backup.json").write_text(json.dumps({**manifest, "logs": logs}))
    with pytest.raises(InvalidInput, match="a log has a number that is not one"):
        BackupFiles(str(tmp_path))
