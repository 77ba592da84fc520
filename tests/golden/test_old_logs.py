"""Logs that older releases wrote are read: what is in `logs/` stays, and gets company when the format changes.

Each was written by a node of its time: two standard queues, one with the other for its dead letters, and a FIFO queue;
messages sent, leased, deleted, given up; an attempt id that is remembered.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from batonq.core.catalog.machine import Catalog
from batonq.core.records import FORMAT_VERSION
from batonq.core.shard.machine import Shard
from batonq.log.frames import Frame, parse

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
