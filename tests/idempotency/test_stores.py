"""What every store does alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from batonq.errors import InvalidInput
from batonq.idempotency import ClaimState, MemoryStore, Place, RedisStore, SqliteStore, Store
from batonq.idempotency.store import checked_key

LEASE = 60.0
SHORT = 0.05
PATIENCE_S = 300


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_key_is_claimed_once_then_done(store: Store) -> None:
    assert store.claim("k", "a", LEASE).state is ClaimState.TAKEN
    busy = store.claim("k", "b", LEASE)
    assert busy.state is ClaimState.BUSY
    assert 0 < busy.retry_after <= LEASE
    assert store.complete("k", "a", LEASE, b"[1]")
    assert store.claim("k", "b", LEASE) == (ClaimState.DONE, b"[1]", 0.0)
    assert store.claim("k", "a", LEASE).state is ClaimState.DONE
    assert store.claim("other", "b", LEASE).state is ClaimState.TAKEN


def test_a_claim_and_a_mark_may_be_repeated_by_their_owner(store: Store) -> None:
    assert store.claim("k", "a", LEASE).state is ClaimState.TAKEN
    assert store.claim("k", "a", LEASE).state is ClaimState.TAKEN
    assert store.complete("k", "a", LEASE, None)
    assert store.complete("k", "a", LEASE, None)
    assert store.claim("k", "b", LEASE) == (ClaimState.DONE, None, 0.0)


def test_a_released_claim_is_free_at_once(store: Store) -> None:
    store.claim("k", "a", LEASE)
    assert not store.release("k", "b")
    assert store.release("k", "a")
    assert not store.release("k", "a")
    assert store.claim("k", "b", LEASE).state is ClaimState.TAKEN


def test_what_is_done_cannot_be_released_or_extended(store: Store) -> None:
    store.claim("k", "a", LEASE)
    store.complete("k", "a", LEASE, b"1")
    assert not store.release("k", "a")
    assert not store.extend("k", "a", LEASE)
    assert store.claim("k", "b", LEASE).result == b"1"


def test_a_lease_that_is_over_is_taken_over_and_the_first_owner_cannot_mark_it(store: Store) -> None:
    store.claim("k", "dead", SHORT)
    until(lambda: store.claim("k", "b", LEASE).state is ClaimState.TAKEN)
    assert not store.extend("k", "dead", LEASE)
    assert not store.complete("k", "dead", LEASE, b"0")
    assert not store.release("k", "dead")
    assert store.complete("k", "b", LEASE, b"1")
    assert store.claim("k", "c", LEASE).result == b"1"


def test_an_extended_lease_lasts(store: Store) -> None:
    store.claim("k", "a", LEASE / 10)
    assert store.extend("k", "a", LEASE)
    assert store.claim("k", "b", LEASE).retry_after > LEASE / 2


def test_a_late_mark_counts_when_nobody_has_taken_over(store: Store) -> None:
    store.claim("k", "a", SHORT)
    store.claim("sooner", "a", SHORT / 5)
    until(lambda: store.claim("sooner", "b", LEASE).state is ClaimState.TAKEN)
    assert store.complete("k", "a", LEASE, None)
    assert store.claim("k", "b", LEASE).state is ClaimState.DONE


def test_what_is_done_is_forgotten_after_its_time_to_live(store: Store) -> None:
    store.claim("k", "a", LEASE)
    store.complete("k", "a", SHORT, b"1")
    until(lambda: store.claim("k", "b", LEASE).state is ClaimState.TAKEN)
    assert store.complete("k", "b", LEASE, None)
    assert store.claim("k", "c", LEASE).result is None


def test_prune_removes_what_is_over_and_nothing_else(store: Store) -> None:
    store.claim("held", "a", LEASE)
    store.claim("done", "a", LEASE)
    store.complete("done", "a", LEASE, None)
    for number in range(3):
        store.claim(f"over-{number}", "a", SHORT)
    if isinstance(store, RedisStore):
        assert store.prune() == 0
    else:
        pruned: list[int] = []

        def three_are_gone() -> bool:
            pruned.append(store.prune())
            return sum(pruned) == 3

        until(three_are_gone)
    assert store.claim("held", "b", LEASE).state is ClaimState.BUSY
    assert store.claim("done", "b", LEASE).state is ClaimState.DONE


def test_forget_makes_a_key_new(store: Store) -> None:
    store.claim("k", "a", LEASE)
    store.complete("k", "a", LEASE, None)
    assert store.forget("k")
    assert not store.forget("k")
    assert store.claim("k", "b", LEASE).state is ClaimState.TAKEN


def test_of_many_that_claim_at_once_one_gets_it(store: Store) -> None:
    start = threading.Barrier(8)

    def race(number: int) -> list[ClaimState]:
        start.wait()
        return [store.claim(f"k{key}", f"owner-{number}", LEASE).state for key in range(20)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(race, range(8)))
    for states in zip(*answers, strict=True):
        assert sorted(state.value for state in states) == ["busy"] * 7 + ["taken"]


def test_turns_go_one_by_one(store: Store) -> None:
    assert store.begin_turn("k", 2, "a", LEASE, 1)[:2] == (Place.GAP, 0)
    assert store.begin_turn("k", 1, "a", LEASE, 1)[:2] == (Place.NEXT, 0)
    busy = store.begin_turn("k", 1, "b", LEASE, 1)
    assert busy.place is Place.BUSY
    assert 0 < busy.retry_after <= LEASE
    assert not store.end_turn("k", 1, "b")
    assert store.end_turn("k", 1, "a")
    assert not store.end_turn("k", 1, "a")
    assert store.begin_turn("k", 1, "b", LEASE, 1)[:2] == (Place.SEEN, 1)
    assert store.begin_turn("k", 2, "b", LEASE, 1)[:2] == (Place.NEXT, 1)
    assert store.give_up_turn("k", "b")
    assert store.begin_turn("k", 2, "c", LEASE, 1)[:2] == (Place.NEXT, 1)
    assert store.begin_turn("another", 100, "c", LEASE, 100)[:2] == (Place.NEXT, 99)


def test_a_turn_of_a_dead_holder_is_taken_over(store: Store) -> None:
    assert store.begin_turn("k", 1, "dead", SHORT, 1).place is Place.NEXT
    until(lambda: store.begin_turn("k", 1, "b", LEASE, 1).place is Place.NEXT)
    assert not store.extend_turn("k", "dead", LEASE)
    assert not store.end_turn("k", 1, "dead")
    assert store.extend_turn("k", "b", LEASE)
    assert store.end_turn("k", 1, "b")


def test_claims_in_sqlite_outlive_the_process_that_made_them(tmp_path: object) -> None:
    now = [1000.0]
    path = f"{tmp_path}/claims.db"
    first = SqliteStore(path, clock=lambda: now[0])
    first.claim("held", "a", LEASE)
    first.claim("done", "a", LEASE)
    first.complete("done", "a", 2 * LEASE, b"1")
    first.close()
    second = SqliteStore(path, clock=lambda: now[0])
    assert second.claim("held", "b", LEASE) == (ClaimState.BUSY, None, LEASE)
    now[0] += LEASE
    assert second.claim("held", "b", LEASE).state is ClaimState.TAKEN
    assert second.claim("done", "b", LEASE).result == b"1"
    second.close()


def test_memory_does_not_grow_with_keys_that_are_over() -> None:
    now = [0.0]
    store = MemoryStore(clock=lambda: now[0])
    for number in range(10_000):
        now[0] = float(number)
        store.claim(f"k{number}", "a", 1.0)
    assert len(store._rows) < 3000


@pytest.mark.parametrize("key", ["", None, 7, "x" * 1025, "a\0b"])
def test_a_key_that_cannot_be_one_is_refused(key: object) -> None:
    with pytest.raises(InvalidInput, match="idempotency key"):
        checked_key(key)
