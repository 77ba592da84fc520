"""Time series of queues: what a step contains, what is a gap, and that space stays bounded; taken from a real node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from batonq.errors import Unavailable
from batonq.node.monitoring import series
from batonq.node.monitoring.sampler import SeriesKeeper
from batonq.node.monitoring.series import (
    BY_NAME,
    FIRST_WIDTH,
    NAMES,
    RESOLUTIONS,
    WIDTH,
    Book,
    Ring,
    Value,
    merged,
)
from batonq.node.monitoring.series_file import MAGIC, SeriesFile
from batonq.node.node import Node
from batonq.node.settings import Settings
from tests.cluster.memory import Nodes, run_nodes
from tests.node.nodes import ACCOUNT, Faults, make_send, open_node, receive, send
from tests.node.stage import Stage, on_stage
from tests.node.support import VirtualLoop, run_virtual
from tests.processes.server import Processes
from tests.support import brokers

START_MS = 1_700_000_100_000  # a multiple of every step
ORDERS = 7


class Played:
    """A book whose samples a test takes by hand."""

    def __init__(self, queues_max: int = 100) -> None:
        self.book = Book(queues_max)
        self.now_ms = START_MS
        self.book.start(self.now_ms)

    def change(
        self, number: int = ORDERS, *, visible: int | None = None, before: tuple[int, ...] = (0, 0, 0), **counts: int
    ) -> None:
        track = self.book.changed(number, self.now_ms, before)
        for name, count in counts.items():
            at = (*series.RATES, *series.LATER_RATES).index(name)
            track.totals[at] += count
            self.book.server.totals[at] += count
        if visible is not None:
            self.book.server.depths[0] += visible - track.depths[0]
            track.depths[0] = visible

    def waited(self, *milliseconds: int, number: int = ORDERS) -> None:
        for value in milliseconds:
            self.book.queues[number].histograms[0][value.bit_length()] += 1

    def later(self, seconds: float = 5.0) -> None:
        self.now_ms += int(seconds * 1000)
        for at, step, tracks in self.book.due(self.now_ms):
            for track in tracks:
                track.close(at, step, self.now_ms, self.book.began(at))
            self.book.ended(at, self.now_ms)

    def values(
        self, name: str, range_name: str = "15m", number: int | None = ORDERS, last: int = 4, **more: Any
    ) -> list[Value]:
        columns = self.book.read(range_name, number, self.now_ms, **more)
        return columns[NAMES.index(name)][-last:]


# --- steps ------------------------------------------------------------------------------------


def test_a_step_has_rates_and_the_depth_at_its_end() -> None:
    played = Played()
    played.change(sent=10, visible=10)
    played.later()
    played.change(sent=5, acked=15, visible=0)
    played.later()
    assert played.values("sent") == [None, None, 2.0, 1.0], "the server did not run before"
    assert played.values("acked") == [None, None, 0.0, 3.0]
    assert played.values("visible") == [None, None, 10, 0]
    assert played.values("sent", number=None) == [None, None, 2.0, 1.0], "of the whole server"


def test_an_idle_queue_keeps_its_depth_and_costs_nothing() -> None:
    played = Played()
    played.change(sent=10, visible=10)
    track = played.book.queues[ORDERS]
    track.oldest_ms = played.now_ms
    for _ in range(100):
        played.later()
    assert played.values("sent") == [0.0] * 4 and played.values("visible") == [10] * 4
    assert played.values("oldestSeconds") == [485.0, 490.0, 495.0, 500.0], "its oldest message gets older"
    assert len(track.rings[0].steps) == 2, "one row, and one for the time before it"


def test_the_depth_before_the_first_change_is_known() -> None:
    played = Played()
    played.later()
    played.later()
    played.change(before=(3, 0, 0), sent=1, visible=4)
    played.later()
    assert played.values("visible", last=3) == [3, 3, 4]


def test_a_time_without_samples_is_a_gap() -> None:
    played = Played()
    played.change(sent=10, visible=10)
    played.later()
    played.later(20)
    played.change(sent=10, visible=20)
    played.later()
    assert played.values("visible", last=6) == [10, 10, None, None, None, 20], "the longer step counts as its first"
    assert played.values("sent", last=6) == [2.0, 0.0, None, None, None, 2.0]


def test_percentiles_are_those_of_one_step() -> None:
    played = Played()
    played.change(received=100)
    played.waited(*[3] * 90, *[1_000] * 10)
    played.later()
    assert played.values("queueWaitP50Ms", last=1) == [pytest.approx(3, abs=1)]
    assert played.values("queueWaitP95Ms", last=1) == [pytest.approx(768, abs=257)]
    played.change(received=1)
    played.waited(100_000)
    played.later()
    assert played.values("queueWaitP50Ms", last=1) == [pytest.approx(98_304)], "what came before does not count"
    played.change(sent=1)
    played.later()
    assert played.values("queueWaitP50Ms", last=1) == [None], "nothing was received"
    assert played.values("handlingP99Ms", last=1) == [None]


@pytest.mark.parametrize("resolution", RESOLUTIONS, ids=lambda resolution: resolution.name)
def test_every_resolution_tells_the_same_sum(resolution: series.Resolution) -> None:
    played = Played()
    random = Random(1)
    sent = 0
    for _ in range(3 * resolution.step_s // 5):
        if random.random() < 0.3:
            count = random.randrange(1, 50)
            sent += count
            played.change(sent=count, visible=sent)
        played.later()
    rates = played.values("sent", resolution.name, last=3)
    assert sum(rate for rate in rates if rate) * resolution.step_s == pytest.approx(sent, rel=0.001)
    assert played.values("visible", resolution.name, last=1) == [sent]
    assert len(played.book.read(resolution.name, ORDERS, played.now_ms)[0]) == resolution.steps


# --- limits -----------------------------------------------------------------------------------


def test_space_is_bounded() -> None:
    played = Played()
    for at in range(4 * 1440):  # four days, a sample per minute
        played.change(sent=1, visible=at)
        played.later(60)
    track = played.book.queues[ORDERS]
    for ring, resolution in zip(track.rings, RESOLUTIONS, strict=True):
        assert len(ring.steps) <= resolution.steps * 1.25 + 1
    assert sum(len(ring.values) * 4 + len(ring.steps) * 8 for ring in track.rings) < 150_000
    assert len(msgspec.msgpack.encode(played.book.dump())) < 300_000


def test_busy_queues_beyond_the_limit_do_not_drop_each_other() -> None:
    played = Played(queues_max=10)
    for _ in range(60):
        for number in range(11):
            played.change(number, sent=5)
        played.later()
    full = [number for number in range(11) if played.values("sent", number=number, last=60) == [1.0] * 60]
    assert full == [*range(9)], "all but the newest keep their history"
    assert played.book.queues[0].rates(played.book.step - 1, 6)[0] == 1.0


def test_a_clock_that_was_set_back_over_a_restart_does_not_stop_the_series() -> None:
    """A development server's clock can be moved forward by days; without new records it is back after a restart."""
    played = Played()
    played.change(sent=5)
    played.later()
    before_ms = played.now_ms
    played.later(3 * 86_400)
    for _ in range(3):
        played.change(sent=5)
        played.later()
    again = Played()
    again.now_ms = before_ms
    again.book.load(played.book.dump(), [ORDERS], again.now_ms)
    again.book.start(again.now_ms)
    for _ in range(3):
        again.change(sent=10)
        again.later()
    assert again.values("sent", last=4) == [1.0, 2.0, 2.0, 2.0]
    assert again.values("sent", number=None, last=4) == [1.0, 2.0, 2.0, 2.0]


