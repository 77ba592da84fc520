"""The catalog: queues, dead-letter links, placement, tags, permissions, keys; and that replay gives the same state."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

from batonq.api.sqs.permissions import statement
from batonq.attribute_formats.access_policy import labels
from batonq.attribute_formats.arns import QueueName, queue_arn
from batonq.core.catalog.entries import AccessKey
from batonq.core.catalog.machine import DAY_MS, RECEIPT_KEY_LIFE_MS, Catalog, Rules
from batonq.core.catalog.queue_warnings import queue_warnings
from batonq.core.policy import MISSING_QUEUE
from batonq.core.records import PLAIN_VERSION, ROLES_VERSION, Type
from batonq.errors import (
    DeadLetterQueueRefused,
    InvalidAttributeName,
    InvalidInput,
    LogCorrupt,
    OverLimit,
    PurgeInProgress,
    QueueDeletedRecently,
    QueueDoesNotExist,
    QueueExists,
    Unavailable,
)
from tests.core.catalog_bench import ACCOUNT, OTHER, T0, Bench, redrive_to


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.check()


@pytest.fixture
def spread() -> Iterator[Bench]:
    made = Bench(shards=3)
    yield made
    made.check()


# --- creating ---------------------------------------------------------------------------------


def test_a_created_queue_is_found(bench: Bench) -> None:
    made = bench.catalog.create_queue(ACCOUNT, "q", {"DelaySeconds": "5"}, {"team": "a"}, T0 + 5)
    assert bench.catalog.by_name == {QueueName(ACCOUNT, "q"): made}
    assert (made.number, made.attributes, made.tags) == (1, {"DelaySeconds": "5"}, {"team": "a"})
    assert (made.created_ms, made.modified_ms, made.shard, made.fifo) == (T0 + 5, T0 + 5, 0, False)
    assert made.policy.delay_ms == 5000
    assert made.policy.version == made.policy_version == bench.catalog.version
    assert (made.message_bytes_max, made.wait_ms, made.content_dedup) == (1_048_576, 0, False)
    with pytest.raises(QueueDoesNotExist):
        bench.catalog.queue_by_number(2)


def test_what_requests_ask_for_is_worked_out(bench: Bench) -> None:
    made = bench.create(
        "q.fifo",
        FifoQueue="true",
        ContentBasedDeduplication="true",
        MaximumMessageSize="1024",
        ReceiveMessageWaitTimeSeconds="20",
    )
    assert (made.message_bytes_max, made.wait_ms, made.content_dedup, made.fifo) == (1024, 20_000, True, True)


def test_names_and_types_are_checked_before_anything_is_written(bench: Bench) -> None:
    before = bench.catalog.version
    for name, fifo in (("", False), ("a b", False), ("q.fifo", False), ("q", True)):
        with pytest.raises(InvalidInput):
            bench.create(name, **({"FifoQueue": "true"} if fifo else {}))
    with pytest.raises(InvalidAttributeName):
        bench.create("q", NoSuch="1")
    with pytest.raises(InvalidInput, match="is not a valid account id"):
        bench.create("q", account="a/b")
    assert bench.catalog.version == before


def test_creating_again_compares_only_what_was_passed(bench: Bench) -> None:
    made = bench.create("q", DelaySeconds="5")
    version = bench.catalog.version
    assert bench.create("q") is made
    assert bench.create("q", DelaySeconds="5", VisibilityTimeout="30") is made
    text = r"^A queue already exists with the same name and a different value for attribute «VisibilityTimeout»$"
    with pytest.raises(QueueExists, match=text):
        bench.create("q", DelaySeconds="5", VisibilityTimeout="31")
    assert bench.catalog.version == version
    assert bench.create("q", account=OTHER, VisibilityTimeout="31").number != made.number


def test_numbers_are_never_used_again() -> None:
    bench = Bench(Rules(name_wait_ms=0))
    first = bench.create("q")
    bench.catalog.delete_queue(first.number, T0)
    assert bench.replayed().next_queue == 2
    assert bench.create("q").number == 2
    bench.check()


def test_a_deleted_name_waits_sixty_seconds(bench: Bench) -> None:
    entry = bench.create("q")
    assert bench.catalog.delete_queue(entry.number, T0) == entry
    with pytest.raises(QueueDoesNotExist):
        bench.catalog.delete_queue(entry.number, T0)
    bench.now = T0 + 59_999
    with pytest.raises(QueueDeletedRecently):
        bench.create("q")
    bench.create("q", account=OTHER)
    bench.now = T0 + 60_000
    assert bench.create("q").number > entry.number
    assert bench.catalog.deleted == {}


def test_names_that_need_not_wait_any_longer_are_forgotten(bench: Bench) -> None:
    for number in range(5):
        entry = bench.create(f"q{number}")
        bench.catalog.delete_queue(entry.number, T0 + number * 60_000)
        assert len(bench.catalog.deleted) == 1


def test_limits_on_queues_and_shards() -> None:
    bench = Bench(Rules(queues_max=1))
    bench.create("a")
    with pytest.raises(OverLimit):
        bench.create("b")
    empty = Catalog()
    with pytest.raises(Unavailable):
        empty.create_queue(ACCOUNT, "q", {}, {}, T0)


def test_queues_are_listed_by_name_and_prefix(bench: Bench) -> None:
    for name in ("b2", "a", "b1", "c"):
        bench.create(name)
    bench.create("b3", account=OTHER)
    assert [entry.name for entry in bench.catalog.list_queues(ACCOUNT)] == ["a", "b1", "b2", "c"]
    assert [entry.name for entry in bench.catalog.list_queues(ACCOUNT, "b")] == ["b1", "b2"]
    assert bench.catalog.list_queues(ACCOUNT, "bb") == []
    assert bench.catalog.list_queues("222222222222") == []


# --- attributes -------------------------------------------------------------------------------


def test_attributes_change_and_raise_the_policy_version(bench: Bench) -> None:
    entry = bench.create("q", DelaySeconds="5")
    changed = bench.catalog.set_attributes(entry.number, {"VisibilityTimeout": "7"}, T0 + 9)
    assert changed.attributes == {"DelaySeconds": "5", "VisibilityTimeout": "7"}
    assert changed.modified_ms == T0 + 9
    assert changed.policy.visibility_ms == 7000
    assert changed.policy_version == bench.catalog.version > entry.policy_version


def test_a_change_that_a_shard_need_not_know_keeps_the_policy_version(bench: Bench) -> None:
    entry = bench.create("q")
    bench.catalog.changed.clear()
    bench.catalog.set_tags(entry.number, {"a": "b"}, [], T0)
    bench.catalog.set_attributes(entry.number, {"MaximumMessageSize": "2048"}, T0)
    assert bench.catalog.queue_by_number(entry.number).policy_version == entry.policy_version
    assert bench.catalog.changed == {}


def test_setting_what_is_set_already_writes_nothing(bench: Bench) -> None:
    entry = bench.create("q", DelaySeconds="5")
    version = bench.catalog.version
    assert bench.catalog.set_attributes(entry.number, {"DelaySeconds": "5"}, T0) is entry
    assert bench.catalog.set_tags(entry.number, {}, ["none"], T0) is entry
    assert bench.catalog.version == version


def test_a_refused_change_changes_nothing(bench: Bench) -> None:
    entry = bench.create("q")
    before = bench.catalog.dump()
    with pytest.raises(InvalidInput):
        bench.catalog.set_attributes(entry.number, {"DelaySeconds": "1", "VisibilityTimeout": "x"}, T0)
    with pytest.raises(QueueDoesNotExist):
        bench.catalog.set_attributes(99, {"DelaySeconds": "1"}, T0)
    assert bench.catalog.dump() == before


# --- dead letters -----------------------------------------------------------------------------


def test_a_source_points_to_its_dead_letter_queue(spread: Bench) -> None:
    dead = spread.create("dead")
    work = spread.create("work", RedrivePolicy=redrive_to("dead", 4))
    assert dead.shard != work.shard
    policy = work.policy
    assert (policy.dead_letter_queue, policy.dead_letter_shard, policy.max_receives) == (dead.number, dead.shard, 4)
    assert spread.catalog.dead_letter_sources(dead.number) == [work]
    assert spread.catalog.dead_letter_sources(work.number) == []
    free = spread.catalog.set_attributes(work.number, {"RedrivePolicy": ""}, T0)
    assert (free.policy.dead_letter_queue, free.policy.max_receives) == (0, 0)
    assert spread.catalog.dead_letter_sources(dead.number) == []


def test_a_queue_gets_14_days_of_retention_when_it_becomes_a_dead_letter_queue(spread: Bench) -> None:
    dead, chosen = spread.create("dead"), spread.create("chosen", MessageRetentionPeriod="86400")
    days_4_ms, days_14_ms = 345_600_000, 1_209_600_000
    assert dead.policy.retention_ms == days_4_ms
    work = spread.create("work", RedrivePolicy=redrive_to("dead"))
    spread.check()
    now = spread.catalog.queue_by_number(dead.number)
    assert (now.attributes["MessageRetentionPeriod"], now.policy.retention_ms) == ("1209600", days_14_ms)
    assert now.policy_version > dead.policy_version, "its shards are told"
    assert spread.catalog.queue_by_number(work.number).policy.retention_ms == days_4_ms
    spread.catalog.set_attributes(work.number, {"RedrivePolicy": redrive_to("chosen")}, T0)
    assert spread.catalog.queue_by_number(chosen.number) == chosen, "a retention that someone chose is kept"
    late = spread.create("late")
    spread.catalog.set_attributes(work.number, {"RedrivePolicy": redrive_to("late")}, T0)
    assert spread.catalog.queue_by_number(late.number).policy.retention_ms == days_14_ms
    spread.check()


def warnings_of(bench: Bench, name: str) -> list[str]:
    return queue_warnings(bench.catalog, bench.catalog.by_name[QueueName(ACCOUNT, name)])


def test_settings_that_lose_messages_are_named(bench: Bench) -> None:
    bench.create("dead")
    for count in (1, 2, 3):
        bench.create(f"work-{count}", RedrivePolicy=redrive_to("dead", count))
        bench.create(f"alone-{count}", **{"Baton.MaxReceives": str(count)})
    assert [len(warnings_of(bench, f"work-{count}")) for count in (1, 2, 3)] == [1, 1, 0]
    assert [len(warnings_of(bench, f"alone-{count}")) for count in (1, 2, 3)] == [1, 1, 0]
    assert warnings_of(bench, "work-1")[0].startswith("Queue work-1 dead-letters a message after 1 receive,")
    assert warnings_of(bench, "alone-2")[0].startswith("Queue alone-2 gives up a message after 2 receives,")
    assert warnings_of(bench, "dead") == []


def test_a_chain_and_a_short_retention_are_named_on_each_queue_that_they_concern(bench: Bench) -> None:
    bench.create("end", MessageRetentionPeriod="60")
    bench.create("middle", RedrivePolicy=redrive_to("end"))
    bench.create("work", RedrivePolicy=redrive_to("middle"))
    (chain,) = warnings_of(bench, "work")
    assert chain.startswith("The dead-letter queue middle of queue work has a dead-letter queue itself, end:")
    itself, short = warnings_of(bench, "middle")
    assert itself.startswith("Queue middle is the dead-letter queue of work and has a dead-letter queue itself, end:")
    assert short.startswith("The dead-letter queue end keeps messages for 60 seconds, no longer than the 1209600")
    assert warnings_of(bench, "end") == []


def test_redrive_targets_that_are_refused(bench: Bench) -> None:
    bench.create("dead")
    bench.create("dead.fifo", FifoQueue="true")
    bench.create("theirs", account=OTHER)
    work = bench.create("work")
    for policy, reason in (
        (redrive_to("none"), r"^Dead letter target does not exist\.$"),
        (redrive_to("dead.fifo"), r"^Dead-letter queue must be same type of queue as the source\.$"),
        (redrive_to("theirs", account=OTHER), r"^Dead-letter target owner should be same as the source\.$"),
        (redrive_to("work"), "cannot be its own dead-letter queue"),
        (redrive_to("dead", 0), "valid values are from 1 to 1000"),
        ("x", "not a valid JSON map"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            bench.catalog.set_attributes(work.number, {"RedrivePolicy": policy}, T0)
    with pytest.raises(InvalidInput, match="same type of queue"):
        bench.create("w.fifo", FifoQueue="true", RedrivePolicy=redrive_to("dead"))
    with pytest.raises(InvalidInput, match="does not exist"):
        bench.create("self", RedrivePolicy=redrive_to("self"))
    assert bench.create("w.fifo", FifoQueue="true", RedrivePolicy=redrive_to("dead.fifo")).dead_letter


def test_a_dead_letter_queue_says_who_may_use_it(bench: Bench) -> None:
    allow = {"redrivePermission": "byQueue", "sourceQueueArns": [queue_arn(ACCOUNT, "good", "eu-west-1")]}
    bench.create("dead", RedriveAllowPolicy=json.dumps(allow))
    bench.create("closed", RedriveAllowPolicy='{"redrivePermission":"denyAll"}')
    bench.create("good", RedrivePolicy=redrive_to("dead"))
    for name, target in (("bad", "dead"), ("bad", "closed")):
        with pytest.raises(DeadLetterQueueRefused, match=r"^The «RedriveAllowPolicy» of queue"):
            bench.create(name, RedrivePolicy=redrive_to(target))


def test_chains_and_rings_of_dead_letter_queues_are_allowed(bench: Bench) -> None:
    a = bench.create("a")
    b = bench.create("b", RedrivePolicy=redrive_to("a"))
    bench.catalog.set_attributes(a.number, {"RedrivePolicy": redrive_to("b")}, T0)
    assert [entry.name for entry in bench.catalog.dead_letter_sources(a.number)] == ["b"]
    assert [entry.name for entry in bench.catalog.dead_letter_sources(b.number)] == ["a"]


def test_deleting_a_dead_letter_queue_changes_the_policies_of_its_sources() -> None:
    bench = Bench(Rules(name_wait_ms=0), shards=2)
    dead = bench.create("dead")
    work = bench.create("work", RedrivePolicy=redrive_to("dead"))
    bystander = bench.create("bystander")
    bench.catalog.changed.clear()
    bench.catalog.delete_queue(dead.number, T0)
    orphan = bench.catalog.queue_by_number(work.number)
    assert (orphan.policy.dead_letter_queue, orphan.policy.dead_letter_shard) == (MISSING_QUEUE, work.shard)
    assert orphan.policy.max_receives == 3
    assert orphan.policy_version > work.policy_version
    assert bench.catalog.changed == {dead.number: {dead.shard}, work.number: {work.shard}}
    bench.check()
    again = bench.create("dead")
    assert bench.catalog.queue_by_number(work.number).dead_letter == again.link
    assert bench.catalog.queue_by_number(work.number).policy_version > orphan.policy_version
    assert bench.catalog.queue_by_number(bystander.number) == bystander
    bench.check()


# --- placement, what a shard should hold ------------------------------------------------------


def test_queues_go_to_the_shard_with_the_fewest(spread: Bench) -> None:
    placed = [spread.create(f"q{number}") for number in range(5)]
    assert [entry.shard for entry in placed] == [0, 1, 2, 0, 1]
    spread.catalog.delete_queue(placed[1].number, T0)
    spread.catalog.delete_queue(placed[4].number, T0)
    assert spread.create("next").shard == 1
    assert spread.catalog.open_shards(3, T0) == []
    assert spread.catalog.open_shards(4, T0) == [3]
    assert spread.create("more").shard == 3
    with pytest.raises(InvalidInput):
        spread.catalog.open_shards(2, T0)


def test_a_shard_is_told_what_it_does_not_know(spread: Bench) -> None:
    a, _, _, b = (spread.create(f"q{number}") for number in range(4))
    assert spread.catalog.policies_for_shard(0) == {a.number: a.policy, b.number: b.policy}
    assert spread.catalog.reconcile(0, {}) == ([a.policy, b.policy], [])
    held = {a.number: a.policy_version, b.number: b.policy_version - 1, 99: 1}
    assert spread.catalog.reconcile(0, held) == ([b.policy], [99])


# --- tags, permissions, purges ----------------------------------------------------------------


def test_tags_are_added_replaced_and_removed(bench: Bench) -> None:
    entry = bench.create("q")
    bench.catalog.set_tags(entry.number, {"a": "1", "b": "2"}, [], T0 + 5)
    changed = bench.catalog.set_tags(entry.number, {"a": "3", "c": ""}, ["b", "none"], T0 + 6)
    assert changed.tags == {"a": "3", "c": ""}
    assert changed.modified_ms == T0


def test_a_queue_has_at_most_fifty_tags(bench: Bench) -> None:
    entry = bench.create("q")
    fifty = {f"t{number}": "" for number in range(50)}
    bench.catalog.set_tags(entry.number, fifty, [], T0)
    for more in ({"x": ""}, {f"u{number}": "" for number in range(51)}):
        with pytest.raises(InvalidInput, match=r"^Too many tags added for queue q\."):
            bench.catalog.set_tags(entry.number, more, [], T0)
    with pytest.raises(InvalidInput, match="Too many tags"):
        bench.catalog.create_queue(ACCOUNT, "r", {}, {**fifty, "x": ""}, T0)
    for bad in ({"": "x"}, {"k" * 129: "x"}, {"k": "x" * 257}, {"k": "\x00"}):
        with pytest.raises(InvalidInput, match=r"The (key|value) of a tag (must|can) be"):
            bench.catalog.set_tags(entry.number, bad, ["t0"], T0)


def test_permissions_are_statements_of_the_policy(bench: Bench) -> None:
    entry = bench.create("q")
    arn = queue_arn(ACCOUNT, "q", "eu-west-1")
    shared = bench.catalog.set_permission(
        entry.number, "share", statement("share", [OTHER], ["SendMessage"], arn), T0 + 3
    )
    assert labels(shared.attributes["Policy"])["share"]["Principal"] == {"AWS": f"arn:aws:iam::{OTHER}:root"}
    assert json.loads(shared.attributes["Policy"])["Id"] == f"{arn}/SQSDefaultPolicy"
    assert shared.modified_ms == T0 + 3
    with pytest.raises(InvalidInput, match="Already exists"):
        bench.catalog.set_permission(entry.number, "share", statement("share", [OTHER], ["*"], arn), T0)
    with pytest.raises(InvalidInput, match="can't find label"):
        bench.catalog.set_permission(entry.number, "none", None, T0)
    alone = bench.catalog.set_permission(entry.number, "share", None, T0 + 4)
    assert "Policy" not in alone.attributes
    assert "Policy" not in alone.attributes


def test_a_queue_is_purged_once_in_sixty_seconds(bench: Bench) -> None:
    entry = bench.create("q")
    bench.catalog.purge_queue(entry.number, T0)
    text = r"^Only one purge of q is allowed every 60 seconds\.$"
    with pytest.raises(PurgeInProgress, match=text):
        bench.catalog.purge_queue(entry.number, T0 + 59_999)
    bench.catalog.purge_queue(entry.number, T0 + 60_000)
    assert bench.catalog.queue_by_number(entry.number).policy_version == entry.policy_version
    with pytest.raises(QueueDoesNotExist):
        bench.catalog.purge_queue(99, T0)


def test_without_a_wait_purges_write_nothing() -> None:
    bench = Bench(Rules(purge_wait_ms=0))
    entry = bench.create("q")
    version = bench.catalog.version
    bench.catalog.purge_queue(entry.number, T0)
    bench.catalog.purge_queue(entry.number, T0)
    assert bench.catalog.version == version


# --- accounts, keys, settings -----------------------------------------------------------------


def test_access_keys(bench: Bench) -> None:
    catalog = bench.catalog
    key = catalog.put_key("AKIDEXAMPLE", "secret", ACCOUNT, T0)
    assert catalog.find_key("AKIDEXAMPLE") == key
    assert catalog.accounts[ACCOUNT].created_ms == T0
    assert "secret" not in repr(key).replace("secret=", "")
    with pytest.raises(InvalidInput, match="already"):
        catalog.put_key("AKIDEXAMPLE", "other", ACCOUNT, T0)
    catalog.disable_key("AKIDEXAMPLE", T0)
    assert catalog.find_key("AKIDEXAMPLE") is None
    catalog.disable_key("AKIDEXAMPLE", T0, disabled=False)
    assert catalog.find_key("AKIDEXAMPLE") == key
    with pytest.raises(InvalidInput, match="Key 'AKIDOTHER' does not exist"):
        catalog.disable_key("AKIDOTHER", T0)
    for bad in (("a b", "s", ACCOUNT), ("a", "", ACCOUNT), ("a", "s", "12")):
        with pytest.raises(InvalidInput):
            catalog.put_key(*bad, T0)


def test_a_key_can_have_a_name_a_role_and_an_end(bench: Bench) -> None:
    catalog = bench.catalog
    key = catalog.put_key("a", "s", ACCOUNT, T0, name="Zoë's laptop", role="read", lasts_ms=1_000)
    assert (key.name, key.role, key.disabled) == ("Zoë's laptop", "read", False)
    assert [key.expired(T0 + ms) for ms in (0, 999, 1_000, 5_000)] == [False, False, True, True]
    assert not catalog.put_key("b", "s", ACCOUNT, T0).expired(1 << 60)
    bads: list[dict[str, Any]] = [
        {"role": "owner"},
        {"role": ""},
        {"name": "x" * 65},
        {"name": "a\nb"},
        {"lasts_ms": -1},
    ]
    for bad in bads:
        with pytest.raises(InvalidInput):
            catalog.put_key("c", "s", ACCOUNT, T0, **bad)
    assert catalog.disable_key("a", T0).role == "read"
    bench.check()


def test_keys_of_earlier_releases_write_and_are_written_as_they_were(bench: Bench) -> None:
    """An older node follows a catalog as long as no key has anything that it does not know."""
    catalog = bench.catalog
    old = catalog.put_key("a", "s", ACCOUNT, T0)
    assert old.record() == {"secret": "s", "account": ACCOUNT, "created_ms": T0, "disabled": False}
    assert AccessKey.from_record("a", old.record()).role == "write" and catalog.format == PLAIN_VERSION
    news: list[dict[str, Any]] = [{"name": "x"}, {"role": "admin"}, {"lasts_ms": 1}]
    for more in news:
        made = Bench().catalog
        made.put_key("b", "s", ACCOUNT, T0, **more)
        again = Catalog()
        again._apply_base(made.version, made.last_time_ms, made.dump())
        assert made.format == again.format == ROLES_VERSION and again.access_keys == made.access_keys


def test_accounts(bench: Bench) -> None:
    catalog = bench.catalog
    catalog.put_account(ACCOUNT, "First", T0)
    version = catalog.version
    catalog.put_account(ACCOUNT, "First", T0 + 9)
    assert catalog.version == version
    assert catalog.put_account(ACCOUNT, "Renamed", T0 + 9).created_ms == T0


def test_limits_on_accounts_and_keys() -> None:
    catalog = Bench(Rules(accounts_max=1, access_keys_max=1)).catalog
    catalog.put_key("a", "s", ACCOUNT, T0)
    with pytest.raises(OverLimit):
        catalog.put_key("b", "s", ACCOUNT, T0)
    with pytest.raises(OverLimit):
        catalog.put_account(OTHER, "", T0)


def test_keys_that_have_expired_make_room_for_new_ones() -> None:
    bench = Bench(Rules(access_keys_max=3))
    catalog = bench.catalog
    catalog.put_key("lasts", "s", ACCOUNT, T0)
    catalog.put_key("hour", "s", ACCOUNT, T0, lasts_ms=3_600_000)
    catalog.put_key("day", "s", ACCOUNT, T0, lasts_ms=86_400_000)
    with pytest.raises(OverLimit):
        catalog.put_key("early", "s", ACCOUNT, T0 + 3_599_999)
    assert catalog.access_keys.keys() == {"lasts", "hour", "day"}
    catalog.put_key("next", "s", ACCOUNT, T0 + 3_600_000)
    assert catalog.access_keys.keys() == {"lasts", "day", "next"}
    bench.check()


def test_receipt_keys_rotate_and_outlive_every_message(bench: Bench) -> None:
    catalog = bench.catalog
    assert catalog.receipt_key_due_ms(7 * DAY_MS) == 0
    first = catalog.rotate_receipt_key(bytes(32), T0)
    assert catalog.receipt_key_due_ms(7 * DAY_MS) == T0 + 7 * DAY_MS
    second = catalog.rotate_receipt_key(b"\x01" * 32, T0 + 7 * DAY_MS)
    assert (first.id, second.id, second.key) == (1, 2, b"\x01" * 32)
    still = T0 + 7 * DAY_MS + RECEIPT_KEY_LIFE_MS - 1
    catalog.rotate_receipt_key(b"\x02" * 32, still)
    assert sorted(catalog.receipt_keys) == [1, 2, 3]
    catalog.rotate_receipt_key(b"\x03" * 32, still + 1)
    assert sorted(catalog.receipt_keys) == [2, 3, 4]
    assert RECEIPT_KEY_LIFE_MS == 15 * DAY_MS


def test_receipt_keys_are_limited() -> None:
    catalog = Bench().catalog
    for _ in range(1_000):
        catalog.rotate_receipt_key(bytes(32), T0)
    with pytest.raises(OverLimit):
        catalog.rotate_receipt_key(bytes(32), T0)


# --- the log ----------------------------------------------------------------------------------


def test_records_are_rows_with_json(bench: Bench) -> None:
    bench.commit()
    entry = bench.create("q")
    rows, variable = bench.catalog.seal()
    words = array("Q")
    words.frombytes(rows)
    assert len(words) == 8
    assert words[0] == Type.CATALOG_SET | entry.number << 32
    assert (words[1], words[2]) == (bench.catalog.version, T0)
    assert json.loads(variable) == {"kind": "queue", "key": "1", "value": entry.record()}


def test_time_does_not_go_back(bench: Bench) -> None:
    assert bench.catalog.create_queue(ACCOUNT, "q", {}, {}, T0 - 500).created_ms == T0


def test_a_base_stands_in_for_the_dropped_front(bench: Bench) -> None:
    bench.create("kept", RedriveAllowPolicy='{"redrivePermission":"allowAll"}')
    bench.catalog.put_key("k", "s", ACCOUNT, T0)
    bench.catalog.rotate_receipt_key(bytes(32), T0)
    gone = bench.create("gone")
    bench.commit()
    bench.catalog.delete_queue(gone.number, T0)
    bench.commit()
    partial = bench.catalog.frame.number - 1  # retained, and before the Base: not a whole story
    bench.create("late", RedrivePolicy=redrive_to("kept"))
    bench.catalog.write_base(partial, 1 << 20, T0 + 7)
    bench.commit()
    bench.create("after")
    for first in (partial, partial + 1):
        shortened = bench.replayed(first)
        shortened.validate()
        assert shortened.dump() == bench.catalog.dump()
    assert bench.create("again").number == bench.catalog.next_queue - 1


def test_a_base_that_is_too_long_for_a_frame_goes_in_parts(bench: Bench) -> None:
    for number in range(50):
        bench.create(f"queue-{number}")
        bench.commit()
    first = bench.catalog.frame.number
    bench.catalog.write_base(first, 4_096, T0)
    bench.create("after")
    bench.commit()
    assert bench.catalog.frame.number > first + 4
    assert all(len(variable) <= 4_096 for number, _, variable in bench.frames if number >= first)
    for shortened in (bench.replayed(first), bench.replayed()):
        shortened.validate()
        assert shortened.dump() == bench.catalog.dump()
    whole = bench.frames
    bench.frames = [frame for frame in bench.frames if frame[0] != first + 2]
    with pytest.raises(LogCorrupt, match="part 3 of the catalog's base follows 2 parts"):
        bench.replayed(first)
    bench.frames = whole
    assert bench.replayed(first + 1).before_base, "an older one, of which the front is gone, says nothing"


def test_a_log_whose_front_is_gone_without_a_base_is_refused(bench: Bench) -> None:
    bench.commit()
    bench.create("a")
    bench.commit()
    bench.create("b")
    headless = bench.replayed(first=2)
    assert headless.before_base
    with pytest.raises(LogCorrupt, match="beginning of the catalog's log is missing"):
        headless.take_ownership(9, T0)


@pytest.mark.parametrize(
    ("word", "value", "reason"),
    [
        (1, 99, "catalog record 99 after"),
        (0, 63, "record type 63"),
        (6, 0, "cannot be read"),
        (0, int(Type.CATALOG_BASE), "does not agree"),
        (0, int(Type.EPOCH), "ownership epoch"),
    ],
)
def test_records_that_do_not_fit_are_refused(word: int, value: int, reason: str) -> None:
    bench = Bench()
    bench.catalog.take_ownership(100, T0)
    copy = bench.replayed()
    bench.create("a")
    bench.create("b")
    rows, variable = bench.catalog.seal()
    words = array("Q")
    words.frombytes(rows)
    words[8 + word] = value
    with pytest.raises(LogCorrupt, match=reason):
        copy.apply_frame(2, words, variable)


def test_an_unknown_kind_stops_the_catalog() -> None:
    catalog = Catalog()
    with pytest.raises(LogCorrupt, match="unknown kind 'region'"):
        catalog._apply_set(1, T0, b'{"kind":"region","key":"x","value":1}')


def test_ownership_epochs_rise(bench: Bench) -> None:
    bench.catalog.take_ownership(5, T0 + 100)
    assert (bench.catalog.epoch, bench.catalog.last_time_ms) == (5, T0 + 100)


def test_a_base_is_wanted_after_many_changes() -> None:
    bench = Bench()
    wanted = [bench.catalog.wants_base]
    for number in range(1_000):
        bench.catalog.put_account(ACCOUNT, str(number), T0)
    wanted.append(bench.catalog.wants_base)
    bench.catalog.write_base(1, 1 << 20, T0)
    wanted.append(bench.catalog.wants_base)
    assert wanted == [False, True, False]
    bench.check()


def test_a_fifo_queue_may_have_any_name_where_sqs_does_not_ask(bench: Bench) -> None:
    catalog = bench.catalog
    made = catalog.create_queue(ACCOUNT, "jobs", {"FifoQueue": "true"}, {}, T0, any_name=True)
    assert made.fifo and made.policy.fifo
    assert catalog.create_queue(ACCOUNT, "jobs", {"FifoQueue": "true"}, {}, T0, any_name=True) is made
    with pytest.raises(InvalidInput, match=r"\.fifo"):
        catalog.create_queue(ACCOUNT, "others", {"FifoQueue": "true"}, {}, T0)
    with pytest.raises(InvalidInput):
        catalog.create_queue(ACCOUNT, "jobs.fifo", {}, {}, T0, any_name=True)
    source = {"FifoQueue": "true", "RedrivePolicy": redrive_to("jobs")}
    assert catalog.create_queue(ACCOUNT, "source", source, {}, T0, any_name=True).dead_letter == made.link
    with pytest.raises(InvalidInput, match="same type"):
        catalog.create_queue(ACCOUNT, "plain", {"RedrivePolicy": redrive_to("jobs")}, {}, T0)
