"""Bodies in a payload store: which objects a shard needs, after whatever happened to their messages."""

from __future__ import annotations

import json
import random
from hashlib import sha256
from typing import Any

import pytest

from batonq.client import payloads as client_payloads
from batonq.core.commands import Job, Send
from batonq.core.payload import (
    CLIENT_POINTERS,
    REFERS,
    STORED,
    Content,
    decode,
    encode_payload,
    encode_pointer,
    referred_key,
    stored_key,
)
from batonq.core.records import PAYLOADS_VERSION, PLAIN_VERSION, SentFlag, Type
from batonq.core.shard.state.stored_payloads import KEPT_MS
from tests.core.rig import Bench, assert_same_state, claim, deliver
from tests.support import ask

WORK, DEAD, FAR = 1, 2, 3  # FAR is on the other shard
HOUR = "2026111722"
CLIENTS = "client/c1f5"  # the folder of what clients have stored; their names are in capitals


def key_of(name: str) -> str:
    folder = f"{CLIENTS}/" if name.isupper() else ""
    return f"{folder}{HOUR}/{sha256(name.encode()).hexdigest()}"


def pointer_of(name: str, **more: str) -> bytes:
    """The pointer of a client that has stored a body."""
    place = {"s3BucketName": "bucket", "s3Key": f"prefix/{key_of(name)}", **more}
    return json.dumps([CLIENT_POINTERS[0], place]).encode()


def send_stored(bench: Bench, queue: int, *names: str, **columns: Any) -> None:
    """Messages with their bodies in the store, those in capitals stored by a client; a name with a dash has its body in
    the message.
    """
    bodies, contents = [], []
    for name in names:
        if "-" in name:
            bodies.append(name.encode())
            contents.append(int(Content.TEXT))
        elif name.isupper():
            bodies.append(pointer_of(name))
            contents.append(Content.TEXT | REFERS)
        else:
            bodies.append(encode_pointer(key_of(name), 5))
            contents.append(Content.TEXT | STORED)
    bench.shard.send([Send(queue, bodies, [bytes(16)] * len(names), contents=contents, **columns)], bench.now)


def needed(bench: Bench, prefix: str = "") -> set[str]:
    return bench.shard.needed_payloads(prefix, bench.now)


def in_log(bench: Bench) -> set[str]:
    """The objects that living messages point to, by what the log has."""
    bench.commit()
    shard = bench.shard
    found = set()
    for slot in shard.live_slots():
        payload = bench._payload_bytes(shard.columns.position[slot], shard.columns.extent[slot])
        found.add(stored_key(payload))
        assert (slot in shard.messages.stored.of_slot) == bool(stored_key(payload))
    return found - {""}


def test_an_object_is_needed_until_its_last_message_is_gone() -> None:
    bench = Bench()
    bench.queue(WORK)
    send_stored(bench, WORK, "a", "b", "a", "c-plain")
    assert needed(bench) == {key_of("a"), key_of("b")}
    leases = bench.receive(WORK)
    bench.delete(WORK, leases[0], leases[3])
    assert needed(bench) == {key_of("a"), key_of("b")}
    bench.delete(WORK, leases[2])
    assert needed(bench) == {key_of("b")}
    assert needed(bench, HOUR) == {key_of("b")} and not needed(bench, "2026111723")
    bench.check()


def test_an_object_of_a_client_is_needed_like_one_of_the_server() -> None:
    bench = Bench()
    bench.queue(WORK)
    send_stored(bench, WORK, "A", "B", "A", "c-plain", "b")
    rows = [row for row in bench.check() if row.type == Type.SENT]
    assert [bool(row.flags & SentFlag.STORED) for row in rows] == [True, True, True, False, True]
    assert needed(bench) == {key_of("A"), key_of("B"), key_of("b")} == in_log(bench)
    assert needed(bench, f"{CLIENTS}/{HOUR}") == {key_of("A"), key_of("B")} and needed(bench, HOUR) == {key_of("b")}
    assert bench.shard.format == PAYLOADS_VERSION
    for view in bench.messages(WORK)[:2]:
        assert bench.payload(view).content == Content.TEXT | REFERS
    leases = bench.receive(WORK)
    bench.delete(WORK, leases[0], leases[1])
    assert needed(bench) == {key_of("A"), key_of("b")}
    bench.truncate(bench.next_frame)
    assert bench.replayed().needed_payloads("", bench.now) == needed(bench)
    assert bench.loaded().needed_payloads("", bench.now) == needed(bench)
    bench.check()


