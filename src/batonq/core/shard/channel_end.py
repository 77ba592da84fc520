"""The end of a channel: which entries of one source shard have arrived, and what became of the last ones.

A source asks again about entries whose answer it did not get, at most a window of them. So the verdicts on the newest
VERDICTS_KEPT entries are remembered, a byte each, far more than a window is allowed to have. Of an older entry nothing
is known: it counts neither as accepted nor as refused.
"""

from __future__ import annotations

from batonq.core.limits import VERDICTS_KEPT
from batonq.core.records import Reason

_UNKNOWN = 0
_OLD_REFUSALS_MAX = 65_536  # older releases kept so many refusals, of all sources together


class Incoming:
    __slots__ = ("_verdicts", "cursor", "first")

    def __init__(self, cursor: int = 0) -> None:
        self.cursor = cursor  # number of the last entry that arrived
        self.first = cursor + 1  # verdicts are known from this entry on
        self._verdicts = bytearray(VERDICTS_KEPT)  # by number, modulo as many as there are

    def note(self, number: int, verdict: int) -> None:
        """An entry has arrived."""
        if number != self.cursor + 1:
            self.first = number
        elif number - self.first >= VERDICTS_KEPT:
            self.first = number - VERDICTS_KEPT + 1
        self.cursor = number
        self._verdicts[number % VERDICTS_KEPT] = verdict

    def verdict(self, number: int, kept_max: int = VERDICTS_KEPT) -> int:
        """What became of an entry that is among the last `kept_max`; 0: that is not known."""
        if not max(self.first, self.cursor - kept_max + 1) <= number <= self.cursor:
            return _UNKNOWN
        return self._verdicts[number % VERDICTS_KEPT]

    def refusals(self) -> list[tuple[int, int]]:
        """(number, verdict) of the entries that were refused, as far as it is known, in order."""
        verdicts = ((number, self.verdict(number)) for number in range(self.first, self.cursor + 1))
        return [(number, verdict) for number, verdict in verdicts if verdict != Reason.ACCEPTED]

    def load(self, first: int, refusals: dict[int, int]) -> None:
        """What is known from entry `first` on: these were refused, the others accepted."""
        self.first = max(first, self.cursor - VERDICTS_KEPT + 1, 1)
        for number in range(self.first, self.cursor + 1):
            self._verdicts[number % VERDICTS_KEPT] = refusals.get(number, Reason.ACCEPTED)


def load_all(
    cursors: list[list[int]], refused: list[list[int]], known_from: list[list[int]] | None
) -> dict[int, Incoming]:
    """The channels' ends from (source, number of the last entry), (source, number, verdict) and (source, first).

    Older releases do not say from where on they knew every refusal. When they had as many as they kept, those of a
    source are known from the oldest that is left.
    """
    refusals: dict[int, dict[int, int]] = {}
    for source, number, verdict in refused:
        refusals.setdefault(source, {})[number] = verdict
    firsts = {pair[0]: pair[1] for pair in known_from or ()}
    found: dict[int, Incoming] = {}
    for source, cursor in cursors:
        own = refusals.get(source, {})
        if known_from is not None:
            first = firsts[source]
        elif len(refused) < _OLD_REFUSALS_MAX:
            first = 1
        else:
            first = min(own, default=cursor + 1)
        found[source] = Incoming(cursor)
        found[source].load(first, own)
    return found
