"""Decoding by columns gives what a plain loop over records gives, on every kind of history."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batonq.core.ids import message_id
from batonq.core.payload import Attribute, encode_attributes
from batonq.core.records import Type
from batonq.core.shard.state.readers import GroupSettings, Start
from batonq.errors import InvalidInput, LogCorrupt
from batonq.log.frames import build
from batonq.pipeline.events import decode
from batonq.pipeline.events.decode import Decoder
from batonq.pipeline.events.filters import Filter
from batonq.pipeline.events.names import Names, QueueNames, told_by
from batonq.pipeline.events.ranges import pieces
from batonq.pipeline.events.schema import EVENTS, columns
from tests.core.rig import T0, Bench, claim, make_send
from tests.core.test_against_model import Machine
from tests.core.test_stored_payloads import key_of, send_stored
from tests.golden.runner import parse, scenarios
from tests.golden.script import Scenario
from tests.pipeline.support import assert_same, frames_of, plain_batch
from tests.support import ask


class Histories(Machine):
    """The random histories of the core's own test, decoded at their end."""

    def teardown(self) -> None:
        super().teardown()
        for rig in self.rigs.values():
            frames = frames_of(rig)
            assert_same(frames)
            assert_same(frames, at_once=1)
            assert_same(frames, wanted=Filter(queues=frozenset({1, "q2.fifo"}), since_ms=T0 + 1), at_once=3)


TestRandomHistories = Histories.TestCase
TestRandomHistories.settings = settings(max_examples=15, stateful_step_count=40)


def rich() -> Bench:
    """One of everything that a shard's log can say, and texts that are not ASCII."""
    bench = Bench()
    dead = bench.queue(2)
    jobs = bench.queue(1, max_receives=2, dead_letter_queue=dead, dead_letter_on_failure=True)
    fifo = bench.queue(3, fifo=True)
    attributes = encode_attributes(
        [Attribute("größe", "Number", b"12", False), Attribute("raw", "Binary", b"\x00\xff", True)]
    )
    bench.send(jobs, "one", "zwei Wörter", attributes=attributes, sender="Ünal", trace="Root=1-abc")
    bench.send(jobs, "three", priority=9, max_receives=1, delay_ms=5_000)
    bench.send(fifo, "first", "second", group="g-1", dedup_id="k")
    ask.send(bench.shard, jobs, [make_send("numbered", producer="p", producer_sequence=4)], bench.now)
    bench.commit()
    leases = bench.receive(jobs, 2, holder="wörker", attempt="")
    bench.receive(fifo, 1, holder="b", attempt="try-1")
    ask.nack(bench.shard, jobs, [ask.Nack(claim(leases[0]), 2_000, "kaputt: ß", "ValueError")], bench.now)
    bench.delete(jobs, leases[1])
    bench.later(60_000)
    again = bench.receive(jobs, 1, holder="wörker")
    ask.nack(bench.shard, jobs, [ask.Nack(claim(again[0]), 0, "again", "ValueError")], bench.now)
    bench.commit()
    bench.truncate(max(bench.frames))
    bench.later(1_000)
    bench.shard.purge(fifo, 0, bench.now)
    bench.shard.close_queue(fifo, 9, bench.now)
    bench.queue(4, retain_ms=3_600_000)
    bench.send(4, "retained")
    bench.shard.set_reader(4, "prüfung", T0, GroupSettings(), Start("end"), T0, False, bench.now)
    return bench


def test_a_rich_history() -> None:
    frames = frames_of(rich())
    for at_once in (0, 1, 2, 5):
        batch = assert_same(frames, at_once=at_once)
    kinds = set(batch.column("event").to_pylist())
    assert {"carried", "base", "queue_purged", "queue_closed"} <= kinds
    (base,) = (row for row in batch.to_pylist() if row["event"] == "base")
    assert [policy["queue"] for policy in json.loads(base["detail"])] == [1, 2, 3]


