"""The archive: sealed segments copied once and whole, whatever happens on the way, and checked when they are read."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from batonq.cli.main import main
from batonq.errors import InvalidInput, LogCorrupt, LogError, LogGap
from batonq.log import layout
from batonq.log.disk import RealDisk
from batonq.log.frames import Frame
from batonq.node.alarms.book import AlarmBook
from batonq.node.settings import Settings
from batonq.node.shard_host.archiving import Archiving
from batonq.pipeline.reading import archiver
from batonq.pipeline.reading.archive import Archive, describe
from batonq.pipeline.reading.archiver import archive_shard
from batonq.pipeline.reading.history import DirectoryHistory
from tests.pipeline.conftest import small
from tests.pipeline.test_served_history import work
from tests.rest.support import Rest
from tests.support.logs import append
from tests.support.memory_log import MemoryLog
from tests.support.server import ACCOUNT, TestServer


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A data directory with half a dozen sealed segments, at rest."""
    directory = tmp_path_factory.mktemp("archived") / "data"
    with TestServer(str(directory), segment_bytes=64 * 1024) as server:
        rest = Rest(server, ACCOUNT)
        queue = rest.create("jobs")
        while len(server.node.shards[0].host().log.segments()) < 6:
            work(rest, queue, 200)
        rest.close()
    return str(directory)


def sealed_stop(data: str) -> int:
    return layout.segments(RealDisk(), layout.log_directory(data, 0))[-1]


def digests(frames: Iterator[Frame]) -> list[bytes]:
    return [frame.digest for frame in frames]


def assert_whole(archive: Archive, data: str) -> None:
    stop = sealed_stop(data)
    assert digests(archive.frames(0, 1)) == digests(DirectoryHistory(data).frames(0, 1, stop))


def test_sealed_segments_in_a_directory(data: str, tmp_path: Path) -> None:
    archive = Archive.at(f"file://{tmp_path}/archive")
    assert archive_shard(data, 0, archive) == sealed_stop(data)
    assert_whole(archive, data)
    assert archive.shards() == [0]
    manifests = archive.manifests(0)
    assert [one.first for one in manifests[1:]] == [one.last + 1 for one in manifests[:-1]]
    assert [one.previous_digest for one in manifests[1:]] == [one.last_digest for one in manifests[:-1]]
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "archive").rglob("*") if path.is_file()}
    assert len(files) == 2 * len(manifests)
    assert archive_shard(data, 0, archive) == sealed_stop(data)
    assert {path: path.stat().st_mtime_ns for path in files} == files, "what is there is left alone"


@pytest.mark.usefixtures("in_s3")
def test_sealed_segments_in_an_object_store(data: str) -> None:
    archive = Archive.at("s3://history/some/prefix")
    assert archive.shards() == [] and archive.firsts(0) == []
    assert archive_shard(data, 0, archive) == sealed_stop(data)
    assert_whole(Archive.at("s3://history/some/prefix/"), data)
    assert archive_shard(data, 0, archive) == sealed_stop(data)
    with pytest.raises(LogError, match=r"s3://history/some/prefix/shard-0000/nothing does not exist"):
        archive.store.read("shard-0000/nothing")


@pytest.mark.usefixtures("in_s3")
def test_a_bucket_that_is_not_there(data: str) -> None:
    with pytest.raises(LogError, match=r"s3://missing/x/shard-0000 cannot be listed: .*NO_SUCH_BUCKET"):
        archive_shard(data, 0, Archive.at("s3://missing/x"))


KILLED = """
import os, sys
from batonq.pipeline.reading import stores
from batonq.pipeline.reading.archive import Archive
from batonq.pipeline.reading.archiver import archive_shard

real, left = stores.write_durably, int(sys.argv[3])

def write(path, data, replace=True):
    global left
    left -= 1
    if left < 0:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path + ".unfinished", "wb") as file:
            file.write(data[: len(data) // 2])
            file.flush()
            os.kill(os.getpid(), 9)
    return real(path, data, replace)

stores.write_durably = write
archive_shard(sys.argv[1], 0, Archive.at(sys.argv[2]))
"""


