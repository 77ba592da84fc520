"""Patterns with `*` and `?`: they mean what a regular expression would, and no pattern makes a match expensive."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batonq.attribute_formats.wildcards import Wildcards, is_wildcard

texts = st.text("ab-", max_size=8)
patterns = st.lists(st.text("ab-*?", max_size=8), max_size=4)


def expected(pattern: str, text: str) -> bool:
    expression = "".join({"*": ".*", "?": "."}.get(letter, re.escape(letter)) for letter in pattern)
    return re.fullmatch(expression, text, re.DOTALL) is not None


@given(patterns, texts)
def test_patterns_mean_what_the_regular_expression_means(some: list[str], text: str) -> None:
    assert Wildcards(some).match(text) == any(expected(pattern, text) for pattern in some)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("hooks-*", "hooks-a", True),
        ("hooks-*", "hooks-", True),
        ("hooks-*", "hook", False),
        ("*", "", True),
        ("?", "", False),
        ("a.c", "abc", False),
        ("[ab]*", "a", False),
        ("*ü?", "xüy", True),
        ("a*", "a\nb", True),
    ],
)
def test_letters_stand_for_themselves(pattern: str, text: str, matches: bool) -> None:
    assert Wildcards([pattern]).match(text) is matches


def test_patterns_that_make_a_backtracking_matcher_run_for_ever() -> None:
    some = ["*a" * 39 + "*b", "?*" * 40, "*a?" * 26 + "*b", "*" + "a?" * 38 + "b"]
    assert Wildcards(some[:1]).match("a" * 80) is False
    assert Wildcards(some).match("a" * 80) is True
    assert Wildcards(some[:1]).match("a" * 79 + "b") is True


def test_what_is_a_pattern() -> None:
    assert is_wildcard("a*") and is_wildcard("?") and not is_wildcard("hooks-a.fifo")
