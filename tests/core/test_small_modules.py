"""The small modules of core: payload codec, ids, columns, sections, the open frame, notes."""

from __future__ import annotations

import hashlib
import uuid
from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.core import sections
from batonq.core.commands import Send
from batonq.core.ids import key_hash, message_id, parse_message_id
from batonq.core.open_frame import OpenFrame
from batonq.core.payload import (
    Attribute,
    Lineage,
    content_mark,
    content_marks,
    decode,
    decode_attributes,
    encode_attributes,
    encode_payload,
    merge_lineage,
    payload_parts,
    with_lineage,
)
from batonq.core.policy import QueuePolicy
from batonq.core.records import FRAME_ROWS_MAX, ROW_BYTES, State, decode_notes, encode_notes, word0
from batonq.core.shard.state.columns import COLUMN_NAMES, Columns
from tests.core.rig import Bench, make_send
from tests.support import ask

texts = st.text(max_size=40)
attributes = st.lists(
    st.builds(
        Attribute,
        st.text(min_size=1, max_size=20),
        st.sampled_from(("String", "Number.int", "Binary")),
        st.binary(max_size=30),
        st.booleans(),
    ),
    max_size=5,
    unique_by=lambda attribute: attribute.name,
)
sends = st.builds(
    lambda body, attribute_list, sender, group, dedup_id, trace: make_send(
        body, attributes=encode_attributes(attribute_list), sender=sender, group=group, dedup_id=dedup_id, trace=trace
    ),
    texts,
    attributes,
    texts,
    texts,
    texts,
    texts,
)

# --- payload ------------------------------------------------------------------------------------


@given(sends, st.integers(0, (1 << 64) - 1))
def test_a_payload_comes_back_as_it_was(send: ask.Message, sent_ms: int) -> None:
    data = ask.payload(send, sent_ms)
    payload = decode(data)
    assert (payload.sent_ms, payload.lineage) == (sent_ms, b"")
    for field in ("body", "body_md5", "attributes", "sender", "group", "dedup_id", "trace"):
        assert getattr(payload, field) == getattr(send, field)
    assert encode_payload(payload) == data


@given(attributes)
def test_attributes_come_back_sorted_by_name(attribute_list: list[Attribute]) -> None:
    assert decode_attributes(encode_attributes(attribute_list)) == sorted(attribute_list)


def test_the_encoding_of_attributes_is_what_their_digest_covers() -> None:
    """The example of the digest's rule: name, type, one byte for text or binary, value, each with its length."""
    data = encode_attributes(
        [Attribute("b", "Binary", b"\x00\x01", True), Attribute("a", "String", "é".encode(), False)]
    )
    assert data == b"\0\0\0\1a\0\0\0\6String\1\0\0\0\2\xc3\xa9" + b"\0\0\0\1b\0\0\0\6Binary\2\0\0\0\2\0\1"


@given(st.lists(sends, min_size=1, max_size=5), st.integers(0, (1 << 64) - 1), st.booleans())
def test_payloads_of_a_batch_are_those_of_its_messages(messages: list[ask.Message], sent_ms: int, bare: bool) -> None:
    if bare:
        messages = [ask.Message(one.body, one.body_md5) for one in messages]
    send = ask.batch(1, [replace(one, sender=messages[0].sender) for one in messages])
    parts, lengths = payload_parts(send, sent_ms)
    each = [ask.payload_at(send, at, sent_ms) for at in range(len(messages))]
    count = len(parts) // len(messages)
    assert [b"".join(parts[at * count : (at + 1) * count]) for at in range(len(messages))] == each
    assert lengths == [*map(len, each)]
    assert content_marks(send) == [*map(content_mark, each)]


def test_a_digest_that_is_missing_in_a_batch_shifts_nothing() -> None:
    send = Send(1, [b"one", b"two"], digests=[b"0123456789abcdef", b""])
    parts, lengths = payload_parts(send, 5)
    payloads = b"".join(parts)
    assert sum(lengths) == len(payloads)
    second = decode(payloads[lengths[0] :])
    assert (second.body, second.body_md5) == (b"two", b"")
    assert decode(payloads[: lengths[0]]).body == b"one"


@given(sends, sends)
def test_the_mark_of_content_depends_on_body_and_attributes_alone(one: ask.Message, other: ask.Message) -> None:
    same = ask.Message(
        one.body, one.body_md5, one.attributes, sender=other.sender, group=other.group, dedup_id=other.dedup_id
    )
    assert content_mark(ask.payload(one, 1)) == content_mark(ask.payload(same, 2)) <= 0xFFFFFFFF
    relaid = encode_payload(with_lineage(decode(ask.payload(one, 1)), Lineage(first_id="x")))
    assert content_mark(relaid) == content_mark(ask.payload(one, 1))


def test_the_mark_tells_other_content() -> None:
    marks = {content_mark(ask.payload(make_send(str(number)), 0)) for number in range(1_000)}
    assert len(marks) > 980
    plain = content_mark(ask.payload(make_send("a"), 0))
    assert plain != content_mark(
        ask.payload(make_send("a", attributes=encode_attributes([Attribute("n", "String", b"v", False)])), 0)
    )


def test_a_lineage_is_written_without_what_is_unknown_and_read_with_what_is_new() -> None:
    assert Lineage(first_queue=3).encode() == b'{"first_queue":3}'
    assert Lineage.decode(b'{"first_queue":3,"of_a_later_release":1}') == Lineage(first_queue=3)
    assert Lineage.decode(b"") == Lineage()