@pytest.mark.parametrize("path", scenarios(), ids=lambda path: path.stem)
def test_the_golden_scenarios(path: Path) -> None:
    scenario = Scenario()
    for block in parse(path.read_text()):
        for command in block.commands:
            list(scenario.run(command))
    for rig in scenario.rigs.values():
        assert_same(frames_of(rig), at_once=4)


def test_every_record_type_that_is_written_is_compared() -> None:
    """By the golden scenarios and the rich history together: a new type must come into one of them."""
    seen: set[str] = set(plain_batch(frames_of(rich())).column("event").to_pylist())
    for path in scenarios():
        scenario = Scenario()
        for block in parse(path.read_text()):
            for command in block.commands:
                list(scenario.run(command))
        for rig in scenario.rigs.values():
            seen |= set(plain_batch(frames_of(rig)).column("event").to_pylist())
    assert seen == set(EVENTS.values())


def test_what_a_row_says() -> None:
    bench = Bench(number=5)
    queue = bench.queue(4)
    attributes = encode_attributes([Attribute("n", "Number", b"1", False), Attribute("b", "Binary", b"\x01", True)])
    bench.send(queue, "hello", sender="me", attributes=attributes, dedup_id="k1", group="")
    lease = bench.receive(queue, holder="h")[0]
    ask.nack(bench.shard, queue, [ask.Nack(claim(lease), 1_500, "it broke", "OSError")], bench.now)
    rows = Decoder(bodies=True).decode(frames_of(bench)).to_pylist()
    sent = next(row for row in rows if row["event"] == "sent")
    assert sent["message_id"] == message_id(5, sent["sequence"])
    assert (sent["shard"], sent["queue"], sent["queue_name"], sent["tenant"]) == (5, 4, "q4", "tenant")
    assert (sent["body"], sent["body_bytes"], sent["sender"], sent["dedup_key"]) == (b"hello", 5, "me", "k1")
    assert sent["attributes"] == [("b", "AQ=="), ("n", "1")]
    assert sent["time"].timestamp() * 1000 == T0 and sent["region"] == 3
    leased = next(row for row in rows if row["event"] == "leased")
    assert (leased["holder"], leased["lease_epoch"], leased["receive_count"]) == ("h", 1, 1)
    assert leased["deadline"].timestamp() * 1000 == T0 + 30_000
    returned = next(row for row in rows if row["event"] == "returned")
    assert (returned["reason"], returned["error_class"], returned["error_text"]) == ("nack", "OSError", "it broke")
    assert returned["visible_at"].timestamp() * 1000 == T0 + 1_500
    assert leased["body"] is None and sent["logical_time"] == sent["frame"] << 16 | sent["row"]


def test_a_body_in_the_payload_store_is_a_pointer_with_digest_and_size() -> None:
    bench = Bench()
    bench.queue(1)
    send_stored(bench, 1, "a", "b-plain", "C")
    bench.commit()
    batch = assert_same(frames_of(bench))
    rows = [row for row in batch.to_pylist() if row["event"] == "sent"]
    assert [row["content"] for row in rows] == ["stored text", "text", "text"]
    assert rows[0]["body"].decode() == f"{key_of('a')} 5"


def test_filters_choose_before_texts_are_read() -> None:
    frames = frames_of(rich())
    for wanted in (
        Filter(events=frozenset({"leased", "returned"})),
        Filter(queues=frozenset({"q1"})),
        Filter(queues=frozenset({3})),
        Filter(since_ms=T0 + 60_000),
        Filter(until_ms=T0 + 60_000, events=frozenset({"sent"})),
        Filter(queues=frozenset({"nobody"})),
    ):
        for at_once in (0, 1):
            assert_same(frames, wanted=wanted, at_once=at_once)
    only = Decoder(wanted=Filter(events=frozenset({"leased"}))).decode(frames)
    assert set(only.column("event").to_pylist()) == {"leased"}
    with pytest.raises(InvalidInput, match="no event 'vanished'"):
        Filter(events=frozenset({"vanished"}))


