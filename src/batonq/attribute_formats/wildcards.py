"""Patterns with `*` (any number of characters) and `?` (one character), matched without backtracking.

All patterns are matched together, by one automaton whose states are the bits of an integer: bit i of a pattern is set
when its first i letters have been read. Each character of the text moves all states at once. The work for a text is
therefore its length times the number of machine words that the patterns fill, whatever the patterns are.
"""

from __future__ import annotations

from collections.abc import Iterable


class Wildcards:
    """Compiled patterns. A pattern without `*` and `?` matches only itself."""

    __slots__ = ("_any_letter", "_begin", "_end", "_letters", "_stars")

    def __init__(self, patterns: Iterable[str]) -> None:
        self._begin = self._end = 0
        self._stars = 0  # states that stay on any character
        self._any_letter = 0  # states that advance on any character
        self._letters: dict[str, int] = {}  # character → states that advance on it
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
        done = self._end & stars  # patterns that end with a star match whatever follows
        states = self._begin
        for letter in text:
            if not states or states & done:
                break
            states = (states & letters.get(letter, any_letter)) << 1 | states & stars
        else:
            return bool(states & self._end)
        return bool(states)


def is_wildcard(text: str) -> bool:
    """Whether a text contains a star or a question mark, and so may match more than itself."""
    return "*" in text or "?" in text