def test_an_object_of_a_client_is_needed_by_the_retained_history() -> None:
    bench = Bench()
    bench.queue(WORK, retain_ms=1_000)
    send_stored(bench, WORK, "A")
    bench.delete(WORK, *bench.receive(WORK))
    bench.check()
    bench.later(KEPT_MS + 999)
    assert needed(bench) == {key_of("A")} == bench.replayed().needed_payloads("", bench.now)
    bench.later(1)
    assert needed(bench) == set()


def test_the_clients_pointer_names_the_object() -> None:
    assert referred_key(pointer_of("A")) == key_of("A")
    assert {client_payloads.POINTER, client_payloads.OLD_POINTER} == {*CLIENT_POINTERS}
    old = json.dumps([CLIENT_POINTERS[1], {"s3Key": key_of("A"), "s3BucketName": "b"}], indent=2).replace("/", "\\/")
    assert referred_key(old.encode()) == key_of("A"), "however it is written"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"text",
        CLIENT_POINTERS[0].encode(),
        json.dumps([*CLIENT_POINTERS]).encode(),
        json.dumps({CLIENT_POINTERS[0]: 1, "s3Key": 2}).encode(),
        json.dumps(["other", {"s3BucketName": CLIENT_POINTERS[0], "s3Key": key_of("A")}]).encode(),
        pointer_of("A", s3Key="some-uuid-of-amazons-library"),
        pointer_of("A", s3Key=key_of("a")),
        pointer_of("A", s3Key=f"client/{key_of('a')}"),
        pointer_of("A", s3Key=key_of("A") + "/.."),
        pointer_of("A", s3Key=key_of("A") + "\n"),
        pointer_of("A", s3Key=f"client/../{key_of('a')}"),
        pointer_of("A", s3Key=f"{CLIENTS}/20261117/{'0' * 64}"),
        pointer_of("A", more="x" * 5_000),
        pointer_of("A")[:-1],
        b"[" * 2_000 + CLIENT_POINTERS[0].encode(),
        b"\xff" + pointer_of("A"),
    ],
)
def test_what_does_not_name_an_object_of_a_server_is_not_one(body: bytes) -> None:
    assert referred_key(body) == ""


def test_only_a_log_that_uses_it_is_written_in_the_newer_format() -> None:
    bench = Bench()
    bench.queue(WORK)
    send_stored(bench, WORK, "a-plain")
    assert all(not row.flags & SentFlag.STORED for row in bench.check())
    assert (bench.shard.format, bench.follower.format) == (PLAIN_VERSION, PLAIN_VERSION)
    assert "stored" not in bench.shard.messages.stored.facts()
    send_stored(bench, WORK, "a", "b-plain")
    rows = [row for row in bench.check() if row.type == Type.SENT]
    assert [bool(row.flags & SentFlag.STORED) for row in rows] == [True, False]
    assert {bench.shard.format, bench.follower.format, bench.loaded().format} == {PAYLOADS_VERSION}
    bench.truncate(bench.next_frame)
    assert bench.replayed().format == PAYLOADS_VERSION


def test_an_edit_that_replaces_the_body_lets_the_object_go_and_another_edit_does_not() -> None:
    bench = Bench()
    bench.queue(WORK)
    send_stored(bench, WORK, "a", "b")
    bench.commit()
    first, second = bench.messages(WORK)
    kept = bench.payload(first)._replace(trace="t")
    changed = bench.payload(second)._replace(body=b"inline", content=int(Content.TEXT), body_md5=b"")
    for view, payload in ((first, kept), (second, changed)):
        bench.shard.edit_message(WORK, view.slot, view.sequence, encode_payload(payload), bench.now)
    assert needed(bench) == {key_of("a")} == in_log(bench)
    bench.check()


