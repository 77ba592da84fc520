"""Reconciling two brokers' histories: what a plain fold over both logs finds, row for row."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from batonq.client.models import Outgoing
from batonq.errors import InvalidInput
from batonq.pipeline.events.plain import events as plain_events
from batonq.pipeline.jobs import reconcile as job
from batonq.pipeline.reading.history import open_history
from batonq.pipeline.tables.reconcile import KINDS, NAMED_MAX, TABLE
from batonq.sync import Baton
from tests.pipeline.frames import Row, assert_rows, rows_of
from tests.pipeline.job_support import run_job
from tests.support.server import TestServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# order and version of what each region was sent, in this order
EAST = [("a", 1), ("a", 2), ("b", 1), ("b", 3), ("b", 2), ("c", 1), ("d", 9), ("d", 10), ("e", 1), ("e", 1)]
WEST = [("a", 2), ("a", 1), ("b", 1), ("b", 2), ("b", 3), ("d", 9), ("d", 10), ("f", 5), ("", 1)]


def fill(directory: Path, sent: list[tuple[str, int]]) -> None:
    """Each message is sent, and one dies and is redriven: that makes no second one."""
    with TestServer(str(directory), shards=2) as server, Baton(server.url) as baton:
        orders = baton.create_queue("orders", max_receives=1, dead_letter_queue="dead", dead_letter_on="failure")
        for order, version in sent:
            attributes = {"order": order} if order else {}
            orders.send({"order": order, "state": version}, attributes=attributes)
        baton.create_queue("other").send_many([Outgoing("no order"), Outgoing("none")])
        (message,) = orders.receive(1, wait=0)
        message.nack(error_class="Odd")
        baton.queue("dead").redrive(rate=1000).wait()


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = {}
    for name, sent in (("east", EAST), ("west", WEST)):
        directory = tmp_path_factory.mktemp(name)
        fill(directory, sent)
        found[name] = str(directory)
    return found


# --- the fold ---------------------------------------------------------------------------------------


def plain_originals(regions: dict[str, str]) -> list[Row]:
    first: dict[tuple[str, str], Row] = {}
    for source, directory in regions.items():
        history = open_history(directory)
        for shard in history.shards():
            for event in plain_events(history.frames(shard.shard, shard.first, shard.next), bodies=True):
                if event["body_bytes"] is None or event["sequence"] is None or event["queue_name"] != "orders":
                    continue
                line = json.loads(event["lineage"])["first_id"] if event["lineage"] else event["message_id"]
                place = event["event"] != "sent", event["time"], event["shard"], event["logical_time"]
                if (source, line) not in first or place < first[source, line]["place"]:
                    first[source, line] = {**event, "source": source, "id": f"{source}/{line}", "place": place}
    return sorted(first.values(), key=lambda row: row["place"][1:])


def row(kind: str, key: str, version: Any, sources: list[str], found: list[Row], detail: str) -> Row:
    return {
        "kind": kind,
        "key": key,
        "version": None if version is None else str(version),
        "sources": sources,
        "messages": [one["id"] for one in found][:NAMED_MAX],
        "count": len(found),
        "detail": detail,
        "first_at": min(one["time"] for one in found),
        "last_at": max(one["time"] for one in found),
    }


def plain_presence(originals: list[Row], *, versions: bool) -> list[Row]:
    things: dict[tuple[str, Any], dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for one in originals:
        key = dict(one["attributes"] or ()).get("order")
        if key is not None:
            things[key, json.loads(one["body"])["state"] if versions else None][one["source"]].append(one)
    rows = []
    for (key, version), has in things.items():
        names = sorted(has)
        found = [one for name in names for one in has[name]]
        if len(names) > 1:
            rows.append(row("duplicate", key, version, names, found, "in " + " and in ".join(names)))
        lacking = [name for name in ("east", "west") if name not in has]
        if lacking:
            detail = f"in {', '.join(names)}; not in {', '.join(lacking)}"
            rows.append(row("missing", key, version, names, found, detail))
        more = [f"{len(has[name])} times in {name}" for name in names if len(has[name]) > 1]
        if more:
            rows.append(row("repeated", key, version, names, found, ", ".join(more)))
    return rows


def plain_falling(originals: list[Row]) -> list[Row]:
    lines: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for one in originals:
        key = dict(one["attributes"] or ()).get("order")
        if key is not None:
            lines[key, one["source"]].append({**one, "version": json.loads(one["body"])["state"]})
    rows = []
    for (key, source), line in lines.items():
        falls = [(one, other) for one, other in pairwise(line) if other["version"] < one["version"]]
        if falls:
            one, other = falls[0]
            detail = f"in {source}: {other['version']} comes after {one['version']}"
            rows.append(
                {**row("order", key, other["version"], [source], [one, other], detail), "count": len(falls) + 1}
            )
    return rows


def run(spark: SparkSession, regions: dict[str, str], lake: Path, *words: str) -> tuple[Any, list[Row]]:
    histories = [f"--history={name}={url}" for name, url in regions.items()]
    outcome = run_job(spark, job, *histories, "--queue", "orders", *words, lake=lake)
    from batonq.pipeline.lake import Lake

    return outcome, rows_of(Lake(lake).read(spark, TABLE.name), TABLE)


def test_two_brokers_by_key_and_version(spark: SparkSession, regions: dict[str, str], tmp_path: Path) -> None:
    version = "cast(get_json_object(body, '$.state') as int)"
    outcome, found = run(spark, regions, tmp_path / "lake", "--key", "attributes['order']", "--version", version)
    originals = plain_originals(regions)
    assert len(originals) == len(EAST) + len(WEST)
    wanted = plain_presence(originals, versions=True) + plain_falling(originals)
    assert_rows(found, wanted, ("kind", "key", "version", "detail"))
    assert {one["kind"] for one in found} == set(KINDS)
    order = {one["detail"] for one in found if one["kind"] == "order"}
    assert order == {"in east: 2 comes after 3", "in west: 1 comes after 2"}
    assert outcome.code == 1
    assert outcome.summary["sources"] == {
        "east": {"messages": len(EAST), "withoutKey": 0},
        "west": {"messages": len(WEST), "withoutKey": 1},
    }
    assert "order b (2): in east: 2 comes after 3" in outcome.text


def test_by_key_alone_and_by_the_kinds_that_matter(
    spark: SparkSession, regions: dict[str, str], tmp_path: Path
) -> None:
    key = ("--key", "attributes['order']")
    outcome, found = run(spark, regions, tmp_path / "lake", *key, "--kinds", "missing,order")
    wanted = [one for one in plain_presence(plain_originals(regions), versions=False) if one["kind"] == "missing"]
    assert {(one["key"], one["detail"]) for one in found if one["kind"] == "missing"} == {
        (one["key"], one["detail"]) for one in wanted
    }
    order = {one["key"]: (one["sources"], one["detail"]) for one in found if one["kind"] == "order"}
    told = (["east", "west"], "west: not in the order of east")
    assert order == {"a": told, "b": told}, "d is in both, in the same order"
    assert outcome.code == 1
    only = {"east": regions["east"], "again": regions["east"]}
    outcome, found = run(spark, only, tmp_path / "lake", *key, "--kinds", "missing,order")
    assert (outcome.code, found) == (0, []) and outcome.text.endswith("There are no differences.")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--history", "east=x"], "at least twice"),
        (["--history", "x", "--history", "west=x"], "not 'x'"),
        (["--history", "east=x", "--history", "east=y"], "The name east is used for two histories"),
        (["--history", "a=x", "--history", "b=y", "--kinds", "odd"], "unknown kind 'odd'"),
    ],
)
def test_what_cannot_be_compared(words: list[str], why: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=why):
        run_job(None, job, *words, "--key", "dedup_key", lake=tmp_path)  # type: ignore[arg-type]


def test_an_expression_that_cannot_be_read(spark: SparkSession, regions: dict[str, str], tmp_path: Path) -> None:
    for key, why in (("nothing_of_this_name", "nothing_of_this_name"), ("attributes[", "--key cannot be read")):
        with pytest.raises(InvalidInput, match=why):
            run(spark, regions, tmp_path / "lake", "--key", key)


def test_bodies_are_read_only_when_they_are_looked_at() -> None:
    assert not job.needs_bodies("attributes['order']", "attributes['v']", [*KINDS])
    assert job.needs_bodies("get_json_object(body, '$.a')", "attributes['v']", [*KINDS])
    assert job.needs_bodies("dedup_key", None, ["order"])
    assert not job.needs_bodies("dedup_key", None, ["missing"])