def test_the_queue_that_was_idle_longest_is_dropped_first() -> None:
    played = Played(queues_max=3)
    for number in (1, 2, 3):
        played.change(number, sent=1, visible=1)
        played.later()
    played.change(1, sent=1, visible=2)
    for _ in range(12):
        played.later()
    played.change(4, sent=1, visible=1)
    played.later()
    assert set(played.book.queues) == {1, 3, 4}
    assert played.values("visible", number=2, last=3, depths=[1, 0, 0, 40.0]) == [None, None, 1], "since it was dropped"
    played.change(2, before=(1, 0, 0), sent=1, visible=2)
    played.later()
    assert played.values("visible", number=2, last=4) == [None, None, 1, 2]


def test_a_queue_that_never_changed_is_flat() -> None:
    played = Played()
    played.later()
    played.later()
    assert played.values("visible", number=9, last=3, depths=[6, 0, 0, 100.0]) == [None, 6, 6]
    assert played.values("oldestSeconds", number=9, last=3, depths=[6, 0, 0, 100.0]) == [None, 95.0, 100.0]
    assert played.values("sent", number=9, last=3, depths=[6, 0, 0, 100.0]) == [None, 0.0, 0.0]


def test_removed_queues_are_forgotten() -> None:
    played = Played()
    played.change(1, sent=1)
    played.change(2, sent=1)
    played.book.forget([2])
    assert set(played.book.queues) == {2}
    played.later()  # its row is not written


