"""The receiving end of a channel: the entries of one source shard that have arrived, and the verdicts on the newest
ones.

A source asks again about entries whose answer it did not get, at most a window of them. The end therefore stores the
verdicts on the newest VERDICTS_KEPT entries, one byte each, which is far more than a window may have. The verdict on an
older entry is unknown: it counts neither as accepted nor as refused.
"""

from __future__ import annotations

from batonq.core.limits import VERDICTS_KEPT
from batonq.core.records import Reason

_UNKNOWN = 0
_OLD_REFUSALS_MAX = 65_536  # older releases kept this many refusals, for all sources together


class Incoming:
    __slots__ = ("_verdicts", "cursor", "first")

    def __init__(self, cursor: int = 0) -> None:
        self.cursor = cursor  # number of the last entry that arrived
        self.first = cursor + 1  # verdicts are known from this entry on
        self._verdicts = bytearray(VERDICTS_KEPT)  # indexed by entry number modulo VERDICTS_KEPT

    def note(self, number: int, verdict: int) -> None:
        """Store the verdict on an entry that has arrived."""
        if number != self.cursor + 1:
            self.first = number
        elif number - self.first >= VERDICTS_KEPT:
            self.first = number - VERDICTS_KEPT + 1
        self.cursor = number
        self._verdicts[number % VERDICTS_KEPT] = verdict

    def verdict(self, number: int, kept_max: int = VERDICTS_KEPT) -> int:
        """The verdict on an entry among the last `kept_max`; 0 if it is unknown."""
        if not max(self.first, self.cursor - kept_max + 1) <= number <= self.cursor:
            return _UNKNOWN
        return self._verdicts[number % VERDICTS_KEPT]

    def refusals(self) -> list[tuple[int, int]]:
        """(number, verdict) of the entries known to be refused, in order."""
        verdicts = ((number, self.verdict(number)) for number in range(self.first, self.cursor + 1))
        return [(number, verdict) for number, verdict in verdicts if verdict != Reason.ACCEPTED]

    def load(self, first: int, refusals: dict[int, int]) -> None:
        """Restore the verdicts from entry `first` on: the entries in `refusals` were refused, all others accepted."""
        self.first = max(first, self.cursor - VERDICTS_KEPT + 1, 1)
        for number in range(self.first, self.cursor + 1):
            self._verdicts[number % VERDICTS_KEPT] = refusals.get(number, Reason.ACCEPTED)


def load_all(
    cursors: list[list[int]], refused: list[list[int]], known_from: list[list[int]] | None
) -> dict[int, Incoming]:
    """Restore the channel ends from (source, last entry number), (source, number, verdict) and (source, first).

    Older releases did not store from which entry on they knew every refusal. If such a release had reached its limit of
    refusals, the refusals of a source are complete only from its oldest stored one on.
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
