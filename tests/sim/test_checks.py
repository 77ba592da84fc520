"""Each checker by short histories: what it lets pass, and what it finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from batonq.core.ids import message_id
from batonq.core.spread import NUMBER_BITS
from batonq.priorities import NORMAL_PRIORITY
from sim.checks import CHECKERS, Evidence, QueueFacts
from sim.history import (
    OK,
    UNKNOWN,
    Answer,
    Delivered,
    History,
    Holding,
    Outgoing,
    PurgePoint,
    Receiving,
    Sending,
    Steering,
)
from sim.ledger import Copy, LeaseSpan, Ledger

T0 = 1_700_000_000_000
ORDERS = QueueFacts("orders", "orders", number=1, shard=0, visibility_ms=10_000, dedup_window_ms=5_000)
STRICT = QueueFacts("strict", "strict", number=2, shard=0, visibility_ms=10_000, strict=True)
LINE = QueueFacts("line.fifo", "line.fifo", number=3, shard=0, visibility_ms=10_000, fifo=True)


class Story:
    """A history and the books that go with it, told in seconds from T0; each call takes a tenth of a second."""

    def __init__(self) -> None:
        self.history = History()
        self.ledger = Ledger()
        self.book = self.ledger.book(0)

    def findings(self, checker: str) -> list[str]:
        evidence = Evidence(self.history, self.ledger, [ORDERS, STRICT, LINE])
        return [text for text, _ in CHECKERS[checker](evidence)]

    def _times(self, at_s: float) -> dict[str, Any]:
        started_ms = T0 + int(at_s * 1000)
        return {
            "number": self.history.next_number(),
            "client": "tester",
            "started_s": at_s,
            "started_ms": started_ms,
            "ended_s": at_s + 0.1,
            "ended_ms": started_ms + 100,
        }

    def send(
        self,
        at_s: float,
        *messages: Outgoing,
        queue: QueueFacts = ORDERS,
        duplicate_of: int = 0,
        invocation: str = "",
    ) -> None:
        answers = [
            Answer(OK, f"id-{message.number}", duplicate_of or message.number, bool(duplicate_of))
            for message in messages
        ]
        self.history.add(
            Sending(
                **self._times(at_s),
                queue=queue.name,
                outcome=OK,
                messages=list(messages),
                answers=answers,
                invocation=invocation,
            )
        )

    def copy(self, number: int, at_s: float, queue: QueueFacts = ORDERS, **fields: Any) -> Copy:
        """A message in the books; its sequence is its number unless told otherwise."""
        born_ms = T0 + int(at_s * 1000)
        sequence = fields.pop("sequence", number)
        copy = Copy(0, sequence, queue.number, number, born_ms, born_ms, T0 // 1000 + 10**6, **fields)
        self.book.copies[sequence] = copy
        return copy

    def receive(
        self, at_s: float, *numbers: int, queue: QueueFacts = ORDERS, count: int = 1, **fields: Any
    ) -> list[Delivered]:
        times = self._times(at_s)
        began_ms = times["started_ms"]
        deliveries = [
            Delivered(
                call=times["number"],
                queue=queue.name,
                number=number,
                body=fields.get("body", b"message %d " % number),
                message_id=f"id-{number}",
                receipt=fields.get("receipt", f"receipt-{times['number']}-{number}"),
                group=fields.get("group", ""),
                sequence=number,
                sent_ms=fields.get("sent_ms", T0),
                began_ms=began_ms,
                deadline_ms=began_ms + queue.visibility_ms,
                receive_count=count,
                priority=NORMAL_PRIORITY,
                shard=fields.get("shard"),
            )
            for number in numbers
        ]
        self.history.add(Receiving(**times, queue=queue.name, outcome=OK, deliveries=deliveries))
        return deliveries

    def purge(self, at_s: float, through: int, place: int, queue: QueueFacts = ORDERS) -> None:
        self.history.add(Steering(**self._times(at_s), queue=queue.name, outcome=OK, kind="purge"))
        times = self._times(at_s)
        self.history.add(PurgePoint(**times, queue=queue.name, outcome=OK, through=through, place=place))

    def use(self, at_s: float, kind: str, held: Delivered, outcome: str = OK, value_ms: int = 0) -> None:
        self.history.add(
            Holding(
                **self._times(at_s),
                queue=held.queue,
                outcome=outcome,
                kind=kind,
                receipt=held.receipt,
                value_ms=value_ms,
            )
        )


def message(number: int, **fields: Any) -> Outgoing:
    return Outgoing(number=number, body=b"message %d " % number, **fields)


@pytest.fixture
def story() -> Story:
    return Story()


# --- total queue ------------------------------------------------------------------------------


def test_a_life_without_incident(story: Story) -> None:
    story.send(0, message(1))
    story.copy(1, 0, end="deleted", ended_ms=T0 + 2_000)
    (held,) = story.receive(1, 1)
    story.use(2, "delete", held)
    for checker in CHECKERS:
        assert story.findings(checker) == []


def test_an_acknowledged_message_that_is_nowhere_is_lost(story: Story) -> None:
    story.send(0, message(1))
    assert "neither deleted by a consumer nor is it anywhere" in story.findings("total-queue")[0]


def test_a_message_that_is_still_there_or_expired_is_not_lost(story: Story) -> None:
    story.send(0, message(1), message(2))
    story.copy(1, 0)
    story.copy(2, 0, end="expired", ended_ms=T0 + 9_000)
    assert story.findings("total-queue") == []


def test_a_purge_explains_only_its_own_queue(story: Story) -> None:
    story.send(0, message(1))
    story.copy(1, 0, end="purged", ended_ms=T0 + 1_000, ended_at=2)
    story.purge(0.5, through=1, place=1, queue=STRICT)
    assert "nor is it anywhere" in story.findings("total-queue")[0]
    story.purge(0.5, through=1, place=1)
    assert story.findings("total-queue") == []


def test_a_purge_removes_what_was_there_when_it_began(story: Story) -> None:
    story.send(0, message(1))
    story.send(0.6, message(2))
    story.copy(1, 0, end="purged", ended_ms=T0 + 1_000, ended_at=2)
    story.copy(2, 0.6, end="purged", ended_ms=T0 + 1_000, ended_at=2)
    story.purge(0.5, through=1, place=1)
    story.purge(2, through=2, place=2)  # too late to have been that
    assert story.findings("total-queue") == [
        "message #2 of orders (2 on shard 0) was purged, and all purges had begun before it was there, with [1]"
    ]
    story.history.add(Steering(**story._times(0.5), queue=ORDERS.name, outcome=OK, kind="delete queue"))
    assert story.findings("total-queue") == []


def test_a_delete_under_a_superseded_receipt_explains_nothing(story: Story) -> None:
    story.send(0, message(1))
    story.copy(1, 0, end="deleted", ended_ms=T0 + 22_000)
    (first,) = story.receive(1, 1)
    story.receive(20, 1, count=2)
    story.use(22, "delete", first)
    assert "nor is it anywhere" in story.findings("total-queue")[0]


def test_what_nobody_sent_must_not_come_out(story: Story) -> None:
    story.receive(1, 7)
    assert "which nobody sent" in story.findings("total-queue")[0]


def test_content_must_come_out_as_it_went_in(story: Story) -> None:
    story.send(0, message(1))
    story.copy(1, 0)
    story.receive(1, 1, body=b"something else")
    assert "other content" in story.findings("total-queue")[0]


def test_a_message_is_told_its_own_id(story: Story) -> None:
    story.send(0, message(1))
    story.copy(1, 0)
    (call,) = story.history.of(Sending)
    call.answers = [Answer(OK, message_id(0, 1), 1, False)]
    assert story.findings("total-queue") == []
    call.answers = [Answer(OK, message_id(0, 2), 2, False)]
    assert story.findings("total-queue") == ["message #1 was acknowledged (call 0) with the id of no message"]
    story.copy(2, 0)
    assert "message #1 was acknowledged (call 0) with the id of message #2" in story.findings("total-queue")
    call.answers = [Answer(OK, message_id(0, 2), 2, True)]
    assert "with the id of" not in " ".join(story.findings("total-queue"))


def test_a_request_makes_a_message_once(story: Story) -> None:
    story.send(0, message(1))
    story.copy(1, 0)
    story.copy(1, 1, sequence=2)
    assert "was made 2 times" in story.findings("total-queue")[0]


@pytest.mark.parametrize(("invocation", "findings"), [("invocation 1", 0), ("", 1)])
def test_after_so_long_a_request_that_is_repeated_may_be_forgotten(
    story: Story, invocation: str, findings: int
) -> None:
    """One without a name is not repeated by its sender."""
    story.send(0, message(1), invocation=invocation)
    story.copy(1, 0)
    story.copy(1, 121, sequence=2)
    assert len(story.findings("total-queue")) == findings


def test_a_deleted_message_must_not_rise(story: Story) -> None:
    story.send(0, message(1))
    story.copy(1, 0)
    (held,) = story.receive(1, 1)
    story.use(2, "delete", held)
    story.receive(15, 1, count=2)
    assert "after it had been deleted" in story.findings("total-queue")[0]


# --- leases -----------------------------------------------------------------------------------


def test_two_leases_must_not_overlap(story: Story) -> None:
    story.copy(1, 0)
    story.receive(1, 1)
    story.receive(5, 1, count=2)
    assert "had it until" in story.findings("lease-exclusivity")[0]


@pytest.mark.parametrize("kind", ["delete", "nack", "change"])
def test_whoever_may_have_let_go_has_no_lease_any_more(story: Story, kind: str) -> None:
    story.copy(1, 0)
    (held,) = story.receive(1, 1)
    story.use(2, kind, held, outcome=UNKNOWN)
    story.receive(5, 1, count=2)
    assert story.findings("lease-exclusivity") == []


def test_an_extension_that_was_answered_in_time_counts(story: Story) -> None:
    story.copy(1, 0)
    (held,) = story.receive(1, 1)
    story.use(9, "change", held, value_ms=10_000)
    story.receive(15, 1, count=2)
    assert "had it until" in story.findings("lease-exclusivity")[0]


def test_an_extension_beside_a_release_proves_nothing(story: Story) -> None:
    story.copy(1, 0)
    (held,) = story.receive(1, 1)
    story.use(9, "change", held, value_ms=0)
    story.use(9.05, "change", held, value_ms=10_000)
    story.receive(15, 1, count=2)
    assert story.findings("lease-exclusivity") == []


def test_a_repeated_attempt_is_the_same_lease(story: Story) -> None:
    story.copy(1, 0)
    story.receive(1, 1, receipt="same")
    story.receive(2, 1, receipt="same")
    assert story.findings("lease-exclusivity") == []


def test_receive_counts_rise(story: Story) -> None:
    story.copy(1, 0)
    story.receive(1, 1)
    story.receive(15, 1, count=1)
    assert "receive count" in story.findings("lease-exclusivity")[0]


@pytest.mark.parametrize(
    ("queue", "kind", "wrong"), [(ORDERS, "delete", False), (ORDERS, "nack", True), (STRICT, "delete", True)]
)
def test_a_superseded_receipt_is_obeyed_by_nobody(story: Story, queue: QueueFacts, kind: str, wrong: bool) -> None:
    story.copy(1, 0, queue)
    (first,) = story.receive(1, 1, queue=queue)
    story.receive(15, 1, queue=queue, count=2)
    story.use(16, kind, first)
    assert any("was obeyed" in text for text in story.findings("lease-exclusivity")) == wrong


def test_deleting_what_is_gone_succeeds_in_a_fifo_queue(story: Story) -> None:
    story.copy(1, 0, LINE, end="deleted", ended_ms=T0 + 16_000)
    (first,) = story.receive(1, 1, queue=LINE)
    (second,) = story.receive(15, 1, queue=LINE, count=2)
    story.use(16, "delete", second)
    story.use(17, "delete", first)
    assert story.findings("lease-exclusivity") == []


def test_a_lease_that_lasts_is_not_refused(story: Story) -> None:
    story.copy(1, 0, STRICT)
    (held,) = story.receive(1, 1, queue=STRICT)
    story.use(5, "delete", held, outcome="lease_lost")
    assert "was refused as lease_lost" in story.findings("lease-exclusivity")[0]


def test_a_message_may_expire_under_its_lease(story: Story) -> None:
    story.copy(1, 0, STRICT, end="expired", ended_ms=T0 + 4_000)
    (held,) = story.receive(1, 1, queue=STRICT)
    story.use(5, "delete", held, outcome="message_gone")
    assert story.findings("lease-exclusivity") == []


# --- FIFO -------------------------------------------------------------------------------------


def test_a_group_goes_out_in_order(story: Story) -> None:
    story.send(0, message(1, group="a"), message(2, group="a"), queue=LINE)
    story.copy(1, 0, LINE)
    story.copy(2, 0, LINE)
    story.receive(1, 2, queue=LINE, group="a")
    assert "went out at" in story.findings("fifo")[0]


def test_a_batch_of_one_group_and_other_groups_are_in_order(story: Story) -> None:
    story.send(0, message(1, group="a"), message(2, group="a"), message(3, group="b"), queue=LINE)
    for number in (1, 2, 3):
        story.copy(number, 0, LINE)
    story.receive(1, 1, 2, queue=LINE, group="a")
    story.receive(2, 3, queue=LINE, group="b")
    assert story.findings("fifo") == []


def test_a_dead_message_is_out_of_the_way(story: Story) -> None:
    story.send(0, message(1, group="a"), message(2, group="a"), queue=LINE)
    story.copy(1, 0, LINE, dead_ms=T0 + 500)
    story.copy(2, 0, LINE)
    story.receive(1, 2, queue=LINE, group="a")
    assert story.findings("fifo") == []


def test_nothing_passes_what_is_in_flight(story: Story) -> None:
    story.send(0, message(1, group="a"), message(2, group="a"), queue=LINE)
    story.copy(1, 0, LINE, end="deleted", ended_ms=T0 + 100_000)
    story.copy(2, 0, LINE)
    story.receive(1, 1, queue=LINE, group="a")
    story.receive(5, 2, queue=LINE, group="a")
    assert any("was with call" in text for text in story.findings("fifo"))


def test_sequences_follow_the_sends(story: Story) -> None:
    story.send(0, message(2, group="a"), queue=LINE)
    story.send(1, message(1, group="a"), queue=LINE)
    assert "#1 of a got sequence 1, #2 of a before it 2" in story.findings("fifo")[0]


def test_on_several_shards_the_sequences_of_a_group_follow_the_sends(story: Story) -> None:
    first, second = 1 << NUMBER_BITS | 1, 1 << NUMBER_BITS | 2  # on the second shard
    for at, (sequence, group) in enumerate([(first, "a"), (5, "b"), (second, "a"), (6, "b")]):
        story.send(at, message(sequence, group=group), queue=LINE)
    assert story.findings("fifo") == []
    story.send(9, message(7, group="a"), queue=LINE)
    assert f"of a got sequence 7, #{first} of a before it {first}" in story.findings("fifo")[0]


@pytest.mark.parametrize("ahead_s", [2.0, -2.0])
@pytest.mark.parametrize(("deleted_at", "in_order"), [(6, True), (8, False)])
def test_a_group_that_moved_goes_out_in_order_too(
    story: Story, deleted_at: int, in_order: bool, ahead_s: float
) -> None:
    """By what was committed first, whatever the clock of the shard that it came from says."""
    wide = replace(LINE, shards=(0, 4))
    later = 1 << NUMBER_BITS | 1
    story.send(0, message(2, group="a"), queue=LINE)
    story.send(1, message(later, group="a"), queue=LINE)
    ended_ms = T0 + 2_000 + int(ahead_s * 1000)
    story.copy(2, 0, LINE, end="deleted", ended_ms=ended_ms, gone_at=deleted_at)
    there = story.copy(later, 1, LINE, sequence=1)
    there.shard = 4
    story.ledger.book(4).copies[1] = story.book.copies.pop(1)
    (held,) = story.receive(2, later, queue=LINE, group="a", shard=4)
    there.leases.append(LeaseSpan(1, held.began_ms, held.deadline_ms, place=7))
    evidence = Evidence(story.history, story.ledger, [ORDERS, STRICT, wide])
    findings = [text for text, _ in CHECKERS["fifo"](evidence)]
    assert len(findings) == (not in_order)
    assert in_order or "before #2 (sequence 2)" in findings[0]


# --- delay and keys ---------------------------------------------------------------------------


def test_no_message_before_its_delay_is_over(story: Story) -> None:
    story.send(0, message(1, delay_ms=5_000))
    story.copy(1, 0)
    story.receive(4, 1)
    assert "with a delay of 5000" in story.findings("delay")[0]


def test_no_message_before_the_delay_of_its_nack_is_over(story: Story) -> None:
    story.send(0, message(1))
    story.copy(1, 0)
    (held,) = story.receive(1, 1)
    story.use(2, "nack", held, value_ms=10_000)
    story.receive(8, 1, count=2)
    assert "was nacked" in story.findings("delay")[0]


def test_a_key_makes_one_message_in_its_window(story: Story) -> None:
    story.send(0, message(1, dedup_id="key"))
    story.send(2, message(2, dedup_id="key"))
    story.send(9, message(3, dedup_id="key"))
    story.copy(1, 0)
    story.copy(2, 2)
    story.copy(3, 9)
    assert story.findings("delay") == [
        f"orders: key key made message #1 at {T0} and #2 at {T0 + 2000}, within its window"
    ]


def test_a_purge_forgets_keys(story: Story) -> None:
    story.send(0, message(1, dedup_id="key"))
    story.send(2, message(2, dedup_id="key"))
    story.copy(1, 0)
    story.copy(2, 2)
    story.book.purge_ends_ms[ORDERS.number] = [T0 + 3_000]
    assert len(story.findings("delay")) == 1
    story.book.purge_ends_ms[ORDERS.number].append(T0 + 1_000)
    assert story.findings("delay") == []


def test_a_duplicate_is_one(story: Story) -> None:
    story.send(0, message(1, dedup_id="key"))
    story.send(2, message(2, dedup_id="key"), duplicate_of=1)
    story.copy(1, 0)
    assert story.findings("delay") == []
    story.send(3, message(3, dedup_id="another"), duplicate_of=1)
    assert "was called a duplicate" in story.findings("delay")[0]


# --- conservation -----------------------------------------------------------------------------


def test_a_message_lives_in_one_place(story: Story) -> None:
    story.send(0, message(1))
    story.copy(1, 0, owed=(1, 1, STRICT.number, 20))
    assert story.findings("conservation") == []
    story.copy(1, 1, STRICT, sequence=2, source=(0, 1))
    assert "lives 2 times" in story.findings("conservation")[0]


def test_what_is_on_its_way_and_has_arrived_counts_once(story: Story) -> None:
    story.send(0, message(1))
    first = story.copy(1, 0, owed=(1, 1, STRICT.number, 20))
    story.book.owed[1, 1] = first
    there = story.ledger.book(1)
    there.arrived[0, 1] = 30
    there.copies[9] = Copy(1, 9, STRICT.number, 1, T0, T0, T0 // 1000 + 10**6, (0, 1))
    assert story.findings("conservation") == []


def test_nothing_arrives_that_was_not_owed(story: Story) -> None:
    story.ledger.book(1).arrived[0, 1] = 30
    assert "was never owed" in story.findings("conservation")[0]


def test_channels_have_no_gaps(story: Story) -> None:
    story.book.owed[1, 2] = story.copy(1, 0)
    story.send(0, message(1))
    story.ledger.book(1).arrived[0, 2] = 30
    assert "arrived at shard 1 after 0" in story.findings("conservation")[0]


def test_what_the_books_cannot_explain_is_told(story: Story) -> None:
    story.book.anomalies.append("message 5 is deleted, but it never was")
    assert story.findings("conservation") == ["shard 0: message 5 is deleted, but it never was"]
