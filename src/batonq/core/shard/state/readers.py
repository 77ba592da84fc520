"""A reader group as one shard knows it, and how shards are assigned to the members of a group.

Every shard of a queue keeps the group's position on that shard. The queue's first shard also coordinates the group: it
has the members, and raises the group's epoch whenever their assignment changes. A shard refuses members of an epoch
below the highest one that it has seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

GROUPS_MAX = 100  # per queue
MEMBERS_MAX = 256  # per group
NAME_LENGTH_MAX = 80
ERROR_LENGTH_MAX = 500


class GroupSettings(NamedTuple):
    """What a reader group is created with."""

    max_failures: int = 3
    dead_letter_queue: int = 0  # number of the queue for positions that failed `max_failures` times; 0: none
    dead_letter_name: str = ""
    session_ms: int = 30_000  # a member that does not join again within this time loses its shards


class Start(NamedTuple):
    """Where a group begins to read, or continues after a seek."""

    kind: str  # "start": the oldest retained message, "end": only new messages, "time", "position"
    value: int = 0  # milliseconds since 1970, or the number of a position


@dataclass(slots=True)
class Reader:
    group: str
    created_ms: int
    settings: GroupSettings
    epoch: int  # the highest epoch in which this shard was read
    reset_epoch: int  # the epoch in which the position was set: when the group was created, or by a seek
    position: int = 0  # the log position up to which everything is done
    member: str = ""  # who fetched in this epoch
    failed: int = 0  # the position that failed last; 0: none since the last commit
    failures: int = 0  # how often it failed
    error: str = ""
    # on the shard that coordinates the group
    group_epoch: int = 0  # of the current assignment
    members: dict[str, list[int]] = field(default_factory=dict)  # member → its shards
    seeking_until_ms: int = 0  # a seek is in progress: no member has a shard until it ends, or until this time

    def values(self) -> dict[str, Any]:
        """As JSON values, without those that have their default."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        kept = {name: value for name, value in values.items() if value or name in _ALWAYS}
        return {**kept, "settings": list(self.settings)}

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Reader:
        return cls(**{**values, "settings": GroupSettings(*values["settings"])})

    @property
    def is_given_up(self) -> bool:
        """Whether the next position has failed so often that it is to be skipped."""
        return bool(self.failed and self.settings.dead_letter_queue and self.failures >= self.settings.max_failures)

    def validate(self) -> None:
        assert not self.failed or self.failed > self.position, "a position that is done is counted as failed"
        assert bool(self.failed) == bool(self.failures), "a failure has no position"
        assert self.reset_epoch <= max(self.epoch, self.group_epoch), "a position was set in an epoch to come"
        shards = [shard for mine in self.members.values() for shard in mine]
        assert len(shards) == len(set(shards)), "two members have one shard"


_ALWAYS = frozenset(("group", "created_ms", "epoch", "reset_epoch", "position"))


def assigned(members: Mapping[str, Sequence[int]], shards: Sequence[int]) -> dict[str, list[int]]:
    """The shards of each member: as even as possible, and each member keeps as many of its shards as it can."""
    if not members:
        return {}
    least, extra = divmod(len(shards), len(members))
    kept = {member: [shard for shard in mine if shard in shards] for member, mine in members.items()}
    # Members that have more shards already get the larger parts, so that fewer shards move.
    ordered = sorted(kept, key=lambda member: (-len(kept[member]), member))
    room = {member: least + (at < extra) for at, member in enumerate(ordered)}
    result = {member: kept[member][: room[member]] for member in sorted(kept)}
    taken = {shard for mine in result.values() for shard in mine}
    free = iter([shard for shard in shards if shard not in taken])
    for member, mine in result.items():
        while len(mine) < room[member]:
            mine.append(next(free))
        mine.sort()
    return result