@pytest.mark.parametrize("writes", [0, 1, 2, 5])
def test_killed_in_the_middle_it_goes_on(data: str, tmp_path: Path, writes: int) -> None:
    """Before a segment, between a segment and its manifest, and later."""
    url = f"file://{tmp_path}/archive"
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(KILLED), data, url, str(writes)], check=False)
    assert ended.returncode == -9
    archive = Archive.at(url)
    assert len(archive.firsts(0)) == writes // 2
    list(archive.frames(0, 1))
    left = list((tmp_path / "archive").rglob("*.unfinished"))
    assert len(left) == 1
    os.utime(left[0], (0, 0))  # long ago
    assert archive_shard(data, 0, archive) == sealed_stop(data)
    assert_whole(archive, data)
    assert not left[0].exists()


@pytest.fixture
def archived(data: str, tmp_path: Path) -> tuple[Archive, Path]:
    archive = Archive.at(f"file://{tmp_path}/archive")
    archive_shard(data, 0, archive)
    return archive, tmp_path / "archive" / "shard-0000"


def test_damage_is_named(archived: tuple[Archive, Path]) -> None:
    archive, folder = archived
    path = sorted(folder.glob("segment-*"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(LogCorrupt, match=f"{path.name} is damaged: it does not match its checksum"):
        list(archive.frames(0, 1))
    path.write_bytes(bytes(data[:1000]))
    with pytest.raises(LogCorrupt, match=f"{path.name} has 1000 bytes, but its manifest says"):
        list(archive.frames(0, 1))
    path.unlink()
    with pytest.raises(LogError, match=f"{path.name} does not exist"):
        list(archive.frames(0, 1))
    second = archive.firsts(0)[1]
    assert len(list(archive.frames(0, 1, second))) == second - 1, "what comes before it can be read"


def test_a_damaged_manifest_is_named(archived: tuple[Archive, Path]) -> None:
    archive, folder = archived
    path = sorted(folder.glob("manifest-*"))[1]
    whole = path.read_text()
    for text, what in (
        ("{", "is damaged: it is not a manifest"),
        (json.dumps({"version": 1}), "'cluster' is missing"),
        (whole.replace('"version": 1', '"version": 2'), "has version 2, but this release supports 1"),
        (whole.replace('"shard": 0', '"shard": 3'), "belongs to shard 3"),
    ):
        path.write_text(text)
        with pytest.raises(LogCorrupt, match=f"{path.name}.*{what}"):
            list(archive.frames(0, 1))


def test_a_hole_is_a_gap(archived: tuple[Archive, Path]) -> None:
    archive, folder = archived
    manifests = archive.manifests(0)
    (folder / f"manifest-{manifests[2].first:020}.json").unlink()
    with pytest.raises(LogGap, match=f"Frames {manifests[2].first} to {manifests[2].last} of shard 0"):
        list(archive.frames(0, 1))
    with pytest.raises(LogGap, match=f"Frames {manifests[2].first} to"):
        list(archive.frames(0, manifests[2].first))
    assert next(archive.frames(0, manifests[3].first)).number == manifests[3].first


def test_one_archive_is_of_one_cluster(archived: tuple[Archive, Path], tmp_path: Path) -> None:
    archive, _ = archived
    with TestServer(str(tmp_path / "other"), segment_bytes=64 * 1024) as server:
        rest = Rest(server, ACCOUNT)
        work(rest, rest.create("jobs"), 50)
        rest.close()
    with pytest.raises(LogCorrupt, match="is the archive of cluster"):
        archive_shard(str(tmp_path / "other"), 0, archive)


def test_a_segment_that_was_opened_again_is_copied_again(data: str, archived: tuple[Archive, Path]) -> None:
    archive, folder = archived
    manifest = archive.manifests(0)[-1]
    frames = list(archive.frames(0, manifest.first, manifest.last))
    shorter = b"".join(part for frame in frames for part in (frame.header, frame.rows, frame.variable))
    (folder / f"manifest-{manifest.first:020}.json").unlink()
    archive.write(describe(shorter, 0, int(manifest.cluster, 16), manifest.first, "test"), shorter)
    assert archive_shard(data, 0, archive) == sealed_stop(data)
    assert_whole(archive, data)


def test_another_history_under_the_same_address_is_refused(data: str, archived: tuple[Archive, Path]) -> None:
    archive, folder = archived
    path = sorted(folder.glob("manifest-*"))[0]
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, "last_digest": "00" * 16}))
    with pytest.raises(LogCorrupt, match="has other frames than the log"):
        archive_shard(data, 0, archive)