def test_the_trend_has_twenty_points_up_to_now() -> None:
    played = Played()
    assert played.book.trend(ORDERS, 4) == [4] * 20, "it has not changed"
    for at in range(180):
        played.change(sent=1, visible=at + 1)
        played.later()
    trend = played.book.trend(ORDERS, 200)
    assert len(trend) == 20 and trend == sorted(trend) and trend[-1] == 200
    assert trend[0] == pytest.approx(9, abs=5)


def test_a_clock_that_was_set_back_destroys_nothing() -> None:
    ring = Ring(10)
    ring.put(5, [1.0] * WIDTH)
    ring.put(3, [2.0] * WIDTH)
    ring.put(5, [3.0] * WIDTH)
    assert [*ring.steps] == [5] and ring.values[0] == 3.0


def test_parts_of_several_nodes_are_merged() -> None:
    one: list[list[Value]] = [[None, 1.0, 2.0] for _ in NAMES]
    other: list[list[Value]] = [[None, None, 5.0] for _ in NAMES]
    whole = dict(zip(NAMES, merged([one, other]), strict=True))
    assert whole["sent"] == whole["visible"] == whole["emptyReceives"] == [None, 1.0, 7.0]
    assert whole["oldestSeconds"] == whole["endToEndP99Ms"] == [None, 1.0, 5.0]


# --- the file ---------------------------------------------------------------------------------


def saved(played: Played) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(played.book.dump()), strict=False)
    return data


def test_a_book_continues_after_a_restart() -> None:
    played = Played()
    played.change(sent=10, visible=10)
    played.book.mark(played.now_ms, "start", "Node a started.")
    played.later()
    again = Played()
    again.book = Book(100)
    again.now_ms = played.now_ms + 10_000
    again.book.load(saved(played), [ORDERS], again.now_ms)
    again.book.start(again.now_ms)
    again.later()
    assert again.values("sent") == [2.0, None, None, 0.0], "the time between is a gap"
    assert again.values("visible") == [10, None, None, 0], "and what is there now has to be looked up"
    assert again.book.marks == played.book.marks
    gone = Book(100)
    gone.load(saved(played), [], again.now_ms)
    assert not gone.queues, "the queue was removed meanwhile"


def test_a_book_of_another_layout_is_left_out() -> None:
    played = Played()
    played.change(sent=1)
    played.later()
    for field, value in (("version", 99), ("names", ["sent"]), ("steps", [1])):
        fresh = Book(100)
        fresh.load(saved(played) | {field: value}, [ORDERS], played.now_ms)
        assert not fresh.queues


