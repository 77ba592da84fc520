"""Topics: what a publish writes, and where its copies go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from batonq.core.commands import Accepted, Once, Send
from batonq.core.ids import key_hash, message_id
from batonq.core.payload import Attribute, decode_envelope, encode_attributes
from batonq.core.policy import MISSING_QUEUE, QueuePolicy
from batonq.core.records import TOPICS_VERSION, Reason, SentFlag, State, Type
from batonq.core.spread import Spread
from batonq.core.topics.subscription import Subscription
from batonq.errors import InvalidInput, LogCorrupt, OverLimit, TopicDoesNotExist
from tests.core.rig import Bench, assert_same_state, deliver

TOPIC = 100
ELSEWHERE = 50  # a queue of shard 1


class Stage(Bench):
    """A shard with a topic."""

    def topic(self, number: int = TOPIC, **fields: Any) -> int:
        self.shard.set_policy(QueuePolicy(number, "tenant", f"t{number}", topic=True, **fields), self.now)
        return number

    def subscribe(self, number: int, queue: int, *, topic: int = TOPIC, raw: bool = True, **fields: Any) -> None:
        one = Subscription(
            number, topic, 1, queue, fields.pop("shard", self.number), name=f"q{queue}", raw=raw, **fields
        )
        self.shard.set_subscription(topic, number, one, 1, self.now)

    def unsubscribe(self, number: int, topic: int = TOPIC) -> None:
        self.shard.set_subscription(topic, number, None, 2, self.now)

    def publish(self, *bodies: str, topic: int = TOPIC, **fields: Any) -> list[Any]:
        command = Send(topic, [body.encode() for body in bodies], **fields)
        (sent,) = self.shard.send([command], self.now)
        return list(sent.results())

    @property
    def totals(self) -> tuple[int, int, int, int, int]:
        state = self.shard.topics[TOPIC]
        return state.published, state.copies, state.refused, state.dropped, self.shard.queues[TOPIC].moved


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.topic()
    return stage


def waiting(stage: Stage, queue: int) -> list[str]:
    texts = stage.waiting(queue)
    stage.check()
    return texts


def states(stage: Stage, topic: int = TOPIC) -> list[State]:
    return [State(view.state) for view in stage.messages(topic)]


# --- copies on one shard --------------------------------------------------------------------------


def test_every_subscribed_queue_gets_a_copy_and_the_body_is_stored_once(stage: Stage) -> None:
    for number in (1, 2, 3):
        stage.queue(number)
        stage.subscribe(number, number)
    stage.commit()
    (result,) = stage.publish("x" * 1000)
    rows = stage.check()
    assert [row.type for row in rows] == [Type.PUBLISHED, Type.SENT, Type.SENT, Type.SENT]
    assert rows[0].sequence == result.sequence and result.message_id == message_id(0, result.sequence)
    assert all(row.flags & SentFlag.FANNED and row.variable == rows[0].variable for row in rows[1:])
    assert [row.w5 for row in rows[1:]] == [1, 2, 3]
    assert len(stage.frames[max(stage.frames)].variable) == len(rows[0].variable) < 1100
    assert [waiting(stage, number) for number in (1, 2, 3)] == [["x" * 1000]] * 3
    assert stage.totals == (1, 3, 0, 0, 0) and stage.shard.counters(TOPIC).sent == 0


def test_a_publish_without_subscriptions_is_accepted(stage: Stage) -> None:
    (result,) = stage.publish("alone")
    assert isinstance(result, Accepted)
    assert [row.type for row in stage.check()][-1] == Type.PUBLISHED
    assert stage.totals == (1, 0, 0, 0, 0)


def test_a_copy_has_an_envelope_unless_delivery_is_raw(stage: Stage) -> None:
    stage.queue(1)
    stage.queue(2)
    stage.subscribe(1, 1, raw=True)
    stage.subscribe(2, 2, raw=False)
    (result,) = stage.publish("hello", subjects=["greeting"])
    stage.check()
    (plain,), (wrapped,) = stage.messages(1), stage.messages(2)
    assert stage.payload(plain).envelope == b"" and stage.payload(plain).body == b"hello"
    payload = stage.payload(wrapped)
    envelope = decode_envelope(payload.envelope)
    assert payload.body == b"hello"
    assert (envelope.topic, envelope.shard, envelope.sequence) == (TOPIC, 0, result.sequence)
    assert (envelope.published_ms, envelope.subject) == (stage.now, "greeting")
    assert envelope.topic_arn == "arn:aws:sns:us-east-1:tenant:t100"


def test_only_subscriptions_whose_filter_matches_get_a_copy(stage: Stage) -> None:
    for number, text in ((1, '{"kind":["a"]}'), (2, '{"kind":["b"]}'), (3, "")):
        stage.queue(number)
        stage.subscribe(number, number, filter=text)
    stage.queue(4)
    stage.subscribe(4, 4, filter='{"order":{"total":[{"numeric":[">",10]}]}}', scope="MessageBody")
    kinds = [encode_attributes([Attribute("kind", "String", kind, False)]) for kind in (b"a", b"b", b"c")]
    stage.publish("one", "two", '{"order":{"total":11}}', attributes=kinds)
    assert [waiting(stage, number) for number in (1, 2, 3, 4)] == [
        ["one"],
        ["two"],
        ["one", "two", '{"order":{"total":11}}'],
        ['{"order":{"total":11}}'],
    ]


def test_each_queue_applies_its_own_delay_retention_and_order_of_priority(stage: Stage) -> None:
    stage.queue(1, delay_ms=5_000, retention_ms=60_000)
    stage.queue(2)
    stage.subscribe(1, 1)
    stage.subscribe(2, 2)
    stage.publish("low", "high", priorities=[1, 200], max_receives=[0, 3])
    stage.check()
    assert [State(view.state) for view in stage.messages(1)] == [State.DELAYED] * 2
    assert stage.bodies(stage.receive(2)) == ["high", "low"]
    assert [view.maximum for view in stage.messages(2)] == [0, 3]
    stage.later(5_000)
    assert stage.bodies(stage.receive(1, 1)) == ["high"]
    stage.later(60_000)
    stage.check()
    assert stage.waiting(1) == []


def test_copies_are_removed_one_by_one(stage: Stage) -> None:
    for number in (1, 2):
        stage.queue(number)
        stage.subscribe(number, number)
    stage.publish("a", "b")
    stage.delete(1, *stage.receive(1))
    stage.check()
    assert stage.waiting(1) == [] and stage.waiting(2) == ["a", "b"]
    stage.truncate(stage.next_frame)
    assert waiting(stage, 2) == ["a", "b"]


@pytest.mark.parametrize("times", [{"delays_ms": [1_000]}, {"ttls_ms": [1_000]}])
def test_a_publish_cannot_be_delayed_or_have_its_own_end(stage: Stage, times: dict[str, Any]) -> None:
    (refused,) = stage.publish("late", **times)
    assert isinstance(refused, InvalidInput)
    assert stage.totals[0] == 0


def test_a_subscription_needs_its_topic(stage: Stage) -> None:
    stage.queue(1)
    with pytest.raises(TopicDoesNotExist):
        stage.shard.set_subscription(1, 1, Subscription(1, 1, 1, 1, 0), 1, stage.now)


def test_a_removed_subscription_gets_nothing(stage: Stage) -> None:
    stage.queue(1)
    stage.subscribe(1, 1)
    stage.publish("before")
    stage.unsubscribe(1)
    stage.publish("after")
    assert waiting(stage, 1) == ["before"]


# --- requests that are repeated --------------------------------------------------------------------


def test_a_repeated_request_is_published_once(stage: Stage) -> None:
    stage.queue(1)
    stage.subscribe(1, 1)
    first = stage.publish("a", "b", request=77)
    stage.check()
    again = stage.publish("a", "b", request=77)
    assert [one.sequence for one in again] == [one.sequence for one in first]
    assert all(one.duplicate for one in again)
    assert waiting(stage, 1) == ["a", "b"]


def test_an_idempotency_key_counts_for_a_topic(stage: Stage) -> None:
    stage.queue(1)
    stage.subscribe(1, 1)
    once = Once("key", "content", 3_600_000)
    first = stage.publish("a", once=once)
    assert stage.publish("a", once=once) == first
    assert waiting(stage, 1) == ["a"]


def test_a_producers_numbers_count_for_a_topic(stage: Stage) -> None:
    for number in (1, 2):
        stage.queue(number)
        stage.subscribe(number, number)
    stage.publish("a", "b", producer="p", numbers=[1, 2])
    results = stage.publish("a", "b", "c", producer="p", numbers=[1, 2, 3])
    assert [one.duplicate for one in results] == [True, True, False]
    assert waiting(stage, 1) == waiting(stage, 2) == ["a", "b", "c"]


# --- other shards -----------------------------------------------------------------------------------


def pair(**fields: Any) -> tuple[Stage, Stage]:
    here, there = Stage(0), Stage(1)
    here.topic(**fields)
    return here, there


def test_a_copy_for_another_shard_is_owed_in_the_frame_of_the_publish() -> None:
    here, there = pair()
    for number in (ELSEWHERE, ELSEWHERE + 1):
        there.queue(number)
        here.subscribe(number, number, shard=1)
    here.commit()
    there.commit()
    here.publish("far")
    rows = here.check()
    assert [row.type for row in rows] == [Type.PUBLISHED, Type.SENT, Type.OWED, Type.SENT, Type.OWED]
    assert {row.reason for row in rows if row.type == Type.OWED} == {Reason.FANOUT}
    assert states(here) == [State.OWED] * 2
    assert [verdict for _, verdict in deliver(here, there)] == [Reason.ACCEPTED] * 2
    rows = there.frames[there.next_frame - 1].rows()
    assert rows[-1].variable == rows[-2].variable
    assert len(there.frames[there.next_frame - 1].variable) == len(rows[-1].variable), "stored once"
    assert waiting(there, ELSEWHERE) == waiting(there, ELSEWHERE + 1) == ["far"]
    here.check()
    assert states(here) == [] and here.totals == (1, 2, 0, 0, 2)


def test_a_copy_arrives_with_its_group_delay_and_envelope() -> None:
    here, there = pair()
    there.queue(ELSEWHERE, delay_ms=2_000)
    here.subscribe(1, ELSEWHERE, shard=1, raw=False)
    here.publish("far", groups=["g"], max_receives=[2], priorities=[7])
    deliver(here, there)
    there.check()
    (view,) = there.messages(ELSEWHERE)
    payload = there.payload(view)
    assert (State(view.state), view.maximum, view.priority) == (State.DELAYED, 2, 7)
    assert decode_envelope(payload.envelope).topic == TOPIC and payload.group == "g"
    there.later(2_000)
    there.check()
    assert there.bodies(there.receive(ELSEWHERE)) == ["far"]


def test_a_shard_that_does_not_answer_delays_its_own_copies_only() -> None:
    here, there = pair()
    here.queue(1)
    here.subscribe(1, 1)
    here.subscribe(2, ELSEWHERE, shard=1)
    here.publish("a", "b")
    assert waiting(here, 1) == ["a", "b"]
    assert states(here) == [State.OWED] * 2
    there.queue(ELSEWHERE)
    deliver(here, there)
    assert waiting(there, ELSEWHERE) == ["a", "b"]


def test_an_answer_that_is_lost_leaves_one_copy() -> None:
    here, there = pair()
    there.queue(ELSEWHERE)
    here.subscribe(1, ELSEWHERE, shard=1)
    here.publish("a")
    here.commit()
    entries = here.shard.pending_entries(1, 0, 10)
    there.shard.arrive([here.arrival(entry) for entry in entries], there.now)  # nobody hears the answer
    here.publish("b")
    deliver(here, there)
    assert waiting(there, ELSEWHERE) == ["a", "b"]
    here.check()
    assert states(here) == []


@pytest.mark.parametrize("way", ["follower", "snapshot", "replay", "truncated"])
def test_an_owner_that_takes_over_delivers_what_is_owed(way: str) -> None:
    here, there = pair()
    there.queue(ELSEWHERE, messages_max=1)
    here.subscribe(1, ELSEWHERE, shard=1)
    here.publish("a", "b")
    deliver(here, there)  # b is refused
    here.publish("c")
    here.commit()
    if way == "truncated":
        here.truncate(here.next_frame)
    successor = {"follower": here.follower, "snapshot": here.loaded()}.get(way) or here.replayed()
    here.restart(successor)
    here.check()
    there.queue(ELSEWHERE)
    here.later(2_000)
    deliver(here, there)
    assert sorted(waiting(there, ELSEWHERE)) == ["a", "b", "c"]
    here.check()
    assert states(here) == [] and here.totals[4] == 3


def test_copies_for_a_spread_queue_go_to_one_of_its_shards() -> None:
    from batonq.core.spread import even

    here, there = pair()
    spread = even((1, 2)).text()
    here.subscribe(1, ELSEWHERE, shard=1, spread=spread)
    here.publish(*"abcdef")
    here.check()
    pending = [len(here.shard.pending_entries(shard, 0, 100)) for shard in (1, 2)]
    assert sum(pending) == 6 and min(pending) >= 2
    del there


# --- refusals ---------------------------------------------------------------------------------------


def test_a_full_queue_delays_its_own_copies_only(stage: Stage) -> None:
    stage.queue(1, messages_max=1)
    stage.queue(2)
    stage.subscribe(1, 1)
    stage.subscribe(2, 2)
    stage.publish("a", "b")
    assert waiting(stage, 2) == ["a", "b"] and waiting(stage, 1) == ["a"]
    assert states(stage) == [State.DELAYED] and stage.totals == (2, 4, 1, 0, 0)
    stage.later(1_000)
    stage.check()
    assert states(stage) == [State.DELAYED] and stage.totals[2] == 2
    stage.delete(1, *stage.receive(1))
    stage.later(60_000)
    assert waiting(stage, 1) == ["b"] and states(stage) == []
    stage.truncate(stage.next_frame)
    assert waiting(stage, 1) == ["b"]


def test_a_copy_waits_no_longer_than_the_topics_retention(stage: Stage) -> None:
    stage.topic(retention_ms=60_000)
    stage.queue(1, messages_max=1)
    stage.subscribe(1, 1)
    stage.publish("a", "b")
    for _ in range(9):
        stage.later(10_000)
    stage.check()
    assert states(stage) == [] and stage.shard.counters(TOPIC).expired_messages == 1


@pytest.mark.parametrize("local", [True, False])
def test_what_a_queue_refuses_goes_to_the_dead_letter_queue_of_the_subscription(local: bool) -> None:
    here, there = pair()
    place = here if local else there
    place.queue(1, messages_max=1)
    place.queue(2)
    here.subscribe(1, 1, shard=place.number, dead_letter_queue=2, dead_letter_shard=place.number)
    here.publish("a", "b")
    for _ in range(3):
        here.later(1)
        deliver(here, there)
        here.check()
    assert waiting(place, 1) == ["a"] and waiting(place, 2) == ["b"]
    (view,) = place.messages(2)
    payload = place.payload(view)
    assert view.origin == 1 | place.number << 32, "a redrive takes it to the subscription's queue"
    assert b"arn:aws:sns" in payload.lineage and b"refused" in payload.lineage
    assert states(here) == [] and here.totals[3] == 0


@pytest.mark.parametrize("missing", ["deleted", "closed", "wrong type"])
def test_without_a_dead_letter_queue_a_copy_without_a_queue_is_dropped_with_an_alarm(
    stage: Stage, missing: str
) -> None:
    stage.queue(1, fifo=missing == "wrong type")
    if missing == "closed":
        stage.shard.close_queue(1, 2, stage.now)
    stage.subscribe(1, MISSING_QUEUE if missing == "deleted" else 1)
    stage.queue(2)
    stage.subscribe(2, 2)
    stage.publish("a", "b")
    stage.check()
    assert stage.waiting(2) == ["a", "b"]
    assert states(stage) == [] and stage.totals == (2, 4, 0, 2, 0)
    assert [alarm.key for alarm in stage.shard.alarms] == [f"copies-dropped:{TOPIC}"]


def test_a_copy_that_another_shard_refuses_for_good_is_dropped() -> None:
    here, there = pair()
    here.subscribe(1, ELSEWHERE, shard=1)
    here.publish("a")
    assert deliver(here, there) == [(1, Reason.REFUSED_NO_QUEUE)]
    rows = here.check()
    assert [row.type for row in rows] == [Type.SETTLED, Type.DELETED]
    assert states(here) == [] and here.totals == (1, 1, 1, 1, 0)


@pytest.mark.parametrize("after", ["deleted", "removed", "replaced"])
def test_a_copy_survives_that_its_dead_letter_queue_is_deleted_on_the_way(after: str) -> None:
    """The queue of the subscription is only full. What refuses is a queue that the subscription no longer names."""
    here, there = pair()
    here.queue(1, messages_max=1)
    here.queue(3)
    there.queue(2)
    here.subscribe(1, 1, dead_letter_queue=2, dead_letter_shard=1)
    here.publish("a", "b")
    here.later(1)  # the second copy is on its way to the dead-letter queue
    assert states(here) == [State.OWED]
    there.shard.close_queue(2, 2, there.now)
    here.subscribe(1, 1, dead_letter_queue={"deleted": MISSING_QUEUE, "removed": 0, "replaced": 3}[after])
    assert deliver(here, there) == [(1, Reason.REFUSED_NO_QUEUE)]
    here.check()
    assert here.totals[3] == 0, "nothing is dropped"
    here.delete(1, *here.receive(1))
    for _ in range(3):
        here.later(600_000)
    assert waiting(here, 1) == ["b"] and states(here) == []


def test_a_copy_goes_to_the_queue_that_was_created_again_while_it_was_on_its_way() -> None:
    here, there = pair()
    there.queue(ELSEWHERE)
    here.subscribe(1, ELSEWHERE, shard=1)
    here.publish("a")
    there.shard.close_queue(ELSEWHERE, 2, there.now)
    there.queue(ELSEWHERE + 1)
    here.subscribe(1, ELSEWHERE + 1, shard=1)
    assert deliver(here, there) == [(1, Reason.REFUSED_NO_QUEUE)]
    here.later(600_000)
    deliver(here, there)
    assert waiting(there, ELSEWHERE + 1) == ["a"] and states(here) == []


def test_waiting_copies_of_a_removed_subscription_are_dropped(stage: Stage) -> None:
    stage.queue(1, messages_max=1)
    stage.subscribe(1, 1)
    stage.publish("a", "b")
    stage.unsubscribe(1)
    stage.later(1_000)
    stage.check()
    assert states(stage) == [] and stage.totals[3] == 1


def test_a_deleted_topic_takes_its_waiting_copies_along() -> None:
    here, there = pair()
    here.queue(1, messages_max=1)
    here.subscribe(1, 1)
    here.subscribe(2, ELSEWHERE, shard=1)
    here.publish("a", "b")
    here.shard.close_queue(TOPIC, 9, here.now)
    removed, done = here.shard.purge(TOPIC, here.now)
    here.check()
    assert (removed, done) == (1, True)
    assert TOPIC in here.shard.queues, "two copies are on their way"
    there.queue(ELSEWHERE)
    deliver(here, there)
    here.check()
    assert TOPIC not in here.shard.queues and not here.shard.topics
    assert waiting(there, ELSEWHERE) == ["a", "b"]


@pytest.mark.parametrize("fifo", [False, True])
def test_a_copy_that_is_refused_while_its_topic_is_deleted_goes_with_it(fifo: bool) -> None:
    here, there = pair(fifo=fifo)
    there.queue(ELSEWHERE, messages_max=1, fifo=fifo)
    here.subscribe(1, ELSEWHERE, shard=1, fifo=fifo)
    publish_fifo(here, ("x", "a"), ("y", "b")) if fifo else here.publish("a", "b")
    here.shard.close_queue(TOPIC, 9, here.now)
    here.shard.purge(TOPIC, here.now)
    deliver(here, there)
    here.later(10_000)  # the retry would be due
    here.check()
    here.shard.purge(TOPIC, here.now)
    here.check()
    assert TOPIC not in here.shard.queues
    assert waiting(there, ELSEWHERE) == ["a"]


def test_nothing_can_be_moved_into_a_topic(stage: Stage) -> None:
    other = Stage(1)
    other.queue(1, dead_letter_queue=TOPIC, dead_letter_shard=0, max_receives=1, dead_letter_on_failure=True)
    other.send(1, "poison")
    other.receive(1, visibility_ms=1)
    other.later(2)
    assert [verdict for _, verdict in deliver(other, stage)] == [Reason.REFUSED_TYPE]
    stage.check()


def test_a_full_shard_refuses_the_whole_publish(stage: Stage) -> None:
    for number in (1, 2, 3):
        stage.queue(number)
        stage.subscribe(number, number)
    stage.limit(slots_max=2)
    (refused,) = stage.publish("a")
    assert isinstance(refused, OverLimit)
    stage.check()
    assert all(not stage.messages(number) for number in (1, 2, 3))


# --- FIFO topics ------------------------------------------------------------------------------------


def fifo_pair(**queue: Any) -> tuple[Stage, Stage]:
    here, there = pair(fifo=True)
    there.queue(ELSEWHERE, fifo=True, **queue)
    here.subscribe(1, ELSEWHERE, shard=1, fifo=True)
    return here, there


def publish_fifo(stage: Stage, *rows: tuple[str, str]) -> list[Any]:
    groups, bodies = [group for group, _ in rows], [body for _, body in rows]
    return stage.publish(*bodies, groups=groups, dedup_ids=bodies, digests=[b"d" * 16] * len(rows))


def pump(here: Stage, there: Stage, times: int = 20) -> None:
    for _ in range(times):
        here.later(1)
        deliver(here, there)
        here.check()
        there.check()


def by_group(stage: Stage, queue: int) -> dict[str, list[str]]:
    stage.commit()
    found: dict[str, list[str]] = {}
    for view in stage.messages(queue):
        payload = stage.payload(view)
        found.setdefault(payload.group, []).append(payload.body.decode())
    return found


def test_a_fifo_topic_recognises_duplicates_for_all_its_queues() -> None:
    here, there = fifo_pair()
    here.queue(1, fifo=True)
    here.subscribe(2, 1, fifo=True)
    first = publish_fifo(here, ("g", "a"))
    again = publish_fifo(here, ("g", "a"))
    assert again[0].duplicate and again[0].sequence == first[0].sequence
    pump(here, there)
    assert waiting(here, 1) == waiting(there, ELSEWHERE) == ["a"]
    assert_same_state(here.replayed(), here.shard, here.now)


def test_the_order_of_a_group_is_kept_over_a_refusal() -> None:
    here, there = fifo_pair(messages_max=1)
    publish_fifo(here, ("g", "1"), ("h", "x"), ("g", "2"), ("g", "3"))
    pump(here, there, 3)
    publish_fifo(here, ("g", "4"), ("h", "y"))
    there.queue(ELSEWHERE, fifo=True)
    for _ in range(10):
        here.later(1_000)
        deliver(here, there)
        here.check()
    assert by_group(there, ELSEWHERE) == {"g": ["1", "2", "3", "4"], "h": ["x", "y"]}
    assert states(here) == []


def test_the_order_of_a_group_is_kept_in_a_local_queue_that_was_full() -> None:
    stage = Stage()
    stage.topic(fifo=True)
    stage.queue(1, fifo=True, messages_max=1)
    stage.subscribe(1, 1, fifo=True)
    publish_fifo(stage, *(("g", str(number)) for number in range(20)))
    stage.check()
    assert states(stage) == [State.DELAYED] + [State.VISIBLE] * 18
    stage.queue(1, fifo=True)
    publish_fifo(stage, ("g", "20"), ("free", "now"))
    stage.check()
    assert by_group(stage, 1) == {"g": ["0"], "free": ["now"]}
    stage.later(1_000)
    stage.check()
    assert by_group(stage, 1)["g"] == [str(number) for number in range(21)]
    assert states(stage) == []


@pytest.mark.parametrize("way", ["follower", "snapshot", "replay", "truncated"])
def test_a_new_owner_goes_on_with_the_lines_of_a_fifo_topic(way: str) -> None:
    here, there = fifo_pair()
    publish_fifo(here, ("g", "1"), ("g", "2"), ("g", "3"))
    deliver(here, there)
    here.commit()
    if way == "truncated":
        here.truncate(here.next_frame)
    successor = {"follower": here.follower, "snapshot": here.loaded()}.get(way) or here.replayed()
    here.restart(successor)
    pump(here, there)
    assert by_group(there, ELSEWHERE) == {"g": ["1", "2", "3"]}


@pytest.mark.parametrize("first", [0, 1])
def test_a_refused_copy_finds_its_group_in_a_dead_letter_queue_that_has_grown(first: int) -> None:
    here, there = pair(fifo=True)
    places = (here, there)
    spread = Spread((first,)).grown([1 - first])
    group = next(name for name in map(str, range(1_000)) if len(spread.asked(key_hash(name))) == 2)
    here.queue(1, fifo=True, messages_max=1)
    for place in places:
        place.queue(2, fifo=True, spread=spread.text())
    here.subscribe(
        1,
        1,
        fifo=True,
        dead_letter_queue=2,
        dead_letter_shard=first,
        dead_letter_spread=spread.text(),
        dead_letter_fifo=True,
    )
    publish_fifo(here, (group, "a"), (group, "b"), (group, "c"))
    pump(here, there)
    assert by_group(here, 1) == {group: ["a"]}
    assert by_group(places[1 - first], 2) == {group: ["b", "c"]}
    assert states(here) == []


def test_a_fifo_topic_delivers_to_a_standard_queue_too() -> None:
    here, there = pair(fifo=True)
    there.queue(ELSEWHERE)
    here.queue(1)
    here.subscribe(1, ELSEWHERE, shard=1)
    here.subscribe(2, 1)
    publish_fifo(here, ("g", "1"), ("g", "2"))
    pump(here, there)
    assert waiting(there, ELSEWHERE) == waiting(here, 1) == ["1", "2"]


def test_a_follower_waits_no_longer_than_its_retention() -> None:
    stage = Stage()
    stage.topic(fifo=True, retention_ms=60_000)
    stage.queue(1, fifo=True, messages_max=1)
    stage.subscribe(1, 1, fifo=True)
    publish_fifo(stage, ("g", "0"), ("g", "1"))
    stage.later(30_000)
    publish_fifo(stage, ("g", "2"))
    stage.queue(1, fifo=True, messages_max=1)
    stage.later(31_000)
    stage.check()
    stage.queue(1, fifo=True)
    stage.later(1)
    stage.later(2_000)
    stage.check()
    assert by_group(stage, 1) == {"g": ["0", "2"]}


# --- the log ----------------------------------------------------------------------------------------


def test_a_log_without_topics_keeps_its_format() -> None:
    stage = Stage()
    stage.queue(1)
    stage.send(1, "a")
    assert stage.shard.format < TOPICS_VERSION
    stage.topic()
    stage.commit()
    assert stage.shard.format == stage.follower.format == TOPICS_VERSION


def test_many_copies_of_one_request_fit_into_one_frame_or_are_refused(stage: Stage) -> None:
    stage.queue(1)
    for number in range(1, 4_001):
        stage.subscribe(number, ELSEWHERE + number, shard=1)
    stage.commit()
    results = stage.publish(*"abcdefghij")
    accepted = [one for one in results if isinstance(one, Accepted)]
    assert len(accepted) == 2 and all(isinstance(one, OverLimit) for one in results[len(accepted) :])
    before = stage.next_frame
    stage.commit()
    assert stage.next_frame == before + 1
    stage.publish("alone")
    assert stage.shard.frame.row_count == 8_001


def test_sequences_of_copies() -> None:
    """Sequences rise in the order of records: validate() and peek depend on it."""
    stage = Stage()
    stage.topic()
    for number in (1, 2):
        stage.queue(number)
        stage.subscribe(number, number)
    stage.publish("a", "b")
    rows: Sequence[Any] = stage.check()
    sequences = [row.sequence for row in rows if row.type in (Type.PUBLISHED, Type.SENT)]
    assert sequences == sorted(sequences) == list(range(sequences[0], sequences[0] + 6))


def test_a_producers_request_with_too_many_copies_goes_on_where_it_was_refused(stage: Stage) -> None:
    for number in range(1, 5_001):
        stage.subscribe(number, ELSEWHERE + number, shard=1)
    stage.commit()
    left = list(range(1, 8))
    for _ in range(4):
        results = stage.publish(*map(str, left), producer="p", numbers=left)
        accepted = [one for one in results if isinstance(one, Accepted)]
        assert accepted and all(isinstance(one, OverLimit) for one in results[len(accepted) :])
        left = left[len(accepted) :]
        stage.commit()
        if not left:
            break
    assert stage.totals[:2] == (7, 35_000)


def test_a_copy_that_is_carried_forward_and_then_moves_keeps_its_group() -> None:
    """Between the records that carry messages forward and the Base, a copy may leave its topic."""
    stage = Stage()
    stage.topic(fifo=True)
    stage.queue(1, fifo=True, messages_max=1)
    stage.subscribe(1, 1, fifo=True)
    publish_fifo(stage, ("g", "1"), ("g", "2"), ("g", "3"))
    stage.commit()
    boundary, shard = stage.next_frame, stage.shard
    for slot in shard.to_carry(boundary, shard.live_slots()):
        position, extent = shard.columns.position[slot], shard.columns.extent[slot]
        shard.carry(slot, stage._payload_bytes(position, extent), (), stage.now)
    stage.commit()
    stage.queue(1, fifo=True)
    stage.later(1_000)
    stage.commit()
    shard.write_base(boundary, stage.now)
    stage.commit()
    for number in [number for number in stage.frames if number < boundary]:
        del stage.frames[number]
    assert_same_state(stage.replayed(), shard, stage.now)
    assert by_group(stage, 1) == {"g": ["1", "2", "3"]}


def test_an_entry_shares_a_payload_only_with_an_earlier_one_of_its_call() -> None:
    here, there = pair()
    there.queue(ELSEWHERE)
    here.subscribe(1, ELSEWHERE, shard=1)
    here.publish("a", "b")
    here.commit()
    first, second = (here.arrival(entry) for entry in here.shard.pending_entries(1, 0, 10))
    second.same_as = 2
    with pytest.raises(LogCorrupt, match="not in the same call"):
        there.shard.arrive([first, second], there.now)
    second.same_as, second.payload = 1, b""
    there.shard.arrive([first, second], there.now)
    assert waiting(there, ELSEWHERE) == ["a", "a"]
