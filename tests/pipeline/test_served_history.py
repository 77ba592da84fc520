"""GET /v1/history: committed frames over HTTP, at a bounded rate, for those who may see everything."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from batonq.api.rest.history import CONTENT_TYPE
from batonq.core.catalog.machine import Catalog
from batonq.errors import LogCorrupt, LogGap
from batonq.log.frames import Frame, parse
from batonq.node.operations.history import TooFast, check
from batonq.pipeline.events.decode import Decoder
from tests.pipeline.conftest import small
from tests.pipeline.support import assert_same
from tests.rest.support import Answer, Rest
from tests.rest.test_secured import ask
from tests.support.memory_log import MemoryLog
from tests.support.server import ACCOUNT, TestServer


def frames_in(data: bytes) -> list[Frame]:
    found: list[Frame] = []
    at = 0
    while at < len(data):
        found.append(parse(data, at))
        at += found[-1].size
    return found


def work(rest: Rest, queue: str, messages: int, size: int = 100) -> None:
    """Send, receive and ack."""
    for start in range(0, messages, 50):
        count = min(50, messages - start)
        rest.good("POST", f"{queue}/messages:batch", {"messages": [{"body": "x" * size} for _ in range(count)]})
        received = rest.good("POST", f"{queue}/messages:receive", {"maxMessages": count})["messages"]
        rest.good("POST", f"{queue}/messages:ack", {"receiptHandles": [one["receiptHandle"] for one in received]})


def everything(rest: Rest, shard: int, max_bytes: int = 1 << 20) -> tuple[list[Frame], int]:
    """All frames of a shard, and how many requests that took."""
    found: list[Frame] = []
    start, requests = 1, 0
    while True:
        answer = rest("GET", f"/v1/history/{shard}?from={start}&max_bytes={max_bytes}")
        assert answer.status == 200, answer
        if not answer.body:
            return found, requests
        found += frames_in(answer.body)
        start, requests = int(answer.headers["baton-next-frame"]), requests + 1


def test_all_frames_of_every_shard(server: TestServer, rest: Rest) -> None:
    for number in range(4):
        work(rest, rest.create(f"all-{number}"), 60)
    listed = rest.good("GET", "/v1/history")["shards"]
    assert [one["shard"] for one in listed] == [0, 1]
    for one in listed:
        frames, _ = everything(rest, one["shard"])
        assert [frame.number for frame in frames] == list(range(1, one["nextFrame"]))
        assert one["firstFrame"] == 1 and one["bytes"] == sum(frame.size for frame in frames)
        kept = server.run(functools.partial(_stored, server, one["shard"]))
        assert [frame.digest for frame in frames] == [frame.digest for frame in kept]
        events = assert_same(frames)
        assert {"sent", "leased", "deleted"} <= set(events.column("event").to_pylist())


async def _stored(server: TestServer, shard: int) -> list[Frame]:
    return list(server.node.shards[shard].host().log.frames(1))


def test_pieces_are_small_and_hold_a_frame_at_least(rest: Rest) -> None:
    work(rest, rest.create("pieces"), 100)
    whole, _ = everything(rest, 0)
    few, requests = everything(rest, 0, max_bytes=1)
    assert requests == len(whole)
    assert [frame.number for frame in few] == [frame.number for frame in whole]
    limit = max(frame.size for frame in whole) * 2
    answer = rest("GET", f"/v1/history/0?max_bytes={limit}")
    assert 0 < len(answer.body) <= limit
    assert answer.headers["content-type"] == CONTENT_TYPE


def test_it_may_be_asked_for_by_its_type(rest: Rest) -> None:
    assert rest("GET", "/v1/history/0", headers={"Accept": CONTENT_TYPE}).status == 200


def test_at_the_end_it_waits_for_the_next_frame(server: TestServer, rest: Rest) -> None:
    queue = rest.create("waits")
    ends = {one["shard"]: one["nextFrame"] for one in rest.good("GET", "/v1/history")["shards"]}
    shard = server.broker.queue(ACCOUNT, "waits").shard
    reader = Rest(server, ACCOUNT)
    answers: list[Answer] = []
    thread = threading.Thread(
        target=lambda: answers.append(reader("GET", f"/v1/history/{shard}?from={ends[shard]}&wait=20"))
    )
    thread.start()
    server.run(lambda: _until(lambda: shard in server.broker.history.waiting))
    assert server.broker.history.readers == 1
    rest.good("POST", f"{queue}/messages", {"body": "now"})
    thread.join(300)
    reader.close()
    assert frames_in(answers[0].body)[0].number == ends[shard]
    assert not server.broker.history.waiting


async def _until(condition: Callable[[], bool]) -> None:
    """Turns of the server's own loop, until it is so."""
    async with asyncio.timeout(20):
        while True:
            if condition():
                return
            await asyncio.sleep(0)


def test_beyond_the_end_there_is_nothing_yet(rest: Rest) -> None:
    end = rest.good("GET", "/v1/history")["shards"][0]["nextFrame"]
    for start in (end, end + 1_000):
        answer = rest("GET", f"/v1/history/0?from={start}&wait=0.01")
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["baton-next-frame"] == str(start)
        assert answer.headers["baton-end-frame"] == str(end)


@pytest.mark.parametrize("path", ["/v1/history/9", "/v1/history/65535", "/v1/history/x", "/v1/history/0/1"])
def test_no_such_shard(rest: Rest, path: str) -> None:
    """The catalog's log (65535) has keys in it: it is never served."""
    assert rest("GET", path).code == "not_found"


