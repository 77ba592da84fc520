"""One way to read history, wherever it lies: the same frames, the same errors."""

from __future__ import annotations

import http.server
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from batonq.core.catalog.machine import Catalog
from batonq.errors import AccessDenied, BatonError, InvalidInput, LogCorrupt, LogGap, NotFound, OverLimit, Unavailable
from batonq.log import layout
from batonq.log.cancellation import end
from batonq.log.disk import RealDisk
from batonq.log.frames import HEADER_BYTES, parse_header
from batonq.pipeline.events.names import Names, told_by
from batonq.pipeline.reading import history as history_module
from batonq.pipeline.reading import remote
from batonq.pipeline.reading.archive import Archive
from batonq.pipeline.reading.archiver import archive_shard
from batonq.pipeline.reading.history import DirectoryHistory, History, open_history
from batonq.pipeline.reading.remote import RemoteHistory
from batonq.pipeline.reading.stores import Store
from tests.pipeline.conftest import small
from tests.pipeline.history_support import stored
from tests.pipeline.support import assert_same
from tests.pipeline.test_served_history import work
from tests.rest.support import Rest
from tests.support.server import ACCOUNT, TestServer

KINDS = ("directory", "archive", "node")


class Place:
    """A running server, its data directory, and an archive of it whose front is dropped locally."""

    def __init__(self, server: TestServer, data: Path, archive: str) -> None:
        self.server = server
        self.data = data
        self.archive = archive

    def open(self, kind: str) -> History:
        return open_history({"directory": str(self.data), "archive": self.archive, "node": self.server.url}[kind])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("places")
    archive = f"file://{root}/archive"
    with small(root / "data", archive=archive, history_hours=1.0, history_bytes=200_000) as server:
        rest = Rest(server, ACCOUNT)
        queue = rest.create("jobs")
        log = server.node.shards[0].host().log
        while log.first == 1:
            work(rest, queue, 300)
            server.run(server.node.maintenance.step)
        rest.close()
        server.run(server.node.maintenance.step)  # notes what is committed

        async def end_upkeep() -> None:
            await end(server.node._upkeep)  # which would drop more of the front while it is read

        server.run(end_upkeep)
        archive_shard(str(root / "data"), 0, Archive.at(archive))
        yield Place(server, root / "data", archive)


@pytest.mark.parametrize("kind", KINDS)
def test_frames_in_order_from_any_position(place: Place, kind: str) -> None:
    history = place.open(kind)
    (span,) = history.shards()
    assert span.shard == 0 and span.first < span.next
    frames = list(history.frames(0, span.first))
    assert [frame.number for frame in frames] == list(range(span.first, span.next))
    middle = (span.first + span.next) // 2
    assert [frame.number for frame in history.frames(0, middle, middle + 2)] == [middle, middle + 1]
    assert list(history.frames(0, span.next)) == []
    assert_same(frames)


def test_all_places_have_the_same_frames(place: Place) -> None:
    local, kept, served = (place.open(kind) for kind in KINDS)
    first, stop = local.shards()[0].first, kept.shards()[0].next
    assert kept.shards()[0].first == 1 and first < stop
    expected = [frame.digest for frame in local.frames(0, first, stop)]
    assert [frame.digest for frame in kept.frames(0, first)] == expected
    assert [frame.digest for frame in served.frames(0, first, stop)] == expected
    (noted,), (known,) = local.shards(), served.shards()
    assert noted.first == known.first and noted.next <= known.next


