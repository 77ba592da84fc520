"""Logs that older releases wrote are read: what is in `logs/` stays, and gets company when the format changes.

Each was written by a node of its time: two standard queues, one with the other for its dead letters, and a FIFO queue;
messages sent, leased, deleted, given up; an attempt id that is remembered.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from batonq.core.catalog.machine import Catalog
from batonq.core.commands import Accepted, Once, Send
from batonq.core.records import FORMAT_VERSION
from batonq.core.shard.machine import Shard
from batonq.log.frames import Frame, parse
from tests.core.rig import Rig, SealedFrame

LOGS = Path(__file__).parent / "logs"
VERSIONS = sorted({int(path.name.split("-")[1]) for path in LOGS.glob("version-*.frames")})


def frames(version: int, log: str) -> Iterator[Frame]:
    data = (LOGS / f"version-{version}-{log}.frames").read_bytes()
    offset = 0
    while offset < len(data):
        frame = parse(data, offset)
        assert frame.version == version <= FORMAT_VERSION
        offset += len(frame.header) + len(frame.rows) + len(frame.variable)
        yield frame


def read_catalog(version: int) -> Catalog:
    catalog = Catalog()
    for frame in frames(version, "catalog"):
        catalog.apply_frame(frame.number, frame.words(), frame.variable)
    catalog.validate()
    return catalog


def read_shard(version: int, number: int) -> Shard:
    shard = Shard(number)
    for frame in frames(version, f"shard-{number}"):
        shard.apply_frame(frame.number, frame.words(), frame.variable)
    shard.validate()
    return shard


@pytest.mark.parametrize("version", VERSIONS)
def test_the_catalog_of_an_older_release_is_read(version: int) -> None:
    catalog = read_catalog(version)
    by_name = {entry.name: entry for entry in catalog.queues.values()}
    work, dead = by_name["work"], by_name["dead"]
    assert (work.shards, dead.shards, by_name["line.fifo"].fifo) == ((1,), (0,), True)
    assert work.spread.of_key("anything") == 1
    assert work.dead_letter == dead.link and work.tags == {"team": "red"}
    again = Catalog()
    again._apply_base(catalog.version, catalog.last_time_ms, catalog.dump())
    assert again.dump() == catalog.dump()


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shards_of_an_older_release_are_read(version: int) -> None:
    shards = [read_shard(version, number) for number in (0, 1)]
    counters = {state.policy.name: shard.counters(number) for shard in shards for number, state in shard.queues.items()}
    work, dead, line = counters["work"], counters["dead"], counters["line.fifo"]
    assert (work.visible, work.in_flight, work.deleted, work.dead_lettered) == (2, 1, 1, 1)
    assert (dead.visible, dead.arrived) == (1, 1)
    assert (line.visible, line.in_flight) == (1, 1)


# --- before commands were columns -----------------------------------------------------------------


@pytest.mark.parametrize("name", ["before-commands", "operator", "topics"])
def test_a_log_gives_the_same_state_as_when_it_was_written(name: str) -> None:
    """`before-commands` was written by a release that had other ways to send and receive, one record at a time and in
    runs: sends of every kind, named and numbered ones, leases, returns, dead letters, an attempt, a purge. `operator`
    was written by the first release in which an operator deletes, edits and retries messages and a job deletes some.
    `topics` was written by the first release with topics: copies in queues, with and without an envelope, and copies
    that wait.
    """
    expected = json.loads((LOGS / f"{name}.json").read_text())
    data = (LOGS / f"{name}.frames").read_bytes()
    sealed: dict[int, SealedFrame] = {}
    offset = 0
    while offset < len(data):
        frame = parse(data, offset)
        sealed[frame.number] = SealedFrame(frame.number, frame.words(), frame.variable)
        offset += len(frame.header) + len(frame.rows) + len(frame.variable)
    rig = Rig()
    rig.frames = sealed
    rig.shard = rig.replayed()
    rig.shard.validate()
    for queue, told in expected["queues"].items():
        counters = rig.shard.counters(int(queue))._asdict()
        assert {name: counters[name] for name in told["counters"]} == told["counters"]
        messages = [
            [
                view.sequence,
                view.state,
                view.receive_count,
                view.priority,
                view.error_class,
                view.reason,
                rig.payload(view).body.decode(),
                rig.payload(view).group,
            ]
            for view in rig.messages(int(queue))
        ]
        assert messages == told["messages"]
    for topic, told in expected.get("topics", {}).items():
        state = rig.shard.topics[int(topic)]
        assert [*state.facts()["totals"]] == told["totals"] and sorted(state.subscriptions) == told["subscriptions"]
    waiting = [[rig.shard.sequence_at(slot), one[0]] for slot, one in rig.shard.messages.fanned.items()]
    assert sorted(waiting) == expected.get("waiting", [])


def test_requests_that_an_older_release_remembered_are_known() -> None:
    expected = json.loads((LOGS / "before-commands.json").read_text())
    data = (LOGS / "before-commands.frames").read_bytes()
    shard = Shard(0)
    offset = 0
    while offset < len(data):
        frame = parse(data, offset)
        shard.apply_frame(frame.number, frame.words(), frame.variable)
        offset += len(frame.header) + len(frame.rows) + len(frame.variable)
    now = expected["now"]
    sent = [shard.counters(queue).sent for queue in (1, 4)]
    by_sdk, by_key, by_producer, by_dedup_id = (
        Send(1, [b"together 2", b"together 3"], request=79),
        Send(4, [b"named 1", b"named 2"], once=Once("key", "content", 86_400_000)),
        Send(4, [b"numbered 2"], producer="p", numbers=[2]),
        Send(4, [b"once"], [bytes(16)], dedup_ids=["k"]),
    )
    told = [shard.send([command], now)[0] for command in (by_sdk, by_key, by_producer, by_dedup_id)]
    assert [outcome.replayed for outcome in told] == [False, True, False, False]
    assert all(isinstance(one, Accepted) for outcome in told for one in outcome)
    assert [shard.counters(queue).sent for queue in (1, 4)] == sent, "nothing was sent a second time"


def test_retained_history_and_reader_groups_are_read() -> None:
    """Written by the first release with reader groups: retained messages, one of them a dead letter from another queue
    of the shard, and a group with a member, a commit and a failure.
    """
    expected = json.loads((LOGS / "readers.json").read_text())
    data = (LOGS / "readers.frames").read_bytes()
    shard = Shard(0)
    offset = 0
    while offset < len(data):
        frame = parse(data, offset)
        assert frame.version == expected["format"]
        shard.apply_frame(frame.number, frame.words(), frame.variable)
        offset += len(frame.header) + len(frame.rows) + len(frame.variable)
    shard.validate()
    now = expected["now"]
    retained = {queue: [[*one] for one in shard.retained_of(int(queue), now).entries()] for queue in ("1", "3")}
    assert retained == expected["retained"]
    assert [reader.values() for reader in shard.readers(1)] == expected["readers"]
    assert shard.format == expected["format"]