@given(st.lists(st.sampled_from([column.name for column in columns(bodies=True)]), min_size=1, unique=True))
def test_only_the_chosen_columns_are_decoded_and_have_the_same_values(chosen: list[str]) -> None:
    frames = frames_of(rich())
    whole = Decoder(bodies=True).decode(frames)
    assert Decoder(bodies=True, columns=chosen).decode(frames).equals(whole.select(chosen))


@pytest.mark.parametrize("column", [column.name for column in columns(bodies=True)])
def test_a_column_alone(column: str) -> None:
    frames = frames_of(rich())
    for dictionaries in (True, False):
        whole = Decoder(bodies=True, dictionaries=dictionaries).decode(frames)
        one = Decoder(bodies=True, dictionaries=dictionaries, columns=[column]).decode(frames)
        assert one.equals(whole.select([column]))


def test_more_names_are_asked_for_once_and_only_if_they_are_needed() -> None:
    frames = [frame for frame in frames_of(rich()) if not told_by(frame)]
    known = {queue: QueueNames("account", f"name {queue}") for queue in (1, 2, 3)}
    asked: list[int] = []

    def more() -> Names:
        asked.append(1)
        return known

    decoder = Decoder(more_names=more)
    rows = [row for frame in frames for row in decoder.decode([frame]).to_pylist()]
    assert {(row["queue"], row["queue_name"]) for row in rows if row["queue"]} == {
        (queue, name.name) for queue, name in known.items()
    }
    assert asked == [1]
    Decoder(more_names=more, names=dict(known)).decode(frames)
    Decoder(more_names=more, columns=["event", "queue"]).decode(frames)
    assert asked == [1]
    only = Decoder(more_names=more, columns=["queue"], wanted=Filter(queues=frozenset({"name 3"})))
    assert set(only.decode(frames)["queue"].to_pylist()) == {3} and asked == [1, 1]


def test_batches_are_bounded_and_never_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = frames_of(rich())
    monkeypatch.setattr(decode, "ROWS_A_BATCH", 2)
    batches = list(Decoder().batches(frames))
    assert len(batches) == len(frames) and all(batch.num_rows for batch in batches)
    assert sum(batch.num_rows for batch in batches) == sum(frame.row_count for frame in frames)
    assert list(Decoder(wanted=Filter(queues=frozenset({77}))).batches(frames)) == []


def test_a_record_of_an_unknown_type_is_named() -> None:
    row = (200).to_bytes(8, "little") + bytes(56)
    frame = build(
        cluster=1, region=0, shard=0, epoch=1, number=9, time_ms=1, previous_digest=bytes(16), rows=row, variable=b""
    )
    with pytest.raises(LogCorrupt, match="frame 9 has a record of type 200"):
        Decoder().decode([frame])
    with pytest.raises(LogCorrupt, match=r"Shard 0, frames 9 to 9: frame 9 has .*: read them with the release that"):
        list(Decoder().batches([frame]))


def test_an_extent_beyond_its_frame_is_refused() -> None:
    row = int(Type.SENT).to_bytes(8, "little") + bytes(40) + (50 << 32).to_bytes(8, "little") + bytes(8)
    frame = build(
        cluster=1, region=0, shard=0, epoch=1, number=9, time_ms=1, previous_digest=bytes(16), rows=row, variable=b"x"
    )
    with pytest.raises(LogCorrupt, match="frame 9 has a record that points beyond"):
        Decoder().decode([frame])


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 10)), max_size=12))
def test_pieces_of_a_buffer(extents: list[tuple[int, int]]) -> None:
    import numpy as np

    data = bytes(range(65, 65 + 50))
    starts = np.array([start for start, _ in extents], dtype=np.int64)
    lengths = np.array([length for _, length in extents], dtype=np.int64)
    found = pieces(data, starts, lengths, pa.binary()).to_pylist()
    assert found == [data[start : start + length] for start, length in extents]