def test_a_moved_message_is_needed_on_one_shard_at_every_moment_and_for_an_hour_at_its_source() -> None:
    """A sweeper may ask the destination before the message arrives, and the source after it has left."""
    near, far = Bench(0), Bench(1)
    near.queue(WORK, max_receives=1, dead_letter_queue=FAR, dead_letter_shard=1, dead_letter_on_failure=True)
    far.queue(FAR)
    send_stored(near, WORK, "a")
    (lease,) = near.receive(WORK)
    ask.nack(near.shard, WORK, [ask.Nack(claim(lease))], near.now)
    assert (needed(near), needed(far)) == ({key_of("a")}, set())
    deliver(near, far)
    assert (needed(near), needed(far)) == ({key_of("a")}, {key_of("a")})
    assert in_log(near) == set()
    near.check(), far.check()
    assert near.loaded().needed_payloads("", near.now) == {key_of("a")}
    near.truncate(near.next_frame)
    assert near.replayed().needed_payloads("", near.now) == {key_of("a")}
    near.later(KEPT_MS - 1)
    assert needed(near) == {key_of("a")}
    near.later(1)
    assert (needed(near), needed(far)) == (set(), {key_of("a")})
    for number in range(3):  # and what is over is forgotten when another one moves
        send_stored(near, WORK, f"next{number}")
        (lease,) = near.receive(WORK)
        ask.nack(near.shard, WORK, [ask.Nack(claim(lease))], near.now)
        deliver(near, far)
        near.later(KEPT_MS)
    assert len(near.shard.messages.stored.moved) == 1
    near.check(), far.check()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_a_shard_knows_the_objects_of_its_messages(seed: int) -> None:
    """Sends, deletes, failures, dead letters here and on another shard, redrives, edits, purges, truncations, and
    owners that start from the log or from a snapshot.
    """
    dice = random.Random(seed)
    near, far = Bench(0), Bench(1)
    near.queue(DEAD)
    near.queue(WORK, max_receives=2, dead_letter_queue=DEAD, dead_letter_on_failure=True)
    far.queue(FAR, fifo=False)
    jobs = 0
    for _ in range(150):
        step = dice.random()
        if step < 0.35:
            names = [dice.choice("abcdABCD") + dice.choice(("", "", "-plain")) for _ in range(dice.randint(1, 5))]
            send_stored(near, dice.choice((WORK, DEAD)), *names)
        elif step < 0.6:
            queue = dice.choice((WORK, DEAD))
            leases = near.receive(queue, dice.randint(1, 4))
            for lease in leases:
                if dice.random() < 0.5:
                    near.delete(queue, lease)
                else:
                    ask.nack(near.shard, queue, [ask.Nack(claim(lease))], near.now)
        elif step < 0.7:
            near.commit()
            views = [view for view in near.messages(WORK) if view.state in (1, 2)]
            if views:
                view = dice.choice(views)
                payload = near.payload(view)
                if dice.random() < 0.5:
                    payload = payload._replace(body=b"new", content=0, body_md5=b"")
                near.shard.edit_message(WORK, view.slot, view.sequence, encode_payload(payload), near.now)
        elif step < 0.78:
            destination, shard = dice.choice(((WORK, 0), (FAR, 1)))
            jobs += 1
            fields: dict[str, Any] = {"destination": destination, "destination_shard": shard, "rate_per_s": 500}
            if not near.shard.jobs.active:
                job = Job(f"job{jobs}", DEAD, state="", started_ms=0, to_move=0, **fields)
                near.shard.start_job(job, near.now)
        elif step < 0.83:
            near.shard.purge(dice.choice((WORK, DEAD)), near.now)
        elif step < 0.9:
            near.commit()
            near.truncate(dice.randint(min(near.frames), near.next_frame))
        elif step < 0.95:
            near.commit()
            near.restart(near.replayed() if dice.random() < 0.5 else near.loaded())
        near.shard.step_jobs(near.now)
        deliver(near, far)
        near.later(dice.choice((1, 100, 60_000)))
        far.now = near.now
        near.check(), far.check()
        living = in_log(near)
        assert living <= needed(near) <= living | near.shard.messages.stored.moved.keys()
        assert in_log(far) == needed(far)
        assert_same_state(near.replayed(), near.shard, near.now)


def test_the_pointer_is_what_the_payload_has_instead_of_the_body() -> None:
    bench = Bench()
    bench.queue(WORK)
    send_stored(bench, WORK, "a")
    (view,) = bench.messages(WORK)
    bench.commit()
    payload = decode(bench._payload_bytes(view.position, view.offset | view.length << 32))
    assert payload.content == Content.TEXT | STORED
    assert payload.body == f"{key_of('a')} 5".encode()
    assert payload.body_md5 == bytes(16), "of the body, as SQS clients expect"
