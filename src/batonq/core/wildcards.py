"""Patterns with `*` (any characters, also none) and `?` (one character), matched without backtracking.

All patterns are matched together, as one automaton whose states are the bits of an integer: bit i of a pattern is set
when its first i letters have been read. A character of the text moves all states at once. So the work for one text is
its length times the number of machine words that the patterns fill, whatever the patterns say.
"""

from __future__ import annotations

from collections.abc import Iterable


class Wildcards:
    """Some patterns, compiled. A pattern without `*` and `?` matches itself."""

    __slots__ = ("_any_letter", "_begin", "_end", "_letters", "_stars")

    def __init__(self, patterns: Iterable[str]) -> None:
        self._begin = self._end = 0
        self._stars = 0  # states that any character leaves as they are
        self._any_letter = 0  # states that any character moves on
        self._letters: dict[str, int] = {}  # states that this character moves on
        place = 0
        for pattern in patterns:
            self._begin |= 1 << place
            for letter in pattern:
                if letter == "*":
                    self._stars |= 1 << place
                    continue
                if letter == "?":
                    self._any_letter |= 1 << place
                else:
                    self._letters[letter] = self._letters.get(letter, 0) | 1 << place
                place += 1
            self._end |= 1 << place
            place += 1
        for letter in self._letters:
            self._letters[letter] |= self._any_letter

    def match(self, text: str) -> bool:
        """Whether one of the patterns matches the whole text."""
        letters, any_letter, stars = self._letters, self._any_letter, self._stars
        done = self._end & stars  # patterns that end with a star take whatever follows
        states = self._begin
        for letter in text:
            if not states or states & done:
                break
            states = (states & letters.get(letter, any_letter)) << 1 | states & stars
        else:
            return bool(states & self._end)
        return bool(states)


def is_wildcard(text: str) -> bool:
    """Whether a text has a star or a question mark, and so may mean more than itself."""
    return "*" in text or "?" in text
