"""Bugs planted into topics: a test finds each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from batonq.core.records import Reason
from batonq.core.shard.commands.channels import ChannelCommands
from batonq.core.shard.commands.publish import Publishing
from batonq.core.shard.effects.message_records import MessageRecords
from batonq.core.shard.moves.fanout import FanOut
from batonq.core.shard.state.topics import TopicState
from sim.patches import Patches, patched
from tests.core import test_topics as topics
from tests.core.test_planted_bugs import fails


def a_group_does_not_wait() -> Patches:
    """A copy is sent although an earlier copy of its group waits."""
    copy_one = Publishing._copy_one

    def hasty(self: Publishing, queue: Any, subscription: Any, batch: Any, at: int, now: int) -> None:
        real, self.lines = self.lines, _NoLines()  # type: ignore[assignment]
        try:
            copy_one(self, queue, subscription, batch, at, now)
        finally:
            self.lines = real

    return [(Publishing, "_copy_one", hasty)]


class _NoLines:
    def find(self, *_: int) -> int:
        return 0xFFFFFFFF


def a_refused_copy_is_dropped() -> Patches:
    def drop(self: FanOut, queue: Any, slot: int, to: int, verdict: Reason, now: int) -> None:
        if verdict != Reason.ACCEPTED:
            self.drop(queue, slot, now)
            self.topics.states[queue.number].dropped -= 1

    return [(FanOut, "on_settled", drop)]


def a_repeated_entry_arrives_again() -> Patches:
    def again(self: ChannelCommands, arrival: Any) -> int:
        self._arrive(arrival, self.journal.last_time_ms)
        return int(Reason.ACCEPTED)

    return [(ChannelCommands, "_past_verdict", again)]


def a_snapshot_forgets_which_subscription_a_copy_is_for() -> Patches:
    def forgetful(self: TopicState, facts: dict[str, Any]) -> None:
        del self, facts

    return [(TopicState, "load", forgetful)]


def replay_does_not_note_what_waits() -> Patches:
    on_waiting = MessageRecords.on_waiting

    def careless(self: MessageRecords, queue: Any, slot: int, subscription: int, group: int, refused: bool) -> None:
        on_waiting(self, queue, slot, subscription, group, False)

    return [(MessageRecords, "on_waiting", careless)]


def whole_stage(check: Callable[[topics.Stage], None]) -> None:
    stage = topics.Stage()
    stage.topic()
    check(stage)


# bug → the test that finds it
FOCUSED: dict[Callable[[], Patches], Callable[[], None]] = {
    a_group_does_not_wait: topics.test_the_order_of_a_group_is_kept_in_a_local_queue_that_was_full,
    a_refused_copy_is_dropped: partial(whole_stage, topics.test_a_full_queue_delays_its_own_copies_only),
    a_repeated_entry_arrives_again: topics.test_an_answer_that_is_lost_leaves_one_copy,
    a_snapshot_forgets_which_subscription_a_copy_is_for: partial(
        topics.test_an_owner_that_takes_over_delivers_what_is_owed, "snapshot"
    ),
    replay_does_not_note_what_waits: partial(whole_stage, topics.test_a_full_queue_delays_its_own_copies_only),
}


@pytest.mark.parametrize("bug", FOCUSED, ids=lambda bug: bug.__name__)
def test_a_bug_planted_into_topics_is_found(bug: Callable[[], Patches]) -> None:
    assert not fails(FOCUSED[bug])
    with patched(bug()):
        assert fails(FOCUSED[bug])