@pytest.mark.parametrize("url", ["ftp://x/y", "s3://", "/srv/archive", "file://srv/archive"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(InvalidInput, match="file:///"):
        Archive.at(url)
    with pytest.raises(InvalidInput, match="file:///directory or s3://"):
        Settings(archive=url if not url.startswith("s3") else "s4://x").check()


def test_the_command_says_how_far_it_is(data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os_nice, os.nice = os.nice, lambda by: 0
    try:
        assert archiver.main([data, "0", f"file://{tmp_path}/archive"]) == 0
        assert capsys.readouterr().out == f"{sealed_stop(data)}\n"
        assert archiver.main([data, "0", "nowhere"]) == 1
        assert "The URL of an archive must be" in capsys.readouterr().err
    finally:
        os.nice = os_nice


# --- the node


def test_the_front_waits_for_the_archive(tmp_path: Path) -> None:
    """A server drops what no message needs, and nothing of it is missing from the archive."""
    url = f"file://{tmp_path}/archive"
    with small(tmp_path / "data", archive=url) as server:
        rest = Rest(server, ACCOUNT)
        queue = rest.create("jobs")
        log = server.node.shards[0].host().log
        while log.first == 1:
            work(rest, queue, 300)
            server.run(server.node.maintenance.step)
        for _ in range(5):
            work(rest, queue, 300)
        first = log.first
        rest.close()
    archive = Archive.at(url)
    assert [frame.number for frame in archive.frames(0, 1)][: first - 1] == list(range(1, first))


def segmented(frames: int) -> MemoryLog:
    log = MemoryLog(0, segment_bytes=4096)
    for _ in range(frames):
        append(log, bytes(300))
    return log


def board() -> AlarmBook:
    return AlarmBook(lambda: 0, 10)


def test_what_the_archive_does_not_have_stays_up_to_a_bound() -> None:
    log, alarms = segmented(60), board()
    wanted = log.segments()[2].first
    waits = Archiving(Settings(archive="file:///x"), alarms, lambda: 0)
    assert waits.until(log, wanted) == 1 and not alarms.active()
    waits.done[0] = log.segments()[1].first
    assert waits.until(log, wanted) == log.segments()[1].first
    waits.done[0] = log.segments()[2].first
    assert waits.until(log, wanted) == wanted
    bounded = Archiving(Settings(archive="file:///x", archive_backlog_bytes=1), alarms, lambda: 0)
    assert bounded.until(log, wanted) == wanted
    (alarm,) = alarms.active()
    assert f"deleted frames 1 to {wanted - 1} without having archived them" in alarm.text


def test_a_copy_that_fails_is_an_alarm_until_one_succeeds() -> None:
    async def play() -> None:
        log, alarms, now = segmented(60), board(), [0]
        answers = [(0, "no such bucket"), (log.segments()[-1].first, "")]

        async def copy(shard: int) -> tuple[int, str]:
            return answers.pop(0)

        archiving = Archiving(Settings(archive="s3://x"), alarms, lambda: now[0], copy)

        async def step() -> None:
            archiving.step(0, log)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

        await step()
        assert "cannot be archived to s3://x: no such bucket" in alarms.active()[0].text
        assert archiving.failures == {0: 1} and archiving.behind_bytes(log) > 0
        await step()
        assert len(answers) == 1, "it is not tried again at once"
        now[0] = 10_000
        await step()
        assert not alarms.active() and archiving.done == {0: log.segments()[-1].first}
        assert archiving.segments == {0: len(log.segments()) - 1} and archiving.behind_bytes(log) == 0
        await step()  # nothing new: there is no answer left to take
        await archiving.close()

    asyncio.run(play())


def test_a_server_needs_neither_numpy_nor_arrow() -> None:
    code = (
        "import sys, batonq, batonq.cli.serve, batonq.node.shard_host.archiving; "
        "print([name for name in ('numpy', 'pyarrow', 'fsspec', 'pandas', 'pyspark') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_command_that_looks_into_an_archive(
    archived: tuple[Archive, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    archive, folder = archived
    url = archive.store.url
    last = archive.manifests(0)[-1].last
    assert main(["log", "archive", url, "--verify"]) == 0
    assert f"shard 0: frames 1 to {last}, " in capsys.readouterr().out
    path = sorted(folder.glob("segment-*"))[1]
    path.write_bytes(path.read_bytes()[:-1])
    sorted(folder.glob("manifest-*"))[2].unlink()
    assert main(["log", "archive", url, "--verify", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert path.name in told["problems"][0] and "are missing" in told["problems"][1]
    assert main(["log", "archive", url, "--shard", "7"]) != 0
    assert "contains no shard 7" in capsys.readouterr().err