def narrowed(data: dict[str, Any]) -> dict[str, Any]:
    """What the release before wrote: without the bytes sent and the empty receives."""
    for _, _, rings in (data["server"], *data["queues"].values()):
        for ring in rings:
            floats = memoryview(ring[1]).cast("f")
            rows = [floats[at : at + FIRST_WIDTH].tobytes() for at in range(0, len(floats), WIDTH)]
            ring[1] = b"".join(rows)
    return data | {"names": data["names"][:FIRST_WIDTH]}


def test_a_file_with_fewer_columns_keeps_what_it_has() -> None:
    played = Played()
    played.change(sent=10, sentBytes=500, emptyReceives=5, visible=10)
    played.waited(100)
    played.later()
    assert (played.values("sentBytes", last=1), played.values("emptyReceives", last=1)) == ([100.0], [1.0])
    again = Played()
    again.book = Book(100)
    again.now_ms = played.now_ms
    again.book.load(narrowed(saved(played)), [ORDERS], again.now_ms)
    again.book.start(again.now_ms)
    again.change(sent=1, sentBytes=10, visible=11)
    again.later()
    assert again.values("sent", last=2) == [2.0, 0.2] and again.values("visible", last=2) == [10, 11]
    assert again.values("queueWaitP50Ms", last=2) == [*played.values("queueWaitP50Ms", last=1), None]
    for number in (ORDERS, None):
        assert again.values("sentBytes", last=2, number=number) == [None, 2.0], "unknown, not zero"
        assert again.values("emptyReceives", last=2, number=number) == [None, 0.0]


def test_a_book_that_does_not_fit_together_is_refused() -> None:
    played = Played()
    played.change(sent=1)
    played.later()
    data = saved(played)
    data["queues"][ORDERS][2][0][1] += b"1234"
    with pytest.raises(ValueError, match="do not fit together"):
        Book(100).load(data, [ORDERS], played.now_ms)


def test_a_damaged_file_is_no_reason_to_fail(tmp_path: Path) -> None:
    path = tmp_path / "series.bin"
    file = SeriesFile(str(path))
    assert file.load() is None, "there is none yet"
    file.save({"a": [1, b"2"]})
    assert file.load() == {"a": [1, b"2"]} and path.stat().st_mode & 0o777 == 0o600
    whole = path.read_bytes()
    random = Random(1)
    for data in (b"", MAGIC, whole[:-3], whole[:20], b"other" + whole, MAGIC + b"\x00" * 50):
        path.write_bytes(data)
        assert file.load() is None
    for _ in range(200):
        flipped = bytearray(whole)
        flipped[random.randrange(len(MAGIC), len(whole))] ^= 1 << random.randrange(8)
        path.write_bytes(flipped)
        assert file.load() in (None, {"a": [1, b"2"]})
    file = SeriesFile(str(tmp_path / "missing" / "series.bin"))
    file.save({})  # says so in the log
    assert file.load() is None


# --- a node -----------------------------------------------------------------------------------


async def read(
    stage: Stage, name: str, last: int = 3, path: str = "/v1/queues/orders/series", range_name: str = "15m"
) -> list[Value]:
    answer = await stage.rest("GET", f"{path}?range={range_name}")
    assert answer.status == 200, answer
    values: list[Value] = answer.json["values"][name][-last:]
    return values


