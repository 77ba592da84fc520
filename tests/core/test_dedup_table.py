"""The deduplication table: against a dictionary, its size, and that it forgets what is over."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from batonq.core.ids import key_hash
from batonq.core.shard.dedup import FOREVER_S, DedupTable

steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 8), st.sampled_from((5, 60, 300, 5_000))),
        st.tuples(st.just("live"), st.integers(1, 8), st.sampled_from((5, 60))),
        st.tuples(st.just("end"), st.integers(1, 8), st.just(0)),
        st.tuples(st.just("pass"), st.sampled_from((0, 1, 5, 100)), st.just(0)),
        st.tuples(st.just("reload"), st.just(0), st.just(0)),
    ),
    max_size=80,
)


@given(steps)
def test_it_knows_what_a_dictionary_knows(script: list[tuple[str, int, int]]) -> None:
    table = DedupTable()
    model: dict[int, tuple[int, int]] = {}  # key → sequence, expiry
    windows: dict[int, int] = {}  # living keys → the end of their window
    now = 1_000
    for sequence, (deed, value, window) in enumerate(script, start=1):
        if deed == "pass":
            now += value
        elif deed == "reload":
            other = DedupTable()
            other.load(table.save())
            assert other.entries() == table.entries()
            table = other
        elif deed == "end":
            if value in windows:
                model[value] = (model[value][0], windows.pop(value))
                table.end_life(value, *model[value])
        elif table.get(value, now) is None:  # the shard makes no entry while there is one
            expires = FOREVER_S if deed == "live" else now + window
            if deed == "live":
                windows[value] = now + window
            table.put(value, sequence, expires, sequence * 0x01234567 & 0xFFFFFFFF, now)
            model[value] = (sequence, expires)
        table.validate()
        for key in range(1, 9):
            known = table.get(key, now)
            expected = model.get(key)
            if expected is None or expected[1] <= now:
                assert known is None
            else:
                assert known is not None
                mark = expected[0] * 0x01234567 & 0xFFFFFFFF
                assert (known.sequence, known.expires_s, known.fingerprint) == (*expected, mark)


def bytes_an_entry(table: DedupTable) -> float:
    arrays = (table._key, table._message, table._mark, table._expires)
    return (sum(len(column) * column.itemsize for column in arrays) + 4 * table._index.places) / len(table)


def test_an_entry_takes_at_most_32_bytes() -> None:
    """While the table grows, just before and just after its index does, and when old entries go as new ones come."""
    table = DedupTable()
    worst = 0.0
    for second in range(900):
        for number in range(second * 50, second * 50 + 50):
            table.put(key_hash(number), number, second + 300, number & 0xFFFF, second)
            if number > 1_000:
                worst = max(worst, bytes_an_entry(table))
    assert 300 * 50 <= len(table) <= 301 * 50
    assert worst <= 32


def test_sequences_and_fingerprints_keep_all_their_bits() -> None:
    table = DedupTable()
    table.put(7, (1 << 48) - 1, 100, 0xFFFF, 0)
    known = table.get(7, 0)
    assert known is not None
    assert (known.sequence, known.fingerprint) == ((1 << 48) - 1, 0xFFFF)


def test_entries_that_are_over_go_although_an_older_one_stays_long() -> None:
    table = DedupTable()
    table.put(key_hash("long"), 1, 1_209_600, 0, 0)
    table.put(key_hash("lives"), 2, FOREVER_S, 0, 0)
    for second in range(2_000):
        table.put(key_hash(second), second, second + 300, 0, second)
    assert len(table) <= 305
    assert table.get(key_hash("long"), 2_000) is not None
    assert table.get(key_hash("lives"), 2_000) is not None


def test_numbers_start_again_before_they_run_out() -> None:
    table = DedupTable()
    table.put(5, 1, 100, 0, 0)
    table._base = 0xFFFF0000 - 2
    table._index.rebuild([(5, table._base)])
    for key in range(10, 20):
        table.put(key, key, 100, 0, 0)
    table.validate()
    assert [entry[0] for entry in table.entries()] == [5, *range(10, 20)]
