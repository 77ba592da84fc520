"""The deduplication table: against a dictionary, its size, and that it forgets what is over."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from batonq.core.ids import key_hash
from batonq.core.shard.state.dedup_table import FOREVER_S, DedupTable

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
                table.end_life(value, *model[value], now)
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
    rings = table._rings.values()
    arrays = [column for ring in rings for column in ring.columns]
    places = sum(ring.index.places for ring in rings)
    return (sum(len(column) * column.itemsize for column in arrays) + 4 * places) / len(table)


def test_an_entry_that_lives_with_its_message_takes_a_little_more() -> None:
    """While messages come and go in any order: the places of those that are gone are taken again."""
    table = DedupTable()
    random = Random(1)
    living: list[int] = []
    worst = 0.0
    for number in range(1, 40_001):
        second = number // 50
        table.put(key_hash(number), number, FOREVER_S, number & 0xFFFF, second)
        living.append(number)
        if len(living) > 5_000:
            at = random.randrange(len(living)) if number % 3 else 0
            gone = living.pop(at)
            table.end_life(key_hash(gone), gone, second, second)
        if number > 6_000:
            worst = max(worst, bytes_an_entry(table))
    table.validate()
    assert len(table) == 5_000
    assert worst <= 37


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
    (ring,) = table._rings.values()
    ring.base = 0xFFFF0000 - 2
    ring.index.rebuild([(5, ring.base)])
    for key in range(10, 20):
        table.put(key, key, 100, 0, 0)
    table.validate()
    assert [entry[0] for entry in table.entries()] == [5, *range(10, 20)]


def test_a_full_table_has_room_as_soon_as_anything_in_it_has_expired() -> None:
    """Whatever windows its entries have, and whichever came first."""
    windows = (14 * 86_400, 300, 60, 14 * 86_400, 86_400, 300, 5, 60)
    table = DedupTable()
    for number, window in enumerate(windows):
        table.put(key_hash(number), number, window, 0, 0)
    table.put(key_hash("lives"), 100, FOREVER_S, 0, 0)
    entries = len(table)
    ends = sorted(windows)
    for number, end in enumerate(ends):
        assert not table.full(end, entries)
        table.put(key_hash("new", number), 200 + number, FOREVER_S, 0, end)
        assert len(table) <= entries
        following = ends[number + 1] if number + 1 < len(ends) else FOREVER_S - 1
        if following > end:
            assert table.full(following - 1, entries)
        table.validate()


def test_what_older_releases_saved_is_read_whatever_its_order() -> None:
    table = DedupTable()
    order = (900, 30, FOREVER_S, 60, 900)
    for number, end in enumerate(order, start=1):
        table.put(key_hash(number), number, end, number << 16 | 7, 0)
    saved = dict(table.save())
    del saved["rings"]
    other = DedupTable()
    other.load(saved)
    other.validate()
    for number, end in enumerate(order, start=1):
        assert other.get(key_hash(number), 20) == (number, end, number << 16 | 7)
    assert not other.full(30, 5) and other.full(29, 5)
    other.end_life(key_hash(3), 3, 100, 20)
    other.put(key_hash("new"), 9, 90, 0, 60)
    assert [other.get(key_hash(number), 60) is not None for number in (1, 2, 3, 4, 5)] == [
        True,
        False,
        True,
        False,
        True,
    ]
    assert len(other) == 4


def test_entries_of_one_window_are_counted_beside_the_others() -> None:
    table = DedupTable()
    for number in range(5):
        table.put(key_hash(number), number, 120 + number, 0, number)
    table.put(key_hash("long"), 9, 86_400, 0, 0)
    assert (table.count(120), len(table)) == (5, 6)
    assert table.oldest(120) == key_hash(0)
    assert table.full(10, 1, 120) and not table.full(10, 2, 120)
    table.put(table.oldest(120), 0, 0, 0, 10)
    assert (table.count(120), table.oldest(120)) == (4, key_hash(1))
    table.put(key_hash(7), 7, 200, 0, 80)
    table.validate()
    assert (table.count(120), table.oldest(120)) == (5, key_hash(1))
