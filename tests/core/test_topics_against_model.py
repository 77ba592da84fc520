"""Topics on two shards against a naive model: every copy of a published message is in exactly one place.

The model keeps, for each publish, the subscriptions that matched then. Each such copy is in its queue, was taken from
its queue, is in the dead-letter queue of the subscription, waits in the topic, or is gone; and the topic has counted
exactly those that are gone. In FIFO queues the copies of a group come in the order of their publishes. After every step
the state is valid and a follower has the same; owners change on the way, and the front of the log is dropped.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from batonq.core.commands import Accepted, Send
from batonq.core.payload import Attribute, encode_attributes
from batonq.core.policy import MISSING_QUEUE, QueuePolicy
from batonq.core.records import State
from batonq.core.topics.subscription import Subscription
from tests.core.rig import Rig, assert_same_state, claim, deliver
from tests.support import ask
from tests.support.profile import FULL

HISTORIES = 200 if FULL else 40
TOPIC, FIFO_TOPIC = 1, 2
TOPICS = (TOPIC, FIFO_TOPIC)
# queue → its shard; 10 to 13 standard, 20 to 23 FIFO; 13 and 23 are dead-letter queues
PLACES = {10: 0, 11: 0, 12: 1, 13: 1, 20: 0, 21: 0, 22: 1, 23: 1}
DEAD = {10: 13, 11: 13, 12: 13, 20: 23, 21: 23, 22: 23}
RETENTION_MS = 600_000
KINDS = ("", "a", "b")
times = st.sampled_from((0, 0, 0, 0, 1, 1, 1, 1_000, 2_000, 10_000, 61_000))


def is_fifo(number: int) -> bool:
    return number == FIFO_TOPIC or number >= 20


class TopicMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.rigs = {0: Rig(0), 1: Rig(1)}
        self.count = 0
        self.subscriptions: dict[tuple[int, int], Subscription] = {}  # topic, queue
        self.next_subscription = 1
        self.closed: set[int] = set()
        self.expected: dict[int, list[tuple[str, int]]] = {topic: [] for topic in TOPICS}  # body, queue
        self.group: dict[str, str] = {}
        self.taken: dict[int, list[str]] = {queue: [] for queue in PLACES}  # received and deleted, in order
        self.keys: dict[str, tuple[int, int]] = {}  # deduplication id → sequence, end of its window
        self.accepted = dict.fromkeys(TOPICS, 0)
        self.lost_answers: list[tuple[int, list[tuple[int, int]]]] = []

    @property
    def now(self) -> int:
        return self.rigs[0].now

    def pass_time(self, ms: int) -> None:
        for rig in self.rigs.values():
            rig.now += ms
            for _ in range(50):
                rig.shard.advance(self.now)

    @initialize()
    def begin(self) -> None:
        for topic in TOPICS:
            policy = QueuePolicy(
                topic, "tenant", f"t{topic}", topic=True, fifo=is_fifo(topic), retention_ms=RETENTION_MS
            )
            self.rigs[0].shard.set_policy(policy, self.now)
        for queue in PLACES:
            self.set_queue(queue, 1 if queue in (20, 22) else 0)
        for queue in (10, 12, 20, 22):
            self.subscribe(queue, "", False, True, False)

    def set_queue(self, queue: int, maximum: int) -> None:
        policy = QueuePolicy(queue, "tenant", f"q{queue}", fifo=is_fifo(queue), messages_max=maximum)
        self.rigs[PLACES[queue]].shard.set_policy(policy, self.now)

    # --- commands --------------------------------------------------------------------------------

    @rule(queue=st.sampled_from([*PLACES]), maximum=st.sampled_from((0, 0, 1, 2)), later=times)
    def limit(self, queue: int, maximum: int, later: int) -> None:
        self.pass_time(later)
        if queue not in self.closed and queue not in (13, 23):
            self.set_queue(queue, maximum)

    @rule(
        queue=st.sampled_from([*DEAD]),
        kind=st.sampled_from(KINDS),
        dead=st.booleans(),
        raw=st.booleans(),
        missing=st.sampled_from((False, False, False, True)),
    )
    def subscribe(self, queue: int, kind: str, dead: bool, raw: bool, missing: bool) -> None:
        """Subscribe, or change a subscription: its queue may be known as deleted."""
        topic = FIFO_TOPIC if is_fifo(queue) else TOPIC
        old = self.subscriptions.get((topic, queue))
        if old is None:
            self.next_subscription += 1
        one = Subscription(
            number=old.number if old is not None else self.next_subscription,
            topic=topic,
            version=1,
            queue=MISSING_QUEUE if missing else queue,
            shard=PLACES[queue],
            name=f"q{queue}",
            fifo=is_fifo(queue),
            raw=raw,
            filter=f'{{"kind":["{kind}"]}}' if kind else "",
            dead_letter_queue=DEAD[queue] if dead else 0,
            dead_letter_shard=PLACES[DEAD[queue]],
            dead_letter_fifo=is_fifo(queue),
        )
        self.subscriptions[topic, queue] = one
        self.rigs[0].shard.set_subscription(topic, one.number, one, 1, self.now)

    @rule(queue=st.sampled_from([*DEAD]))
    def unsubscribe(self, queue: int) -> None:
        topic = FIFO_TOPIC if is_fifo(queue) else TOPIC
        old = self.subscriptions.pop((topic, queue), None)
        if old is not None:
            self.rigs[0].shard.set_subscription(topic, old.number, None, 2, self.now)

    @rule(
        topic=st.sampled_from((TOPIC, FIFO_TOPIC, FIFO_TOPIC)),
        kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=4),
        groups=st.lists(st.sampled_from("gh"), min_size=4, max_size=4),
        repeat=st.booleans(),
        requests=st.integers(1, 2),
        later=times,
    )
    def publish(self, topic: int, kinds: list[str], groups: list[str], repeat: bool, requests: int, later: int) -> None:
        """One request, or two together, and perhaps the first again under its name."""
        self.pass_time(later)
        commands = [self.command(topic, kinds, groups) for _ in range(requests)]
        name = self.count + 1000
        commands[0].request = name if repeat else 0
        outcomes = self.rigs[0].shard.send(commands, self.now)
        for command, outcome in zip(commands, outcomes, strict=True):
            results = outcome.results()
            assert all(isinstance(result, Accepted) and not result.duplicate for result in results)
            self.publish_in_model(topic, [body.decode() for body in command.bodies], kinds)
        if repeat:
            (again,) = self.rigs[0].shard.send([commands[0]], self.now)
            assert [one.sequence for one in again.results()] == [one.sequence for one in outcomes[0].results()]  # type: ignore[union-attr]
            assert all(one.duplicate for one in again.results())  # type: ignore[union-attr]

    def command(self, topic: int, kinds: list[str], groups: list[str]) -> Send:
        bodies = []
        for _, group in zip(kinds, groups, strict=False):
            self.count += 1
            bodies.append(f"m{self.count}")
            self.group[bodies[-1]] = group
        fields: dict[str, Any] = {}
        if is_fifo(topic):
            fields = {"groups": groups[: len(kinds)], "dedup_ids": bodies, "digests": [b"d" * 16] * len(kinds)}
        attributes = [encode_attributes([Attribute("kind", "String", kind.encode(), False)]) for kind in kinds]
        return Send(topic, [body.encode() for body in bodies], attributes=attributes, **fields)

    def publish_in_model(self, topic: int, bodies: list[str], kinds: list[str]) -> None:
        for body, kind in zip(bodies, kinds, strict=True):
            self.accepted[topic] += 1
            for (of, queue), subscription in self.subscriptions.items():
                if of == topic and (not subscription.filter or f'"{kind}"' in subscription.filter):
                    self.expected[topic].append((body, queue))

    @rule(queue=st.sampled_from([*PLACES, 20, 20, 22, 22]), count=st.integers(1, 3), later=times)
    def take(self, queue: int, count: int, later: int) -> None:
        self.pass_time(later)
        rig = self.rigs[PLACES[queue]]
        leases = ask.receive(rig.shard, queue, count, 30_000, self.now, "worker", "")
        rig.commit()
        self.taken[queue] += [rig.payload(lease).body.decode() for lease in leases]
        assert not any(ask.delete(rig.shard, queue, [claim(lease) for lease in leases], self.now))

    @rule(later=times, limit=st.integers(1, 5), lost=st.booleans())
    def carry(self, later: int, limit: int, lost: bool) -> None:
        """A round of the channel between the shards, of which the answer may be lost."""
        self.pass_time(later)
        here, there = self.rigs[0], self.rigs[1]
        if not lost:
            deliver(here, there, limit)
            return
        here.commit()
        entries = here.shard.pending_entries(1, 0, limit)
        there.shard.arrive([here.arrival(entry) for entry in entries], there.now)

    @rule(
        number=st.sampled_from((0, 1)),
        way=st.sampled_from(("follower", "snapshot", "replay")),
        drop=st.sampled_from((0.0, 0.5, 1.0)),
    )
    def take_over(self, number: int, way: str, drop: float) -> None:
        rig = self.rigs[number]
        rig.commit()
        if drop:
            first = min(rig.frames)
            rig.truncate(first + int((rig.next_frame - first) * drop))
        ways = {"follower": lambda: rig.follower, "snapshot": rig.loaded, "replay": rig.replayed}
        rig.restart(ways[way]())

    # --- what must hold ----------------------------------------------------------------------------

    @invariant()
    def every_copy_is_in_one_place(self) -> None:
        bodies: dict[int, list[str]] = {}
        for number, rig in self.rigs.items():
            rig.check()
            for queue, place in PLACES.items():
                if place == number:
                    bodies[queue] = [rig.payload(view).body.decode() for view in rig.messages(queue)]
        source = self.rigs[0]
        for topic in TOPICS:
            self.check_topic(topic, source, bodies)
        for queue in (20, 21, 22):
            self.check_order(queue, bodies[queue])

    def check_topic(self, topic: int, source: Rig, bodies: dict[int, list[str]]) -> None:
        shard = source.shard
        state, counters = shard.topics[topic], shard.counters(topic)
        assert (state.published, state.copies) == (self.accepted[topic], len(self.expected[topic]))
        of_number = {one.number: queue for (_, queue), one in self.subscriptions.items()}
        arrived: Counter[tuple[str, int]] = Counter()
        for queue in DEAD:
            if is_fifo(queue) == is_fifo(topic):
                arrived.update((body, queue) for body in [*self.taken[queue], *bodies[queue]])
        expected = Counter(self.expected[topic])
        assert max(expected.values(), default=1) == 1
        assert not arrived - expected, "a copy came twice, or to a queue whose subscription did not match"
        waiting: Counter[str] = Counter()
        for view in source.messages(topic):
            body = source.payload(view).body.decode()
            waiting[body] += 1
            queue = of_number.get(shard.messages.fanned[view.slot][0], 0)
            owed_twice = view.state == State.OWED and topic == TOPIC  # an answer may have been lost
            if queue and not owed_twice and view.state != State.OWED:
                assert not arrived[body, queue], "a copy waits although it has arrived"
        dead = 23 if is_fifo(topic) else 13
        in_dead = Counter([*self.taken[dead], *bodies[dead]])
        # Everything that is expected is somewhere. What is OWED may be in its destination too, until it is settled.
        settled = [view for view in source.messages(topic) if view.state != State.OWED]
        owed = len(source.messages(topic)) - len(settled)
        gone = state.dropped + counters.expired_messages
        somewhere = sum(arrived.values()) + sum(in_dead.values()) + len(settled) + gone
        assert somewhere <= len(self.expected[topic]) <= somewhere + owed, "a copy is lost or doubled"

    def check_order(self, queue: int, bodies: list[str]) -> None:
        """The copies of a group come in the order of their publishes."""
        for group in "gh":
            numbers = [int(body[1:]) for body in [*self.taken[queue], *bodies] if self.group[body] == group]
            assert numbers == sorted(numbers), f"group {group} of queue {queue} is out of order: {numbers}"

    def teardown(self) -> None:
        """When every queue has room again, all copies arrive: nothing waits for ever."""
        if not self.rigs[0].shard.topics:
            return
        for queue in PLACES:
            self.set_queue(queue, 0)
        # A line moves to another shard one copy at a time.
        rounds = 60 + max(len(self.rigs[0].messages(topic)) for topic in TOPICS)
        for _ in range(rounds):
            self.pass_time(10_000)
            deliver(self.rigs[0], self.rigs[1])
        for rig in self.rigs.values():
            rig.check()
            assert_same_state(rig.replayed(), rig.shard, rig.now)
        source = self.rigs[0]
        assert [view.state for topic in TOPICS for view in source.messages(topic)] == []
        self.every_copy_is_in_one_place()


TestTopics = TopicMachine.TestCase
TestTopics.settings = settings(max_examples=HISTORIES, stateful_step_count=40, deadline=None)
