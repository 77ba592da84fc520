"""Leases whose answer never left: nobody got the message, so it is no receive."""

from __future__ import annotations

from batonq.core.records import ReturnedFlag, Type
from tests.core.rig import Bench, claim
from tests.support import ask


def make_bench(**policy: object) -> Bench:
    bench = Bench()
    bench.queue(2)
    bench.queue(1, **policy)
    return bench


def give_back(bench: Bench, *leases: object) -> None:
    bench.shard.give_back(1, [claim(lease) for lease in leases], bench.now)  # type: ignore[arg-type]


def test_it_charges_no_receive_and_the_next_lease_has_another_epoch() -> None:
    bench = make_bench()
    bench.send(1, "a")
    (first,) = bench.receive(1)
    give_back(bench, first)
    (row,) = [row for row in bench.check() if row.type is Type.RETURNED]
    assert row.flags == ReturnedFlag.UNCHARGED
    assert bench.messages(1)[0].first_received_ms == 0
    bench.later(5)
    (second,) = bench.receive(1)
    assert (second.receive_count, second.epoch, second.first_received_ms) == (1, 2, bench.now)
    assert bench.delete(1, first, strict=True)[0].code == "lease_lost"
    bench.check()


def test_it_never_makes_a_dead_letter() -> None:
    for on_failure in (False, True):
        bench = make_bench(max_receives=2, dead_letter_queue=2, dead_letter_on_failure=on_failure)
        bench.send(1, "a")
        for _ in range(5):
            (lease,) = bench.receive(1)
            give_back(bench, lease)
            bench.check()
        assert bench.waiting(2) == []
        for _ in range(2):
            (lease,) = bench.receive(1)
            ask.change_visibility(bench.shard, 1, [(claim(lease), 0)], bench.now)
        assert bench.receive(1) == []
        assert bench.waiting(2) == ["a"]
        bench.check()


def test_a_lease_that_is_over_is_not_given_back() -> None:
    bench = make_bench()
    bench.send(1, "a")
    (lease,) = bench.receive(1, visibility_ms=1_000)
    bench.later(1_000)
    give_back(bench, lease)
    assert bench.receive(1)[0].receive_count == 2


def test_what_was_not_charged_survives_restarts_and_a_dropped_front() -> None:
    bench = make_bench(max_receives=1, dead_letter_queue=2)
    bench.send(1, "a", "b")
    give_back(bench, *bench.receive(1))
    bench.check()
    bench.restart(bench.loaded())
    bench.truncate(bench.next_frame)
    bench.restart(bench.replayed())
    leases = bench.receive(1)
    assert [(lease.epoch, lease.receive_count) for lease in leases] == [(2, 1), (2, 1)]
    give_back(bench, leases[0])
    bench.check()
    bench.truncate(bench.next_frame - 1)
    bench.check()
    (again,) = bench.receive(1)
    assert (again.epoch, again.receive_count) == (3, 1)


def test_given_back_messages_come_before_those_that_were_never_leased() -> None:
    bench = make_bench()
    bench.send(1, "a", "b", "c")
    give_back(bench, *bench.receive(1, 2))
    assert sorted(bench.bodies(bench.receive(1, 3))) == ["a", "b", "c"]
    bench.check()
