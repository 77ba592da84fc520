"""The open-addressed index against a dictionary."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.core.ids import key_hash
from batonq.core.shard.state import hash_index as hashindex
from batonq.core.shard.state.hash_index import EMPTY, HashIndex

# Few bits in the low half make long probe chains, which is where removal can go wrong.
keys = st.one_of(st.integers(1, 12), st.integers(1, 5).map(lambda high: high << 32 | 7), st.integers(1, (1 << 64) - 1))


@given(st.lists(st.tuples(st.sampled_from(("add", "remove", "move")), keys), max_size=80), st.integers(0, 1_000))
def test_it_finds_what_a_dictionary_finds(script: list[tuple[str, int]], base: int) -> None:
    column: array[int] = array("Q")
    index = HashIndex()
    model: dict[int, int] = {}
    for deed, key in script:
        if deed == "add" and key not in model:
            number = base + len(column)
            column.append(key)
            index.add(key, number, column, base)
            model[key] = number
        elif deed == "remove" and key in model:
            index.remove(key, model.pop(key), column, base)
        elif deed == "move" and key in model:
            number = base + len(column)
            column.append(key)
            index.move(key, model[key], number)
            model[key] = number
        for known in {key for _, key in script}:
            assert index.find(known, column, base) == model.get(known, EMPTY)
        assert index.live == len(model)
    index.rebuild(list(model.items()))
    assert {key: index.find(key, column, base) for key in model} == model


def test_at_most_three_of_four_places_are_taken() -> None:
    column = array("Q", range(1, 1_001))
    index = HashIndex()
    for number, key in enumerate(column):
        index.add(key, number, column)
        assert 4 * index.live <= 3 * index.places
    assert 4 * index.places <= 9 * len(column)


def test_growing_never_takes_more_than_about_a_thousand_entries_at_a_time() -> None:
    column = array("Q", [key_hash(number) for number in range(60_000)])
    index = HashIndex()
    for number, key in enumerate(column):
        index.add(key, number, column)
    assert max(segment.live for segment in index._directory) <= 2 * hashindex._SPLIT_AT
    assert 4 * index.places <= 9 * len(column)
    assert all(index.find(key, column) == number for number, key in enumerate(column))
    for number, key in enumerate(column):
        if number % 3:
            index.remove(key, number, column)
    assert all(index.find(key, column) == (EMPTY if number % 3 else number) for number, key in enumerate(column))


def test_keys_that_share_their_first_bits_are_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashindex, "_SPLIT_AT", 16)
    column = array("Q", range(1, 501))
    index = HashIndex()
    for number, key in enumerate(column):
        index.add(key, number, column)
    assert all(index.find(key, column) == number for number, key in enumerate(column))


@given(st.lists(st.integers(1, (1 << 64) - 1), unique=True, max_size=300))
def test_segments_split_without_losing_anything(many: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashindex, "_SPLIT_AT", 16)
        column = array("Q", many)
        index = HashIndex()
        for number, key in enumerate(column):
            index.add(key, number, column)
        assert [index.find(key, column) for key in column] == [*range(len(many))]
        rebuilt = HashIndex()
        rebuilt.rebuild([(key, number) for number, key in enumerate(column)])
        assert [rebuilt.find(key, column) for key in column] == [*range(len(many))]