def test_a_node_keeps_the_series_of_its_queues(tmp_path: Path) -> None:
    async def main() -> None:
        async with on_stage(tmp_path) as stage:
            queue = await stage.queue()
            await stage.send(queue, *"abcdefghij")
            await stage.later(5)
            found = await stage.receive(queue)
            await stage.delete(queue, found[:5])
            await stage.later(5)
            await stage.later(40)
            assert await read(stage, "sent", 10) == [2.0] + [0.0] * 2 + [None] * 7
            assert await read(stage, "acked", 10) == [0.0, 1.0, 0.0] + [None] * 7
            assert await read(stage, "retried", 10) == [0.0, 0.0, 0.125] + [None] * 7, "the leases expired"
            assert await read(stage, "inFlight", 10) == [0, 5, 0] + [None] * 7
            assert await read(stage, "sentBytes", 10) == [2.0] + [0.0] * 2 + [None] * 7, "ten bodies of one byte"
            assert (await read(stage, "queueWaitP50Ms", 10))[1] == pytest.approx(6_144)
            assert (await read(stage, "endToEndP99Ms", 10))[1] == pytest.approx(8_192, rel=0.1)
            assert await read(stage, "visible", 2, "/v1/series", "1h") == [5, None], "the step was longer than usual"
            answer = (await stage.rest("GET", "/v1/series?range=15m")).json
            assert (answer["stepSeconds"], len(answer["values"]["sent"])) == (5, 180) and "queue" not in answer
            assert answer["endAtMs"] - answer["startAtMs"] == 900_000
            assert [mark["kind"] for mark in answer["marks"]] == ["start"]

    asyncio.run(main())


def test_series_survive_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with on_stage(tmp_path) as stage:
            queue = await stage.queue()
            gone = await stage.queue("gone")
            await stage.send(queue, "a", "b")
            await stage.send(gone, "a")
            await stage.later(5)
            await stage.node.broker.delete_queue(gone)
            now_ms = stage.node.clock.now_ms()
        async with on_stage(tmp_path) as stage:
            await stage.until(lambda: stage.node.sampler.book.server.rings[0].steps)
            book = stage.node.sampler.book
            assert stage.node.clock.now_ms() >= now_ms
            assert set(book.queues) == {queue.number}
            assert [mark.kind for mark in book.marks] == ["start", "start"]
            await stage.later(5)
            sent = await read(stage, "sent", 180)
            assert [value for value in sent if value] == [0.4]
            assert (await read(stage, "visible", 1)) == [2]

    asyncio.run(main())


