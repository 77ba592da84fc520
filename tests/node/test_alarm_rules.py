"""The rules of the alarms: what raises each, how long it must last, when it ends, and what a clock step does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from batonq.node.alarms.book import Alarm, AlarmBook
from batonq.node.alarms.kinds import KINDS, SEVERITIES, label_of, severity_of
from batonq.node.alarms.rules import Marks, NodeFacts, Outcome, QueueFacts, Rules, ShardFacts
from batonq.node.alarms.usual import HOUR_MS, HOURS_MIN, QUEUES_MAX, UsualDepths

START_MS = 1_700_000_000_000
MINUTE = 60
DAY = 86_400


def queue(name: str = "orders", **given: Any) -> QueueFacts:
    """A queue with a consumer, unless it is told otherwise."""
    counts = {"visible": 0, "in_flight": 0, "delayed": 0, "dead": 0, "age_ms": 0, "received": 0, "waiting": 1}
    return QueueFacts(id=name, name=name, account="0", **{**counts, **given})


def alone(name: str = "orders", **given: Any) -> QueueFacts:
    """A queue without a consumer."""
    return queue(name, **{"waiting": 0, **given})


class World:
    """Rules, and a clock that the test sets."""

    def __init__(self, marks: Marks | None = None) -> None:
        self.rules = Rules(marks or Marks())
        self.now_ms = START_MS
        self.book = AlarmBook(lambda: self.now_ms, 100)

    def look(
        self,
        *queues: QueueFacts,
        shards: Sequence[ShardFacts] = (),
        nodes: Sequence[NodeFacts] = (),
        unread: Sequence[str] = (),
    ) -> Outcome:
        self.rules.begin(self.now_ms)
        for each in queues:
            self.rules.add_queue(each)
        self.rules.add_servers(shards, nodes)
        outcome = self.rules.finish({each.id for each in queues} | {*unread}, {*unread})
        for alarm in outcome.seen:
            self.book.renew(alarm)
        for id in outcome.ended:
            self.book.end(id)
        return outcome

    def after(self, seconds: float, *queues: QueueFacts, **more: Any) -> list[tuple[str, str]]:
        """The active alarms as (id, severity), after a time."""
        self.now_ms += int(seconds * 1000)
        self.look(*queues, **more)
        return sorted((alarm.id, alarm.severity) for alarm in self.book.active())


class Case(NamedTuple):
    kind: str
    bad: QueueFacts
    not_yet_over: QueueFacts  # better than what raises it, and not good enough to end it
    good: QueueFacts
    text: str
    severity: str = "warning"


CASES = (
    Case(
        "paused",
        queue(paused="delivery", visible=2),
        queue(paused="both"),
        queue(),
        "Delivery of orders is paused; 2 messages wait in orders.",
    ),
    Case(
        "paused",
        alone(paused="sends"),
        alone(paused="sends"),
        alone(),
        "Sends to orders are paused; 0 messages wait in orders.",
    ),
    Case(
        "dead-letters",
        alone(visible=214, dead_letters=True, age_ms=1),
        alone(visible=1, dead_letters=True, age_ms=1),
        alone(dead_letters=True),
        "orders has 214 dead letters.",
    ),
    Case(
        "dead-letters",
        queue(in_flight=1, dead_letters=True, age_ms=1),
        queue(delayed=1, dead_letters=True, age_ms=1),
        queue(dead_letters=True),
        "orders has 1 dead letter.",
    ),
    Case(
        "dead-messages",
        queue(dead=2, age_ms=1),
        queue(dead=1, age_ms=1),
        queue(),
        "orders has 2 dead messages, and no dead-letter queue.",
    ),
    Case(
        "sla-age",
        queue(visible=1, sla_ms=100_000, age_ms=81_000),
        queue(visible=1, sla_ms=100_000, age_ms=71_000),
        queue(visible=1, sla_ms=100_000, age_ms=70_000),
        "orders is near its SLA: its oldest message is 1.4 min old, and its SLA is 1.7 min.",
    ),
    Case(
        "sla-age",
        queue(visible=1, sla_ms=60_000, age_ms=300_000),
        queue(visible=1, sla_ms=60_000, age_ms=55_000),
        queue(visible=1, sla_ms=60_000, age_ms=2_000),
        "orders is 4 min behind its SLA: its oldest message is 5 min old, and its SLA is 1 min.",
        "critical",
    ),
    Case(
        "retention-age",
        queue(visible=1, retention_ms=10 * DAY * 1000, age_ms=9 * DAY * 1000),
        queue(visible=1, retention_ms=10 * DAY * 1000, age_ms=int(7.6 * DAY) * 1000),
        queue(visible=1, retention_ms=10 * DAY * 1000, age_ms=int(7.5 * DAY) * 1000),
        "The oldest message of orders is lost in 1 d: the queue's retention ends.",
    ),
    Case(
        "retention-age",
        queue(visible=1, retention_ms=100_000, age_ms=96_000, expires_to_dead_letter=True),
        queue(visible=1, retention_ms=100_000, age_ms=91_000, expires_to_dead_letter=True),
        queue(visible=1, retention_ms=100_000, age_ms=75_000, expires_to_dead_letter=True),
        "The oldest message of orders is dead-lettered in 4.0 s: the queue's retention ends.",
        "critical",
    ),
    Case(
        "depth",
        queue(visible=101, depth_mark=100, age_ms=1),
        queue(visible=81, depth_mark=100, age_ms=1),
        queue(visible=80, depth_mark=100, age_ms=1),
        "101 messages wait in orders; the mark is 100.",
    ),
    Case(
        "depth",
        queue(visible=100_001, age_ms=1),
        queue(visible=80_001, age_ms=1),
        queue(visible=80_000, age_ms=1),
        "100,001 messages wait in orders; the mark is 100,000.",
    ),
    Case(
        "no-consumer",
        alone(visible=290, age_ms=1),
        alone(visible=1, age_ms=1),
        alone(),
        "290 messages wait in orders, and no consumer receives from it.",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind} {case.severity}")
def test_a_condition_must_last_before_it_is_raised_and_before_it_ends(case: Case) -> None:
    kind, id = KINDS[case.kind], f"{case.kind}.orders"
    world = World()
    assert world.after(0, case.bad) == []
    assert world.after(kind.raise_after_s - 1, case.bad) == []
    assert world.after(1, case.bad) == [(id, case.severity)]
    (alarm,) = world.look(case.bad).seen
    assert alarm.text == case.text and alarm.queue == "orders" and alarm.ruled and alarm.value
    assert world.after(3_000, case.not_yet_over)  # it stays, for however long
    assert world.after(1, case.good)
    assert world.after(kind.clear_after_s - 1, case.good)
    world.now_ms += 1_000
    outcome = world.look(case.good)
    assert outcome.seen == [] and outcome.ended == [id]
    assert world.look(case.good) == Outcome([], []) and not world.rules.states


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind} {case.severity}")
def test_a_condition_that_comes_and_goes_raises_nothing(case: Case) -> None:
    world = World()
    for _ in range(20):
        assert world.after(1, case.bad) == []
        assert world.after(KINDS[case.kind].raise_after_s - 1, case.bad) == []
        assert world.after(1, case.good) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind} {case.severity}")
def test_a_raised_condition_that_is_over_for_a_moment_does_not_end(case: Case) -> None:
    world = World()
    world.look(case.bad)
    assert world.after(max(600, KINDS[case.kind].raise_after_s), case.bad)
    for _ in range(20):
        assert world.after(1, case.good)
        assert world.after(KINDS[case.kind].clear_after_s - 1, case.good)
        assert world.after(1, case.bad)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind} {case.severity}")
def test_a_clock_that_is_set_back_only_starts_the_wait_anew(case: Case) -> None:
    kind = KINDS[case.kind]
    world = World()
    world.look(case.bad)
    assert world.after(-7_200, case.bad) == []
    assert world.after(kind.raise_after_s - 1, case.bad) == []
    assert world.after(1, case.bad)
    assert world.after(1, case.good)
    assert world.after(-7_200, case.good)
    assert world.after(kind.clear_after_s, case.good) == []


def test_an_alarm_escalates_and_calms_down() -> None:
    world = World()

    def aged(share: float) -> QueueFacts:
        return queue(visible=1, sla_ms=1_000_000, age_ms=int(share * 1_000_000))

    world.look(aged(0.85))
    assert world.after(10, aged(0.85)) == [("sla-age.orders", "warning")]
    assert world.after(10, aged(1.1)) == [("sla-age.orders", "warning")]
    assert world.after(10, aged(1.1)) == [("sla-age.orders", "critical")]
    assert world.after(600, aged(0.95)) == [("sla-age.orders", "critical")]
    assert world.after(1, aged(0.85)) == [("sla-age.orders", "critical")]
    assert world.after(60, aged(0.85)) == [("sla-age.orders", "warning")]


def test_a_queue_has_its_own_severity() -> None:
    for word, severity, label in (
        ("critical", "critical", ""),
        ("Info", "info", ""),
        ("page", "critical", ""),
        ("team-payments", "warning", "team-payments"),
        ("", "warning", ""),
    ):
        world = World()
        world.look(alone(visible=1, dead_letters=True, age_ms=1, severity=word))
        world.now_ms += 60_000
        (alarm,) = world.look(alone(visible=1, dead_letters=True, age_ms=1, severity=word)).seen
        assert (alarm.severity, alarm.label) == (severity, label)


@pytest.mark.parametrize("marks", [Marks(depth=0), Marks(depth=1_000_000)])
def test_the_servers_depth_mark_is_a_setting(marks: Marks) -> None:
    world = World(marks)
    world.look(queue(visible=900_000, age_ms=1))
    assert world.after(3_600, queue(visible=900_000, age_ms=1)) == []


# --- consumers


def test_a_queue_whose_delivery_is_paused_needs_no_consumer() -> None:
    world = World()
    paused = alone(visible=5, age_ms=1, paused="both")
    world.look(paused)
    assert world.after(1_000, paused) == []


def test_a_dead_letter_queue_needs_no_consumer() -> None:
    world = World()
    world.look(alone(visible=1, dead_letters=True, age_ms=1))
    assert world.after(DAY, alone(visible=1, dead_letters=True, age_ms=1)) == [("dead-letters.orders", "warning")]


@pytest.mark.parametrize(
    "had",
    [queue(visible=5, age_ms=1), alone(visible=5, in_flight=1, age_ms=1), alone(visible=5, received=7, age_ms=1)],
    ids=["polls", "holds", "has received"],
)
def test_a_consumer_that_is_gone_is_told_from_one_that_never_came(had: QueueFacts) -> None:
    world = World()
    world.look(alone(visible=5, age_ms=1))
    assert world.after(10, had) == []
    left = alone(visible=5, received=had.received, age_ms=1)
    assert world.after(5, left) == []
    assert world.after(119, left) == []
    assert world.after(1, left) == [("consumer-gone.orders", "warning")]
    (alarm,) = world.look(left).seen
    assert (
        alarm.text == "5 messages wait in orders, and its consumers are gone: none has received or polled for 2.1 min."
    )
    assert world.after(DAY, left) == [("consumer-gone.orders", "warning")]
    assert world.after(1, queue(visible=5, received=had.received, age_ms=1))
    assert world.after(10, queue(visible=5, received=had.received, age_ms=1)) == []


def test_consumers_may_leave_an_empty_queue() -> None:
    world = World()
    world.look(queue())
    assert world.after(DAY, alone()) == []


def test_receives_in_between_are_a_consumer() -> None:
    """One that does not wait, and has acknowledged before anybody looked."""
    world = World()
    for received in range(100):
        assert world.after(30, alone(visible=5, received=received, age_ms=1)) == []


def test_how_long_a_queue_may_be_without_a_consumer_is_a_setting() -> None:
    world = World(Marks(no_consumer_s=30))
    world.look(alone(visible=1, age_ms=1))
    assert world.after(29, alone(visible=1, age_ms=1)) == []
    assert world.after(1, alone(visible=1, age_ms=1)) == [("no-consumer.orders", "warning")]


# --- the usual depth


def lived(depth: int, hours: int, marks: Marks | None = None) -> World:
    world = World(marks)
    world.now_ms -= world.now_ms % HOUR_MS
    for _ in range(hours * 6 + 1):
        world.look(queue(visible=depth, age_ms=1))
        world.now_ms += HOUR_MS // 6
    return world


def test_twice_the_usual_depth_for_five_minutes_is_unusual() -> None:
    world = lived(500, HOURS_MIN)
    assert world.after(0, queue(visible=1_001, age_ms=1)) == []
    assert world.after(299, queue(visible=1_001, age_ms=1)) == []
    assert world.after(1, queue(visible=1_001, age_ms=1)) == [("depth-unusual.orders", "warning")]
    (alarm,) = world.look(queue(visible=1_001, age_ms=1)).seen
    assert alarm.text == "1,001 messages wait in orders; usually about 500 do." and alarm.threshold == 1_000
    assert world.after(200, queue(visible=760, age_ms=1))
    assert world.after(1, queue(visible=750, age_ms=1))
    assert world.after(120, queue(visible=750, age_ms=1)) == []


@pytest.mark.parametrize(
    ("world", "visible"),
    [
        (lived(500, HOURS_MIN - 1), 50_000),
        (lived(0, 30), 100),
        (lived(10, 30), 99),
        (lived(500, 30, Marks(unusual_factor=0)), 50_000),
    ],
    ids=["too little history", "usually empty", "tiny", "switched off"],
)
def test_what_is_not_unusual(world: World, visible: int) -> None:
    world.look(queue(visible=visible, age_ms=1))
    assert world.after(600, queue(visible=visible, age_ms=1)) == []


def test_a_new_normal_becomes_usual() -> None:
    world = lived(500, 24)
    world.look(queue(visible=5_000, age_ms=1))
    assert world.after(300, queue(visible=5_000, age_ms=1))
    for _ in range(6 * 24 * 3):
        world.after(600, queue(visible=5_000, age_ms=1))
    assert world.after(600, queue(visible=5_000, age_ms=1)) == []


def test_the_usual_depth_survives_a_restart_and_a_clock_that_is_set_back() -> None:
    usual = UsualDepths()
    for hour in range(HOURS_MIN + 1):
        usual.observe("orders", 300, hour * HOUR_MS)
    again = UsualDepths(usual.saved())
    assert again.saved() == {"orders": (300.0, HOURS_MIN)}
    assert again.observe("orders", 7, 100 * HOUR_MS) == 300
    assert again.observe("orders", 7, 90 * HOUR_MS) == 300  # the hour of the future is not counted
    again.keep(set())
    assert again.saved() == {}


def test_the_usual_depth_is_kept_for_a_bounded_number_of_queues() -> None:
    usual = UsualDepths({str(number): (1.0, 6) for number in range(QUEUES_MAX)})
    assert usual.observe("one more", 5, 0) is None and "one more" not in usual._queues


# --- shards and nodes


def test_a_shard_that_nobody_serves() -> None:
    stopped = [ShardFacts(3, "stopped", "The process that serves the shard is being restarted. Retry.")]
    world = World()
    assert world.after(0, shards=stopped) == [] == world.after(14, shards=stopped)
    assert world.after(1, shards=stopped) == [("shard-unserved.3", "critical")]
    assert world.after(1, shards=[ShardFacts(3, "serving", "")])
    assert world.after(5, shards=[ShardFacts(3, "serving", "")]) == []


def test_a_shard_that_changes_its_owner_often() -> None:
    world = World()
    assert world.after(0, shards=[ShardFacts(0, "serving", "", moves=3)]) == []
    assert world.after(0, shards=[ShardFacts(0, "serving", "", moves=4)]) == [("ownership-flapping.0", "warning")]
    assert world.after(DAY, shards=[ShardFacts(0, "serving", "", moves=2)])
    assert world.after(1, shards=[ShardFacts(0, "serving", "", moves=1)])
    assert world.after(60, shards=[ShardFacts(0, "serving", "", moves=0)]) == []


def disk(used_share: float, name: str = "") -> list[NodeFacts]:
    return [NodeFacts(name, disk_free_bytes=int(1e12 * (1 - used_share)), disk_total_bytes=int(1e12))]


def test_a_disk_that_fills_up() -> None:
    world = World()
    assert world.after(0, nodes=disk(0.79)) == []
    assert world.after(0, nodes=disk(0.81)) == [("disk-space", "warning")]
    (alarm,) = world.look(nodes=disk(0.81)).seen
    assert alarm.text == "The disk is 81% full: 177.0 GiB of 931.3 GiB are free." and alarm.threshold == 0.8
    assert world.after(0, nodes=disk(0.91)) == [("disk-space", "critical")]
    assert world.after(600, nodes=disk(0.89)) == [("disk-space", "critical")]
    assert world.after(1, nodes=disk(0.87)) == [("disk-space", "critical")]
    assert world.after(30, nodes=disk(0.87)) == [("disk-space", "warning")]
    assert world.after(1, nodes=disk(0.5)) and world.after(30, nodes=disk(0.5)) == []


def test_nodes_have_alarms_of_their_own() -> None:
    world = World(Marks(disk_share=0.95))
    nodes = [*disk(0.96, "n1"), NodeFacts("n2", problem="no answer"), NodeFacts("n3", lag=((0, 5), (4, 2_000)))]
    assert world.after(0, nodes=nodes) == [("disk-space.n1", "warning")]
    assert world.after(30, nodes=nodes) == [
        ("disk-space.n1", "warning"),
        ("follower-lag.4@n3", "warning"),
        ("node-silent.n2", "warning"),
    ]
    assert [alarm.node for alarm in world.look(nodes=nodes).seen] == ["n1", "n2", "n3"]
    assert "Node n3 is 2,000 frames behind the owner of shard 4." in [
        each.text for each in world.look(nodes=nodes).seen
    ]
    slower = [NodeFacts("n3", lag=((4, 101),))]
    assert ("follower-lag.4@n3", "warning") in world.after(600, nodes=slower)
    world.look(nodes=[])
    assert world.after(600, nodes=[]) == []


# --- what stays, and what goes


def test_the_alarms_of_a_queue_that_cannot_be_read_stay_and_those_of_a_deleted_one_end() -> None:
    world = World()
    bad = alone(visible=1, dead_letters=True, age_ms=1)
    world.look(bad)
    assert world.after(60, bad)
    world.now_ms += 3_600_000
    assert world.look(unread=["orders"]) == Outcome([], [])  # nothing is said about it
    assert world.look(bad).seen
    assert world.look().ended == ["dead-letters.orders"]


def test_rules_resume_with_the_alarms_of_the_time_before() -> None:
    world = World()
    bad = queue(visible=1, sla_ms=60_000, age_ms=300_000)
    gone = alone("mails", visible=3, age_ms=1)

    def alarm(kind: str, name: str, level: int) -> Alarm:
        said: dict[str, Any] = {"severity": "critical", "text": "", "raised_ms": START_MS - 60_000, "last_ms": START_MS}
        return Alarm(id=f"{kind}.{name}", kind=kind, queue=name, level=level, ruled=True, **said)

    world.rules.resume([alarm("sla-age", "orders", 2), alarm("consumer-gone", "mails", 1)])
    assert world.after(0, bad, gone) == [("consumer-gone.mails", "warning"), ("sla-age.orders", "critical")]
    assert "for 1 min." in world.look(bad, gone).seen[1].text
    good = queue(visible=1, sla_ms=60_000, age_ms=1)
    world.look(good, queue("mails"))
    world.now_ms += 60_000
    assert sorted(world.look(good, queue("mails")).ended) == ["consumer-gone.mails", "sla-age.orders"]


def test_the_table_of_kinds_is_complete() -> None:
    assert {case.kind for case in CASES} <= KINDS.keys()
    for kind in KINDS.values():
        assert kind.severity in SEVERITIES and kind.about in ("queue", "shard", "node", "server")
        assert kind.raised.endswith(".") and kind.remedy.endswith(".")
        assert kind.runbook == f"docs/how-to/runbook.md#{kind.name}"
        assert severity_of(kind, 2) == "critical" and "{" not in kind.remedy_for("orders")
    assert label_of("warn") == "" and label_of("mine") == "mine"


@pytest.mark.parametrize(
    ("received", "returned", "raised"),
    [(600, 600, True), (120, 61, True), (120, 60, False), (59, 59, False), (0, 60, True), (600, 0, False)],
)
def test_a_queue_whose_messages_fail_again_and_again(received: int, returned: int, raised: bool) -> None:
    world = World()
    world.look(queue(visible=1, received=1_000, returned=1))
    assert world.after(59, queue(visible=1, received=1_000 + received, returned=1 + returned)) == []
    expected = [("failing.orders", "warning")] if raised else []
    assert world.after(1, queue(visible=1, received=1_000 + received, returned=1 + returned)) == expected


def test_failures_that_become_fewer() -> None:
    world = World()
    world.look(queue(visible=1, received=1, returned=1))
    assert world.after(60, queue(visible=1, received=601, returned=541))
    (alarm,) = world.look(queue(visible=1, received=601, returned=541)).seen
    assert alarm.text == (
        "Messages of orders fail again and again: 9.0 per second were returned in the last minute, 90% of those "
        "received."
    )
    assert world.after(60, queue(visible=1, received=701, returned=586)), "45%: not clearly over"
    assert world.after(60, queue(visible=1, received=801, returned=596))
    assert world.after(60, queue(visible=1, received=901, returned=606))
    assert world.after(60, queue(visible=1, received=1_001, returned=616)) == []
    # The clock is set, the queue was empty for long, or its counters begin anew: the next minute is judged.
    for seconds, returned in ((-30, 10_000), (600, 20_000), (60, 0)):
        assert world.after(seconds, queue(visible=1, received=30_000, returned=returned)) == []
