"""Stores with a settable clock against a naive model: whatever is called, they answer alike."""

from __future__ import annotations

from contextlib import closing, suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from batonq.idempotency import MemoryStore, SqliteStore, Store

KEYS = st.sampled_from(["a", "b"])
OWNERS = st.sampled_from(["x", "y", "z"])
SECONDS = st.sampled_from([1.0, 5.0, 30.0])
CALLS = st.one_of(
    st.tuples(st.just("claim"), KEYS, OWNERS, SECONDS),
    st.tuples(st.just("extend"), KEYS, OWNERS, SECONDS),
    st.tuples(st.just("complete"), KEYS, OWNERS, SECONDS, st.sampled_from([None, b"1", b"2"])),
    st.tuples(st.just("release"), KEYS, OWNERS),
    st.tuples(st.just("forget"), KEYS),
    st.tuples(st.just("begin_turn"), KEYS, st.integers(1, 4), OWNERS, SECONDS, st.just(1)),
    st.tuples(st.just("extend_turn"), KEYS, OWNERS, SECONDS),
    st.tuples(st.just("end_turn"), KEYS, st.integers(1, 4), OWNERS),
    st.tuples(st.just("give_up_turn"), KEYS, OWNERS),
    st.tuples(st.just("pass"), SECONDS),
)


class Claims:
    """The rules of `claim`, `complete` and the rest, told as plainly as possible."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[str, bool, float, bytes | None]] = {}

    def owner_may(self, key: str, owner: str) -> bool:
        return key in self.rows and self.rows[key][0] == owner and not self.rows[key][1]

    def taken(self, key: str, owner: str, lease: float, now: float) -> bool:
        row = self.rows.get(key)
        if row is not None and row[2] > now and not self.owner_may(key, owner):
            return False
        self.rows[key] = (owner, False, now + lease, None)
        return True


@settings(max_examples=100)
@given(st.lists(CALLS, max_size=60))
def test_memory_and_sqlite_answer_alike_and_one_owner_holds_a_key_at_a_time(calls: list[tuple[object, ...]]) -> None:
    now = [1000.0]
    stores: list[Store] = [MemoryStore(clock=lambda: now[0]), SqliteStore(":memory:", clock=lambda: now[0])]
    model = Claims()
    with closing(stores[0]), closing(stores[1]):
        for name, *arguments in calls:
            if name == "pass":
                now[0] += float(str(arguments[0]))
                continue
            answers = [getattr(store, str(name))(*arguments) for store in stores]
            assert answers[0] == answers[1], (name, arguments)
            check(model, str(name), arguments, answers[0], now[0])


def check(model: Claims, name: str, arguments: list[object], answer: object, now: float) -> None:
    key, owner = str(arguments[0]), str(arguments[1]) if len(arguments) > 1 else ""
    if name == "claim":
        state = answer[0].value  # type: ignore[index]
        assert (state == "taken") == model.taken(key, owner, float(str(arguments[2])), now)
        if state != "taken":
            assert (state == "done") == model.rows[key][1]
    elif name == "extend":
        assert answer == model.owner_may(key, owner)
        if answer:
            model.rows[key] = (owner, False, now + float(str(arguments[2])), None)
    elif name == "complete":
        assert answer == (key not in model.rows or model.rows[key][0] == owner)
        if answer:
            model.rows[key] = (owner, True, now + float(str(arguments[2])), None)
    elif name in ("release", "forget"):
        if name == "release":
            assert answer == model.owner_may(key, owner)
        if answer:
            with suppress(KeyError):
                del model.rows[key]