def test_no_more_than_is_wanted(rest: Rest) -> None:
    work(rest, rest.create("wanted"), 5)
    shard = next(each for each in rest.good("GET", "/v1/history")["shards"] if each["nextFrame"] > 4)["shard"]
    answer = rest("GET", f"/v1/history/{shard}?from=2&to=4")
    assert [frame.number for frame in frames_in(answer.body)] == [2, 3]
    assert answer.headers["baton-next-frame"] == "4"


def test_the_queues_that_a_shard_knows(rest: Rest) -> None:
    rest.create("named")
    assert "queues" not in rest.good("GET", "/v1/history")["shards"][0]
    listed = rest.good("GET", "/v1/history?names=true")
    assert listed["unavailable"] == []
    queues = [queue for each in listed["shards"] for queue in each["queues"]]
    (found,) = [queue for queue in queues if queue["name"] == "named"]
    assert found["tenant"] == ACCOUNT and found["number"] > 0
    assert rest("GET", "/v1/history?names=yes").code == "invalid_input"


@pytest.mark.parametrize(
    "query", ["from=5&to=5", "to=0", "from=0", "from=x", "max_bytes=0", "wait=21", "wait=nan", "wait=", "till=3"]
)
def test_what_cannot_be_asked_for(rest: Rest, query: str) -> None:
    assert rest("GET", f"/v1/history/0?{query}").code == "invalid_input"


def test_a_dropped_front_is_a_gap_that_names_what_is_left(tmp_path: Path) -> None:
    with small(tmp_path / "data") as server:
        rest = Rest(server, ACCOUNT)
        queue = rest.create("gone")
        while not (first := rest.good("GET", "/v1/history")["shards"][0]["firstFrame"]) > 1:
            work(rest, queue, 500)
            server.run(server.node.maintenance.step)
        answer = rest("GET", "/v1/history/0?from=1")
        assert (answer.status, answer.code) == (410, "log_gap")
        assert f"the first retained frame is {first}" in answer.value["detail"]
        assert frames_in(rest("GET", f"/v1/history/0?from={first}").body)[0].number == first
        rest.close()


def test_the_rate_is_bounded(tmp_path: Path) -> None:
    with TestServer(str(tmp_path / "data"), history_rate_bytes=20_000) as server:
        rest = Rest(server, ACCOUNT)
        queue = rest.create("much")
        rest.good("POST", f"{queue}/messages:batch", {"messages": [{"body": "x" * 2_000} for _ in range(50)]})
        answer = rest("GET", "/v1/history/0")
        assert len(answer.body) > 100_000
        refused = rest("GET", "/v1/history/0")
        assert (refused.status, refused.code) == (429, "over_limit")
        assert 2 <= int(refused.headers["retry-after"]) <= 6
        text = server.run(server.node.metrics.text).decode()
        assert f"baton_history_bytes_total {len(answer.body)}\n" in text
        assert "baton_history_limited_total 1\n" in text and "baton_history_readers 0\n" in text
        assert rest.good("GET", f"{queue}/stats")["visible"] == 50
        rest.close()


def test_a_rate_of_nothing_serves_nothing(tmp_path: Path) -> None:
    with TestServer(str(tmp_path / "data"), history_rate_bytes=0) as server:
        rest = Rest(server, ACCOUNT)
        assert rest("GET", "/v1/history/0").status == 429
        rest.close()


def test_secured_history_is_for_the_servers_own_account(tmp_path: Path) -> None:
    with TestServer(str(tmp_path / "data"), secure=True) as server:

        async def make() -> None:
            await server.node.catalog.change(Catalog.put_key, "OWN", "secret", ACCOUNT)
            await server.node.catalog.change(Catalog.put_key, "OTHER", "secret", "123456789012")

        server.run(make)
        for path in ("/v1/history", "/v1/history/0"):
            status, problem = ask(server, "GET", path, key="OTHER", secret="secret")
            assert (status, problem["code"]) == (403, "access_denied")
            assert ask(server, "GET", path, key="OWN", secret="wrong")[0] == 403
        status, listed = ask(server, "GET", "/v1/history", key="OWN", secret="secret")
        assert status == 200 and listed["shards"][0]["firstFrame"] == 1


def test_what_does_not_check_does_not_leave(server: TestServer, rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    work(rest, rest.create("damaged"), 10)
    log = server.node.shards[0].host().log
    piece = log.piece(1, 1 << 20)
    data = bytearray(piece.read())
    data[200] ^= 1
    monkeypatch.setattr(type(log), "piece", lambda self, *asked: piece._replace(read=lambda: bytes(data)))
    assert rest("GET", "/v1/history/0").code == "log_corrupt"


def test_the_check_of_a_piece() -> None:
    log = MemoryLog(1)
    with pytest.raises(LogGap):
        log.piece(1, 100)
    with pytest.raises(LogCorrupt, match="offset 0"):
        check(b"xx", 1, 1, 1)
    with pytest.raises(LogCorrupt, match="the response ends at frame 0"):
        check(b"", 1, 1, 2)
    assert TooFast(7).retry_after_s == 7


def test_decoding_what_was_served(server: TestServer, rest: Rest) -> None:
    work(rest, rest.create("decoded"), 20, size=7)
    shard = server.broker.queue(ACCOUNT, "decoded").shard
    frames, _ = everything(rest, shard)
    rows = [row for batch in Decoder(bodies=True).batches(frames) for row in batch.to_pylist()]
    mine = [row for row in rows if row["queue_name"] == "decoded"]
    assert [row["event"] for row in mine].count("sent") == 20
    assert {row["tenant"] for row in mine} == {ACCOUNT}
    assert {row["body"] for row in mine if row["event"] == "sent"} == {b"x" * 7}
