"""The rules of topics, schedules, reader groups and replays, over what the clients of a round were told.

`found` is always what a queue's retained history has, in order.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from sim.history import Violation

SHOWN = 5


class Copy(NamedTuple):
    """A published message in a queue."""

    number: int
    group: str = ""


class Commit(NamedTuple):
    """A commit of a reader group's member on one shard that was acknowledged."""

    shard: int
    epoch: int
    position: int  # of the group on this shard, as the answer says
    started_s: float
    ended_s: float


def check_copies(queue: str, acknowledged: Set[int], published: Set[int], found: Iterable[Copy]) -> list[Violation]:
    """Every acknowledged message is there once; one that was not acknowledged at most once; nothing else is there.

    `acknowledged` and `published` are the messages that match the queue's subscription.
    """
    counts = Counter(copy.number for copy in found)
    wrong = {
        "are missing": acknowledged - counts.keys(),
        "arrived more than once": {number for number, count in counts.items() if count > 1},
        "were not published for this queue": counts.keys() - published,
    }
    return [
        Violation("topic", f"{queue}: {len(numbers)} messages {what}, such as {sorted(numbers)[:SHOWN]}")
        for what, numbers in wrong.items()
        if numbers
    ]


def check_copies_in_order(queue: str, found: Iterable[Copy]) -> list[Violation]:
    """The copies of each group have rising numbers, as they were published."""
    last: dict[str, int] = defaultdict(int)
    violations = []
    for copy in found:
        if copy.number < last[copy.group]:
            text = f"{queue}: {copy.number} of {copy.group} arrived after {last[copy.group]}"
            violations.append(Violation("topic-order", text))
        last[copy.group] = copy.number
    return violations[:SHOWN]


def check_due_times(first_ms: int, rate_ms: int, until_ms: int, found: Sequence[int]) -> list[Violation]:
    """Every due time of a schedule up to `until_ms` was fired once. Later ones may have been."""
    counts = Counter(found)
    wanted = set(range(first_ms, until_ms + 1, rate_ms))
    wrong = {
        "were not fired": wanted - counts.keys(),
        "were fired more than once": {due for due, count in counts.items() if count > 1},
        "are none of the schedule": {due for due in counts if due < first_ms or (due - first_ms) % rate_ms},
    }
    return [
        Violation("schedule", f"{len(dues)} due times {what}, such as {sorted(dues)[:SHOWN]}")
        for what, dues in wrong.items()
        if dues
    ]


def check_commits(commits: Iterable[Commit], now: Mapping[int, int]) -> list[Violation]:
    """A commit with an old epoch was refused, and no acknowledged commit was lost. `now`: the positions in the end."""
    by_shard: dict[int, list[Commit]] = defaultdict(list)
    for commit in commits:
        by_shard[commit.shard].append(commit)
    violations = []
    for shard, those in by_shard.items():
        for later in those:
            before = [one for one in those if one.ended_s < later.started_s]
            epoch = max((one.epoch for one in before), default=0)
            position = max((one.position for one in before), default=0)
            if later.epoch < epoch:
                text = f"shard {shard} accepted a commit with epoch {later.epoch} after one with {epoch}"
                violations.append(Violation("reader-epoch", text))
            if later.position < position:
                text = f"shard {shard} was at {later.position} after it had acknowledged {position}"
                violations.append(Violation("reader-commit", text))
        if now.get(shard, 0) < max(one.position for one in those):
            text = f"shard {shard} is at {now.get(shard, 0)} in the end, and had acknowledged a higher position"
            violations.append(Violation("reader-commit", text))
    return violations[:SHOWN]


def check_read(fetched: Set[str], found: Iterable[str]) -> list[Violation]:
    """The members of a group have fetched every retained position."""
    missing = [position for position in found if position not in fetched]
    text = f"{len(missing)} retained messages were never read, such as {missing[:SHOWN]}"
    return [Violation("reader-read", text)] if missing else []


def check_replay(sent: Iterable[int], found: Iterable[int]) -> list[Violation]:
    """Each message of the source is in the target once."""
    wanted, counts = Counter(sent), Counter(found)
    if wanted == counts:
        return []
    missing, extra = (sorted(some.elements())[:SHOWN] for some in (wanted - counts, counts - wanted))
    return [Violation("replay", f"missing {missing}, too many {extra}")]