@pytest.mark.parametrize("kind", ["directory", "node"])
def test_what_is_not_retained_is_a_gap(place: Place, kind: str) -> None:
    first = place.open(kind).shards()[0].first
    with pytest.raises(LogGap, match=f"the first retained frame is {first}"):
        place.open(kind).frames(0, first - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_no_such_shard(place: Place, kind: str) -> None:
    for shard in (9, layout.CATALOG_SHARD):
        with pytest.raises(NotFound, match=f"Shard {shard} does not exist"):
            place.open(kind).frames(shard, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_time_is_found_without_reading_the_frames_before(
    place: Place, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = place.open(kind)
    (span,) = history.shards()
    times = {frame.number: frame.time_ms for frame in history.frames(0, span.first)}
    middle = (span.first + span.next) // 2
    reads = count_reads(monkeypatch, kind)
    for time_ms in (0, times[span.first], times[middle] - 1, times[middle], times[middle] + 1, times[span.next - 1]):
        reads.clear()
        expected = next(number for number, found in times.items() if found >= time_ms)
        assert history.find_time(0, time_ms) == expected
        assert len(reads) <= 12 < len(times)
    assert history.find_time(0, times[span.next - 1] + 1) == span.next
    assert history.time_ms(0, middle) == times[middle]
    for number in (0, span.next):
        with pytest.raises((LogGap, InvalidInput)):
            history.time_ms(0, number)


def count_reads(monkeypatch: pytest.MonkeyPatch, kind: str) -> list[object]:
    """Grows with every request, object or whole frame that is read."""
    reads: list[object] = []
    owner, name = {
        "directory": (history_module, "read_frames"),
        "archive": (Store, "read"),
        "node": (RemoteHistory, "_get"),
    }[kind]
    original = getattr(owner, name)

    def counted(*given: object) -> object:
        reads.append(given)
        return original(*given)

    monkeypatch.setattr(owner, name, counted)
    return reads


def test_a_damaged_header_is_not_passed_over_by_a_search(place: Place, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(place.data, data)
    history = DirectoryHistory(str(data))
    (span,) = history.shards()
    log = Path(layout.log_directories(RealDisk(), str(data))[0])
    path = log / layout.segment_name(layout.segments(RealDisk(), str(log))[0])
    first = parse_header(path.read_bytes()[:HEADER_BYTES])
    with path.open("r+b") as file:
        file.seek(first.frame_bytes + 33)  # the number of the second frame
        file.write(b"\xff")
    with pytest.raises(LogCorrupt, match=f"{path}, offset {first.frame_bytes}: frame header does not match"):
        history.time_ms(0, span.first + 2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_names_that_were_told_before_a_frame(place: Place, kind: str) -> None:
    history = place.open(kind)
    span = history.shards()[0]
    names: Names = {}
    for frame in history.frames(0, span.first):
        names |= told_by(frame)
    assert "jobs" in {name.name for name in names.values()}
    assert history.names(0, span.next) == names
    if kind != "node":  # which says what it knows now
        assert history.names(0, span.first) == {}
        assert history.names(0, span.next) == names


def test_names_of_an_archive_whose_manifests_do_not_say_them(place: Place, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(place.archive.removeprefix("file://"), copy)
    for path in copy.glob("shard-*/manifest-*.json"):
        values = json.loads(path.read_text())
        assert "names" in values
        del values["names"]
        path.write_text(json.dumps(values))
    newer, older = open_history(place.archive), open_history(f"file://{copy}")
    end = newer.shards()[0].next
    for before in (1, 2, end // 2, end):
        assert older.names(0, before) == newer.names(0, before)
    assert newer.names(0, end)


@pytest.mark.parametrize("kind", KINDS)
def test_marks_are_where_parts_may_begin(place: Place, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PART_BYTES", 20_000)
    history = place.open(kind)
    span = history.shards()[0]
    marks = history.marks(0, span.first, span.next)
    assert marks and marks == sorted(set(marks)) and span.first < marks[0] and marks[-1] < span.next
    assert next(history.frames(0, marks[0])).number == marks[0]
    assert history.marks(0, marks[0], marks[0] + 1) == []


def test_small_pieces_over_http(place: Place) -> None:
    history = RemoteHistory(place.server.url, piece_bytes=1)
    span = history.shards()[0]
    stop = span.first + 5
    assert [frame.number for frame in history.frames(0, span.first, stop)] == list(range(span.first, stop))


def test_a_directory_shows_only_what_is_known_to_be_committed(tmp_path: Path) -> None:
    with TestServer(str(tmp_path / "data")) as server:
        rest = Rest(server, ACCOUNT)
        work(rest, rest.create("jobs"), 50)
        rest.close()
    history = DirectoryHistory(str(tmp_path / "data"))
    end = history.shards()[0].next
    assert len(list(history.frames(0, 1))) == end - 1
    note = Path(layout.log_directory(str(tmp_path / "data"), 0)) / layout.COMMITTED
    note.write_bytes(bytes(48))
    assert history.shards()[0].next == 1 and list(history.frames(0, 1)) == []


def test_damage_in_a_directory_is_named(tmp_path: Path) -> None:
    with TestServer(str(tmp_path / "data")) as server:
        rest = Rest(server, ACCOUNT)
        work(rest, rest.create("jobs"), 50)
        rest.close()
    directory = layout.log_directory(str(tmp_path / "data"), 0)
    path = Path(directory) / layout.segment_name(layout.segments(RealDisk(), directory)[0])
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(LogCorrupt, match=path.name):
        list(DirectoryHistory(str(tmp_path / "data")).frames(0, 1))


def test_places_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no log in"):
        open_history(str(tmp_path))
    with pytest.raises(InvalidInput, match="http://host:port"):
        open_history("http://127.0.0.1:1/v1")
    with pytest.raises(InvalidInput, match="The URL of an archive must be"):
        open_history("gopher://x")


def test_a_secured_node(tmp_path: Path) -> None:
    with TestServer(str(tmp_path / "data"), secure=True) as server:

        async def make() -> None:
            await server.node.catalog.change(Catalog.put_key, "OWN", "secret", ACCOUNT)

        server.run(make)
        history = open_history(server.url, access_key="OWN", secret_key="secret")
        assert next(history.frames(0, 1)).number == 1
        with pytest.raises(AccessDenied, match="/v1/history"):
            open_history(server.url, access_key="OWN", secret_key="wrong").shards()


# --- a node that is busy, away, or no node


class Told(http.server.BaseHTTPRequestHandler):
    answers: list[tuple[int, dict[str, str], bytes]] = []

    def do_GET(self) -> None:
        status, headers, body = self.answers.pop(0)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def told() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Told)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def problem(code: str, status: int, **headers: str) -> tuple[int, dict[str, str], bytes]:
    return status, headers, json.dumps({"code": code, "detail": "told"}).encode()


def test_a_refusal_for_the_rate_is_waited_out(told: str) -> None:
    slept: list[float] = []
    Told.answers = [problem("over_limit", 429, **{"Retry-After": "3"}), (200, {}, b'{"shards": []}')]
    assert RemoteHistory(told, sleep=slept.append).shards() == []
    assert slept == [3.0]
    Told.answers = [problem("over_limit", 429, **{"Retry-After": "30"})] * 100
    with pytest.raises(OverLimit, match="told"):
        RemoteHistory(told, sleep=slept.append).shards()
    assert sum(slept) == 3 + remote.PATIENCE_S
    Told.answers = [problem("over_limit", 429, **{"Retry-After": "60"})]  # it serves no history at all
    with pytest.raises(OverLimit, match="told"):
        RemoteHistory(told).shards()


def test_a_shard_that_is_not_served_is_no_hole(told: str) -> None:
    slept: list[float] = []
    missing: tuple[int, dict[str, str], bytes] = (200, {}, b'{"shards": [], "unavailable": [1]}')
    Told.answers = [missing, (200, {}, b'{"shards": [], "unavailable": []}')]
    assert RemoteHistory(told, sleep=slept.append).shards() == []
    Told.answers = [missing] * remote.TRIES
    with pytest.raises(Unavailable, match=r"Shard 1 of .* is unavailable"):
        RemoteHistory(told, sleep=slept.append).shards()


def test_a_node_that_is_away(told: str) -> None:
    slept: list[float] = []
    with pytest.raises(Unavailable, match="cannot be reached"):
        RemoteHistory("http://127.0.0.1:1", sleep=slept.append).shards()
    assert len(slept) == remote.TRIES - 1 and max(slept) <= 5
    Told.answers = [(418, {}, b"tea")]
    with pytest.raises(BatonError, match="Is this a Baton node"):
        RemoteHistory(told).shards()


def test_the_next_piece_is_requested_while_one_is_read(told: str, place: Place) -> None:
    first = place.open("directory").shards()[0].first
    frames = list(place.open("directory").frames(0, first, first + 4))
    halves = [stored(frames[:2]), stored(frames[2:])]
    end = {"Baton-End-Frame": str(first + 4)}
    Told.answers = [
        (200, {**end, "Baton-Next-Frame": str(first + 2)}, halves[0]),
        (200, {**end, "Baton-Next-Frame": str(first + 4)}, halves[1]),
    ]
    found = RemoteHistory(told).frames(0, first)
    assert next(found).number == first
    for _ in range(6_000):
        if not Told.answers:
            break
        time.sleep(0.01)
    assert not Told.answers
    assert [frame.digest for frame in found] == [frame.digest for frame in frames[1:]]
    Told.answers = [(200, {**end, "Baton-Next-Frame": str(first + 2)}, halves[0]), problem("log_gap", 410)]
    with pytest.raises(LogGap, match="told"):
        list(RemoteHistory(told).frames(0, first))


def test_frames_that_do_not_follow_are_refused(told: str, place: Place) -> None:
    """A node whose log was made anew has other frames under the same numbers."""
    first = place.open("directory").shards()[0].first
    one, other = list(place.open("directory").frames(0, first, first + 2))
    data = [b"".join((frame.header, frame.rows, frame.variable)) for frame in (one, other)]
    headers = {"Baton-End-Frame": str(first + 9)}
    Told.answers = [(200, headers, data[0]), (200, headers, data[0])]
    with pytest.raises(LogCorrupt, match=f"frame {first + 1} is missing: frame {first} is in its place"):
        list(RemoteHistory(told).frames(0, first))
    Told.answers = [(200, headers, data[0][:-1])]
    with pytest.raises(LogCorrupt, match="truncated"):
        list(RemoteHistory(told).frames(0, first))
