"""The lifecycle's tables say what happens: no record leads elsewhere, and every arrow that is drawn can be walked."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

import pytest

from batonq.core.commands import Claim
from batonq.core.records import State, Type
from batonq.core.shard.lifecycle import RECEIPTS, TRANSITIONS, Rule, Standing
from batonq.core.shard.machine import Shard
from tests.core.rig import Bench, SealedFrame, claim
from tests.core.test_dead_letters import redrive
from tests.golden.runner import parse, scenarios
from tests.golden.script import Scenario
from tests.support import ask

Arrow = tuple[State, Type, State]
NO_END = (
    Type.EPOCH,
    Type.POLICY_SET,
    Type.SUBSCRIPTION_SET,
    Type.JOB_SET,
    Type.REQUESTED,
    Type.QUEUE_CLOSED,
    Type.CARRIED,
    Type.BASE,
)


def states(shard: Shard) -> dict[int, State]:
    return {shard.columns.sequence[slot]: State(shard.columns.state[slot]) for slot in shard.live_slots()}


def arrows(number: int, frames: dict[int, SealedFrame]) -> Iterator[Arrow]:
    """What each record of a log does to messages, folded one by one. The end of a delay is no record."""
    shard = Shard(number)
    for frame in (frames[key] for key in sorted(frames)):
        for index, row in enumerate(frame.rows()):
            shard.messages.end_delays(row.time)
            before = states(shard)
            words: array[int] = frame.words[index * 8 : index * 8 + 8]
            shard.apply_frame(frame.number, words, frame.variable)
            after = states(shard)
            for sequence in {**before, **after}:
                start, end = before.get(sequence, State.FREE), after.get(sequence, State.DELETED)
                named = row.sequence == sequence and row.type not in NO_END and row.type is not Type.QUEUE_PURGED
                if start is not end or named:
                    yield start, row.type, end


def from_scenarios() -> Iterator[Arrow]:
    for path in scenarios():
        scenario = Scenario()
        for block in parse(path.read_text()):
            for command in block.commands:
                list(scenario.run(command))
        for number, rig in scenario.rigs.items():
            if 1 in rig.frames:  # else its front was dropped
                yield from arrows(number, rig.frames)


def in_flight_when_it_expires() -> Iterator[Arrow]:
    """Walks that no scenario takes: to the dead letters out of a lease, and a purge of what is dead or delayed."""
    bench = Bench()
    bench.queue(1, retention_ms=60_000, expiry_to_dead_letter=True, dead_letter_queue=2)
    bench.queue(2, max_receives=1, dead_letter_on_failure=True)
    bench.send(1, "a")
    bench.receive(1, visibility_ms=3_600_000)
    bench.later(60_000)
    bench.receive(2)
    bench.later(30_000)
    bench.send(2, "b", delay_ms=1_000)
    bench.shard.purge(2, bench.now)
    bench.check()
    yield from arrows(0, bench.frames)


def refused_when_dead() -> Iterator[Arrow]:
    bench = Bench()
    bench.queue(1, max_receives=1, dead_letter_on_failure=True)
    bench.send(1, "a")
    bench.receive(1)
    bench.later(30_000)
    redrive(bench, 1, 99)
    bench.check()
    yield from arrows(0, bench.frames)


def test_the_table_of_transitions_is_what_happens() -> None:
    walked = {*from_scenarios(), *in_flight_when_it_expires(), *refused_when_dead()}
    drawn = {(start, record, end) for (start, record), ends in TRANSITIONS.items() for end in ends}
    assert walked - drawn == set(), "a record leads where no arrow does"
    assert drawn - walked == set(), "an arrow is drawn that nothing walks"


# --- receipts ------------------------------------------------------------------------------------

RULES = {Rule.STANDARD: {}, Rule.FIFO: {"fifo": True}, Rule.STRICT: {"strict_receipts": True}}


def bring_about(bench: Bench, standing: Standing) -> Claim:
    """A receipt of queue 1 that stands to its message as asked."""
    bench.send(1, "m", group="g")
    (lease,) = bench.receive(1)
    if standing is Standing.GONE:
        bench.delete(1, lease)
    elif standing is not Standing.HELD:
        bench.later(30_000)
        if standing is Standing.SUPERSEDED:
            bench.receive(1, holder="another")
    return claim(lease)


ACTS: dict[str, Callable[[Bench, Claim], object]] = {
    "delete": lambda bench, receipt: ask.delete(bench.shard, 1, [receipt], bench.now)[0],
    "change": lambda bench, receipt: ask.change_visibility(bench.shard, 1, [(receipt, 60_000)], bench.now)[0],
    "nack": lambda bench, receipt: ask.nack(bench.shard, 1, [ask.Nack(receipt)], bench.now)[0],
}


@pytest.mark.parametrize(
    ("act", "rule", "standing"), RECEIPTS, ids=[f"{act}-{rule.value}-{how.value}" for act, rule, how in RECEIPTS]
)
def test_every_row_of_the_table_of_receipts(act: str, rule: Rule, standing: Standing) -> None:
    bench = Bench()
    bench.queue(1, **RULES[rule])
    receipt = bring_about(bench, standing)
    assert bench.shard.standing(1, receipt, bench.now) is standing
    before = bench.messages(1)
    bench.check()
    verdict = RECEIPTS[act, rule, standing]
    result = ACTS[act](bench, receipt)
    rows = bench.check()
    assert type(result) is (verdict.error or type(None))
    assert bench.shard.counters(1).stale_deletes == verdict.stale
    if not verdict.act:
        assert (bench.messages(1), rows) == (before, []), "what does not act leaves no trace"
        return
    (row,) = rows
    assert row.type is {"delete": Type.DELETED, "change": Type.EXTENDED, "nack": Type.RETURNED}[act]
    assert row.reason == verdict.reason


def test_the_table_of_receipts_is_whole() -> None:
    assert set(RECEIPTS) == {(act, rule, standing) for act in ACTS for rule in Rule for standing in Standing}