def test_nothing_is_forgotten_while_the_queues_are_not_known(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await asyncio.sleep(6)
        await send(node, queue, "a")
        await asyncio.sleep(6)
        file = SeriesFile(str(tmp_path / "series.bin"))

        def unknown() -> list[int]:
            raise Unavailable("The catalog is not known.")

        keeper = SeriesKeeper(node.sampler, file, unknown, node.clock.now_ms)
        await keeper.save()
        assert set(node.sampler.book.queues) == {queue.number}
        keeper = SeriesKeeper(node.sampler, file, list, node.clock.now_ms)
        await keeper.save()
        assert not node.sampler.book.queues and file.load() is None, "it has not begun, so nothing is overwritten"
        await node.stop()

    run_virtual(main)


def test_a_disk_that_hangs_is_a_gap_and_nothing_more(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        faults = Faults()
        node = await open_node(loop, tmp_path, faults=faults)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await asyncio.sleep(6)
        await send(node, queue, "a")
        await asyncio.sleep(5)
        faults.planned[0] = ["hang"]
        sending = loop.create_task(send(node, queue, "never answered"))
        await asyncio.sleep(20)
        found = await node.monitor.series.read("15m", queue.number)
        assert [value for value in found.values["visible"] if value][-1] == 1, "only what is committed"
        await node.stop()
        assert (await asyncio.gather(sending, return_exceptions=True))[0] is not None

    run_virtual(main)


def test_a_sample_that_fails_does_not_end_the_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        await asyncio.sleep(6)
        with monkeypatch.context() as patched:
            patched.setattr(node.sampler, "sample", None)
            await asyncio.sleep(10)
        await send(node, queue, "a")
        await asyncio.sleep(10)
        found = await node.monitor.series.read("15m", queue.number)
        assert found.values["visible"][-1] == 1
        await node.stop()

    run_virtual(main)


def test_a_shard_that_fails_is_marked_and_its_queues_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with on_stage(tmp_path, reopen_first_s=0.01) as stage:
            queue = await stage.queue()
            await stage.send(queue, "a")
            await stage.later(5)
            stage.node.shards[0].host().commit.abandon(OSError("planted by the test"))
            await stage.until(lambda: stage.node.shards[0].serving)
            await stage.later(5)
            assert (await read(stage, "sentBytes"))[-1] == 0.0, "what was counted while opening was not sent now"
            await stage.send(queue, "b")
            await stage.later(5)
            assert (await read(stage, "sent"))[-1] == pytest.approx(0.2)
            assert await read(stage, "visible", 1) == [2]
            answer = (await stage.rest("GET", "/v1/series")).json
            assert [mark["kind"] for mark in answer["marks"]] == ["start", "reopened"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/v1/queues/orders/series?range=2h", 400, "range must be one of 15m, 1h, 6h, 24h, 72h, not '2h'."),
        ("/v1/series?step=5", 400, "Unknown query parameter 'step'"),
        ("/v1/queues/missing/series", 404, "missing"),
        ("/v1/queues:stats?sort=size", 400, "sort must be one of name, visible,"),
        ("/v1/queues:stats?order=up", 400, "order must be one of asc, desc, not 'up'."),
        ("/v1/queues:stats?limit=0", 400, "limit"),
        ("/v1/queues:stats?offset=-1", 400, "offset"),
        (f"/v1/queues:stats?search={'x' * 81}", 400, "at most 80 characters"),
    ],
)
def test_bad_input_is_refused(tmp_path: Path, path: str, status: int, said: str) -> None:
    async def main() -> None:
        async with on_stage(tmp_path) as stage:
            answer = await stage.rest("GET", path)
            assert (answer.status, said in answer.json["detail"]) == (status, True), answer

    asyncio.run(main())


# --- the list of queues -------------------------------------------------------------------------


def names(answer: Any) -> list[str]:
    return [queue["name"] for queue in answer.json["queues"]]


def test_queues_are_searched_sorted_and_paged(tmp_path: Path) -> None:
    async def main() -> None:
        async with on_stage(tmp_path) as stage:
            dead = await stage.queue("b-dead")
            arn = f"arn:aws:sqs:us-east-1:{ACCOUNT}:b-dead"
            redrive = f'{{"deadLetterTargetArn":"{arn}","maxReceiveCount":3}}'
            orders = await stage.queue("c-orders", RedrivePolicy=redrive)
            await stage.queue("a-idle")
            await stage.queue("d-fifo.fifo", FifoQueue="true")
            await stage.send(dead, "x", "y")
            await stage.later(5)
            await stage.send(orders, *"abc")
            held = await stage.receive(orders, 1)
            await stage.later(5)

            async def listed(query: str) -> Any:
                answer = await stage.rest("GET", f"/v1/queues:stats?{query}")
                assert answer.status == 200, answer
                return answer

            everything = await listed("")
            assert names(everything) == ["a-idle", "b-dead", "c-orders", "d-fifo.fifo"]
            assert (everything.json["total"], everything.json["offset"]) == (4, 0)
            assert names(await listed("order=desc")) == ["d-fifo.fifo", "c-orders", "b-dead", "a-idle"]
            assert names(await listed("search=or")) == ["c-orders"] and names(await listed("search=zzz")) == []
            assert names(await listed("sort=visible&limit=1")) == ["b-dead"]
            assert names(await listed("sort=inFlight&limit=1")) == ["c-orders"]
            assert names(await listed("sort=depth&limit=2")) == ["c-orders", "b-dead"]
            assert names(await listed("sort=depth&limit=2&offset=1")) == ["b-dead", "a-idle"]
            assert names(await listed("sort=depth&order=asc"))[-1] == "c-orders"
            assert names(await listed("sort=oldest&limit=2")) == ["b-dead", "c-orders"]
            assert names(await listed("sort=dead&limit=1")) == ["b-dead"], "its messages are dead letters"
            assert names(await listed("sort=sent&limit=1")) == ["c-orders"], "the rate of the last seconds"
            assert names(await listed("sort=received&limit=1")) == ["c-orders"]
            (told,) = (await listed("search=c-")).json["queues"]
            assert (told["mode"], told["deadLetterQueue"], told["maxReceiveCount"]) == ("STANDARD", "b-dead", 3)
            assert (told["visible"], told["inFlight"], told["sent"], told["received"]) == (2, 1, 3, 1)
            assert (told["sentPerSecond"], told["oldestAgeSeconds"]) == (0.3, pytest.approx(5, abs=0.1))
            assert (told["level"], told["note"], told["trend"][-1]) == ("ok", "", 2)
            (told,) = (await listed("search=b-")).json["queues"]
            assert told["isDeadLetterQueue"] and told["sources"] == ["c-orders"] and "deadLetterQueue" not in told
            assert (told["level"], told["note"]) == ("warning", "b-dead has 2 dead letters")
            await stage.delete(orders, held)
            assert (await listed("search=c-")).json["queues"][0]["inFlight"] == 0, "it is what is committed now"
            stage.node.shards[0].host().commit.abandon(OSError("planted by the test"))
            (told,) = (await listed("search=c-")).json["queues"]
            assert told["level"] == "critical" and "not being served" in told["note"]

    asyncio.run(main())


def test_all_processes_have_the_whole(tmp_path: Path) -> None:
    async def main() -> None:
        processes = Processes(Settings(data=str(tmp_path), processes=2, shards=2))
        await processes.start(0, 1)
        try:
            await check_parts(processes.nodes[0], [*processes.nodes.values()])
        finally:
            await processes.stop()

    asyncio.run(main())
    assert {path.name for path in tmp_path.glob("series*")} == {"series-p0.bin", "series-p1.bin"}


def test_all_nodes_of_a_cluster_have_the_whole(tmp_path: Path) -> None:
    async def main(nodes: Nodes) -> None:
        await nodes.until(lambda: all(nodes.owner(shard) is not None for shard in range(3)))
        await check_parts(nodes["a"], [nodes[name] for name in "abc"])
        shard = nodes["a"].broker.queue(ACCOUNT, "even").shard
        owner = nodes.owner(shard)
        assert owner is not None
        other = nodes[next(name for name in "abc" if name != owner.settings.node)]
        await owner.ownership_loop.move(shard, other.settings.node)
        await nodes.until(lambda: nodes.owner(shard) is other)
        found = await nodes["a"].monitor.series.read("15m", None)
        assert [mark.kind for mark in found.marks].count("takeover") >= 1

    run_nodes(tmp_path, main, "a", "b", "c")


async def check_parts(node: Node, nodes: list[Node]) -> None:
    broker = node.broker
    even, odd = [await broker.create_queue(ACCOUNT, name, {}, {}) for name in ("even", "odd")]
    wide = await broker.create_queue(ACCOUNT, "wide", {"Baton.Spread": "2"}, {})
    for each in nodes:
        await each.sampler.begin()
    for queue, count in ((even, 1), (odd, 2), (wide, 10)):
        for _ in range(count):
            await brokers.send(broker, queue, [make_send("x")], first_try=True)
    empty = await broker.create_queue(ACCOUNT, "empty", {}, {})
    for each in nodes:
        assert not await brokers.receive(each.broker, empty, 1, None, 0, "tester")
    await asyncio.sleep(5.1)
    for each in nodes:
        await each.sampler.sample()
    for each in nodes:
        listing = await each.monitor.queues.page(ACCOUNT, sort="visible", descending=True, limit=10)
        shown = [(row.reading.name, row.reading.counters.visible) for row in listing.rows]
        assert shown == [("wide", 10), ("odd", 2), ("even", 1), ("empty", 0)]
        assert [row.trend[-1] for row in listing.rows] == [10, 2, 1, 0]
        assert sum(row.reading.rates.sent for row in listing.rows) > 0
        found = await each.monitor.series.read("15m", wide.number)
        assert max(value or 0 for value in found.values["visible"]) == 10
        sent, size = [max(value or 0 for value in found.values[name]) for name in ("sent", "sentBytes")]
        assert sent == size > 0, "messages of one byte"
        found = await each.monitor.series.read("15m", empty.number)
        most = max(value or 0 for value in found.values["emptyReceives"])
        assert most > 0.9 * len(nodes) / 5.5, "each node counts what it has answered"
        assert max(value or 0 for value in (await each.monitor.series.read("15m", None)).values["visible"]) == 13


# --- many queues --------------------------------------------------------------------------------


class Turns:
    """The processor time of the longest turn of the loop, in which nobody else is served."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._task: asyncio.Task[None]

    async def __aenter__(self) -> Turns:
        self._task = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        last_s = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now_s = time.thread_time()
            self.longest_s = max(self.longest_s, now_s - last_s)
            last_s = now_s


def test_five_thousand_queues_cost_little(tmp_path: Path) -> None:
    async def main() -> None:
        async with on_stage(tmp_path) as stage:
            node = stage.node
            for number in range(5_000):
                await stage.queue(f"queue-{number:04}")
            busy = [node.broker.queue(ACCOUNT, f"queue-{number:04}") for number in range(0, 5_000, 10)]
            for queue in busy:
                await stage.send(queue, "x")
                await stage.delete(queue, await stage.receive(queue))
            await node.advance_clock(5_000)
            works: dict[str, Callable[[], Any]] = {
                "sample": node.sampler.sample,
                "metrics": node.metrics.text,
                "overview": node.overview,
                **{
                    sort: partial(node.monitor.queues.page, ACCOUNT, sort=sort, limit=100)
                    for sort in ("name", "visible", "oldest", "sent", "dead")
                },
            }
            longest_s: dict[str, float] = {}
            for name, work in works.items():
                for _ in range(3):  # a garbage collection of everything that the tests have made may come in between
                    async with Turns() as turns:
                        await work()
                    longest_s[name] = min(turns.longest_s, longest_s.get(name, turns.longest_s))
            assert max(longest_s.values()) < 0.05, longest_s
            assert len(node.sampler.book.queues) == len(busy), "idle queues cost nothing"
            answer = await stage.rest("GET", "/v1/queues:stats?sort=visible&limit=100")
            assert answer.json["total"] == 5_000 and len(answer.body) < 100_000
            began_s = time.thread_time()
            await node.sampler.sample()
            assert time.thread_time() - began_s < 0.05, "of 5 s: 1 % of a processor"
            shown = await stage.shown()
            assert shown.sum("baton_queues") == 5_000 and shown.sum("baton_queues_listed") == 500

    asyncio.run(main())


def test_sampling_goes_on_by_itself(tmp_path: Path) -> None:
    async def main(loop: VirtualLoop) -> None:
        node = await open_node(loop, tmp_path)
        queue = await node.broker.create_queue(ACCOUNT, "orders", {}, {})
        for _ in range(30):
            await send(node, queue, "a")
            for delivery in await receive(node, queue):
                await brokers.delete(node.broker, queue, [delivery.receipt])
            await asyncio.sleep(2)
        found = await node.monitor.series.read("15m", queue.number)
        rates = [value for value in found.values["acked"] if value is not None]
        assert len(rates) in (11, 12) and rates[3] == pytest.approx(0.5, abs=0.11)
        assert BY_NAME[found.range] == 0
        await node.stop()

    run_virtual(main)