def test_a_later_move_keeps_where_a_message_began() -> None:
    first = Lineage(
        message_id="m1",
        source_queue=1,
        first_queue=1,
        first_id="m1",
        first_failure_ms=10,
        last_failure_ms=20,
        attempts=3,
        error_class="E",
        reason="r",
        moved="dead_letter",
    )
    back = merge_lineage(first, Lineage(first_queue=2, first_id="m2", sent_ms=40, moved_ms=40, moved="redrive"))
    assert (back.first_queue, back.first_id, back.source_queue, back.message_id) == (1, "m1", 1, "")
    assert (back.first_failure_ms, back.last_failure_ms, back.attempts, back.error_class) == (10, 20, 3, "E")
    again = merge_lineage(
        back,
        Lineage(
            message_id="m3",
            source_queue=1,
            first_queue=1,
            first_id="m3",
            last_failure_ms=50,
            attempts=1,
            moved="dead_letter",
        ),
    )
    assert (again.first_id, again.message_id, again.attempts, again.sent_ms) == ("m1", "m3", 1, 40)
    assert (again.first_failure_ms, again.last_failure_ms, again.reason) == (10, 50, "r")


# --- ids ------------------------------------------------------------------------------------------


@given(st.integers(0, 0xFFFF), st.integers(0, (1 << 48) - 1))
def test_a_message_id_is_a_uuid_that_tells_shard_and_sequence(shard: int, sequence: int) -> None:
    text = message_id(shard, sequence)
    made = uuid.UUID(text)
    assert (str(made), made.version, made.variant) == (text, 8, uuid.RFC_4122)
    assert parse_message_id(text) == (shard, sequence)


@given(st.one_of(st.uuids().map(str), st.text(max_size=40)))
def test_other_ids_are_told_from_ours(text: str) -> None:
    assert parse_message_id(text) is None


def test_key_hashes_depend_on_every_part() -> None:
    keys: list[tuple[str | int, ...]] = [(1, "a"), (1, "a", ""), (1, "", "a"), (1,), ("a",), (), (11, "a")]
    assert len({key_hash(*key) for key in keys}) == len(keys)
    assert all(0 < key_hash(*key) < 1 << 64 for key in keys)
    assert key_hash("x") == int.from_bytes(hashlib.blake2b(b"x", digest_size=8).digest(), "little")


# --- columns --------------------------------------------------------------------------------------


def test_a_slot_takes_about_a_hundred_bytes() -> None:
    columns = Columns()
    assert sum(getattr(columns, name).itemsize for name in COLUMN_NAMES) <= 106


def test_a_waiting_message_takes_at_most_110_bytes_with_its_timer_and_line() -> None:
    bench = Bench()
    bench.queue(1)
    count = 20_000
    for _ in range(count // 1_000):
        bench.send(1, *["m"] * 1_000)
        bench.commit()
    kept = sum(len(data) for data in bench.shard.save().values())
    assert kept / count <= 110


def test_freed_slots_are_used_again() -> None:
    bench = Bench()
    bench.queue(1)
    for _ in range(50):
        bench.send(1, "a", "b", "c")
        bench.delete(1, *bench.receive(1))
    assert bench.shard.columns.used == 3
    bench.check()


def test_columns_grow_without_changing_identity() -> None:
    columns = Columns()
    before = {name: id(getattr(columns, name)) for name in COLUMN_NAMES}
    columns.reserve(10_000)
    assert {name: id(getattr(columns, name)) for name in COLUMN_NAMES} == before
    assert columns.capacity >= 10_000
    assert set(columns.state) == {State.FREE}


# --- sections, frames, notes, words -----------------------------------------------------------------


@given(st.dictionaries(st.text(max_size=10), st.binary(max_size=50), max_size=8))
def test_sections_come_back_in_order(named: dict[str, bytes]) -> None:
    assert list(sections.unpack(sections.pack(named)).items()) == list(named.items())
    assert sections.with_prefix("p", sections.prefixed("p", named) | {"other.x": b""}) == named


def test_parts_of_a_frame_are_found_by_the_word_they_got() -> None:
    frame = OpenFrame(7)
    words = [frame.put(part) for part in (b"first", b"", b"second")]
    row = frame.add(1, 2, 3, 4, 5, 6, words[2], 8)
    rows, variable = frame.seal()
    assert (row, len(rows)) == (7 << 16, ROW_BYTES)
    offset, length = words[2] & 0xFFFFFFFF, words[2] >> 32
    assert variable[offset : offset + length] == b"second"
    assert words[1] == 0
    assert frame.size == len(rows) + len(variable)
    frame.begin(8)
    assert (frame.number, frame.row_count, frame.size) == (8, 0, 0)


def test_a_frame_refuses_more_rows_than_a_position_can_name() -> None:
    frame = OpenFrame()
    frame.extend(array("Q", [0]) * (8 * FRAME_ROWS_MAX))
    with pytest.raises(AssertionError, match="before it is full"):
        frame.add(0, 0, 0, 0, 0, 0, 0, 0)


@given(st.text(max_size=300), st.text(max_size=300))
def test_notes_come_back(first: str, second: str) -> None:
    assert decode_notes(encode_notes(first, second)) == (first, second)


def test_the_first_word_of_a_row() -> None:
    assert word0(3, 1, 255, 20, 0xFFFFFFFF) == 3 | 1 << 8 | 255 << 16 | 20 << 24 | 0xFFFFFFFF << 32


def test_a_policy_comes_back_and_drops_what_it_does_not_know() -> None:
    policy = QueuePolicy(7, "t", "q.fifo", version=3, fifo=True, dead_letter_queue=9)
    assert QueuePolicy.decode(policy.encode()) == policy
    assert QueuePolicy.decode(b'{"queue":1,"tenant":"t","name":"n","later":true}') == QueuePolicy(1, "t", "n")
