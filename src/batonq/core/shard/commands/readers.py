"""Commands of reader groups: create, join, commit, fail, seek. See state/readers.py.

A member carries the epoch of its assignment. A shard refuses a member of an earlier epoch, and raises its own epoch,
with a record, before it serves a member of a later one. So once a new member has fetched, no earlier member can commit.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from batonq.core.positions import position_text
from batonq.core.records import RETAINING_VERSION, Type
from batonq.core.shard.expiry import Expiry
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.core.shard.state.readers import (
    ERROR_LENGTH_MAX,
    GROUPS_MAX,
    MEMBERS_MAX,
    GroupSettings,
    Reader,
    Start,
    assigned,
)
from batonq.core.shard.state.retained import Retained
from batonq.errors import NotRetained, OverLimit, PositionInvalid, ReaderDoesNotExist, ReaderExists, StaleMember
from batonq.queue_attributes import RETAIN, mention

SEEK_MS = 10_000  # a seek that was not finished by then, because its node died, no longer stops the members
EPOCH_AHEAD_MS = 86_400_000  # by which another shard's clock, from which an epoch is, may be ahead of this shard's
SEEN_MAX = 10_000  # groups whose members' deadlines are kept before those of groups that are gone are dropped
_CREATED_TWICE = "Another request creates the reader group {group!r} at the same time. Retry."


@dataclass(slots=True)
class Assignment:
    """What a member may read, in which epoch."""

    epoch: int
    shards: list[int]
    reset_epoch: int  # positions that were fetched in an earlier epoch than this must not be committed
    members: int
    session_ms: int


class ReaderCommands:
    def __init__(self, messages: Messages, expiry: Expiry) -> None:
        self.journal = messages.journal
        self.number = self.journal.number
        self.frame = messages.frame
        self.messages = messages
        self.expiry = expiry
        # soft: until when each member's session lasts; a new owner begins all sessions anew
        self._sessions: dict[tuple[int, str], dict[str, int]] = {}
        # soft: which request may create each group; a new owner knows none, so that all begin again
        self._creations: dict[tuple[int, str], int] = {}

    # --- records ------------------------------------------------------------------------------------

    def _set(self, queue: QueueState, reader: Reader, now: int) -> Reader:
        data = json.dumps(reader.values(), separators=(",", ":"), sort_keys=True).encode()
        w6 = self.frame.put(data)
        self.frame.add(Type.READER_SET | queue.number << 32, reader.position, now, reader.epoch, 0, 0, w6, 0)
        self.on_reader(queue, data)
        return self.reader(queue.number, reader.group)

    def on_reader(self, queue: QueueState, data: bytes) -> None:
        """Apply the new state of a group; without an epoch, the group is deleted."""
        self.journal.use_format(RETAINING_VERSION)
        values = json.loads(data)
        if queue.closed:
            return
        if queue.readers is None:
            queue.readers = {}
        if "epoch" in values:
            reader = Reader.from_values(values)
            queue.readers[reader.group] = reader
        else:
            queue.readers.pop(values["group"], None)

    # --- finding ------------------------------------------------------------------------------------

    def reader(self, queue: int, group: str) -> Reader:
        """A group as this shard knows it. Raises QueueDoesNotExist, ReaderDoesNotExist."""
        state = self.messages.queue_state(queue)
        reader = (state.readers or {}).get(group)
        if reader is None:
            raise ReaderDoesNotExist(f"Queue {state.policy.name} has no reader group {group!r}. Create it first.")
        return reader

    def readers(self, queue: int) -> list[Reader]:
        """The groups of a queue, by name."""
        return sorted((self.messages.queue_state(queue).readers or {}).values(), key=lambda reader: reader.group)

    def _retained(self, queue: QueueState, now: int) -> Retained:
        if queue.retained is None:
            raise NotRetained(
                f"Queue {queue.policy.name} does not retain its history, so it cannot have reader groups. Set "
                f"{mention(RETAIN)} on the queue first."
            )
        queue.retained.end_old(now)
        return queue.retained

    def _place(self, queue: QueueState, start: Start, now: int) -> int:
        """The position up to which a group that starts here is done."""
        retained = self._retained(queue, now)
        if start.kind == "start":
            return 0
        if start.kind == "end":
            return retained.last
        if start.kind == "time":
            index = retained.index_at_time(start.value)
            return retained.position_at(index) - 1 if index < len(retained) else retained.last
        if not retained.has(start.value):
            raise self._no_message_at(queue, retained, start.value)
        return start.value - 1

    def _no_message_at(self, queue: QueueState, retained: Retained, position: int) -> PositionInvalid:
        text = f"Queue {queue.policy.name} has no retained message at position {position_text(self.number, position)}."
        if not len(retained):
            return PositionInvalid(f"{text} Nothing is retained on shard {self.number}.")
        first, last = (position_text(self.number, each) for each in (retained.first, retained.last))
        return PositionInvalid(f"{text} Its retained messages on shard {self.number} are from {first} to {last}.")

    # --- the group ------------------------------------------------------------------------------------

    def begin_create(self, queue: int, group: str, settings: GroupSettings, now: int) -> int:
        """Reserve the name of a group for a request. Returns the group's `created_ms`, or 0 if the group exists. A
        later request takes the name over, so that of several requests only one creates the group.

        Raises ReaderExists if the group exists with other settings.
        """
        known = (self.messages.queue_state(queue).readers or {}).get(group)
        if known is not None and known.settings != settings:
            raise ReaderExists(
                f"Reader group {group!r} already exists with other settings. Delete it first, or use another name."
            )
        if known is not None:
            return 0
        if len(self._creations) >= SEEN_MAX:
            self._creations.clear()  # requests that are in progress begin again
        created_ms = max(now, self._creations.get((queue, group), 0) + 1)
        self._creations[queue, group] = created_ms
        return created_ms

    def create_reader(
        self, queue: int, group: str, created_ms: int, settings: GroupSettings, start: Start, now: int
    ) -> Reader:
        """Create a group on the shard that coordinates it, after all others. Raises StaleMember if the name is no
        longer reserved for this request.
        """
        if self._creations.get((queue, group)) != created_ms:
            raise StaleMember(_CREATED_TWICE.format(group=group))
        reader = self.set_reader(queue, group, created_ms, settings, start, created_ms, False, now)
        del self._creations[queue, group]
        return reader

    def set_reader(
        self,
        queue: int,
        group: str,
        created_ms: int,
        settings: GroupSettings,
        start: Start,
        epoch: int,
        only_new: bool,
        now: int,
    ) -> Reader:
        """Create a group on this shard, or set its position in a seek. Members of earlier epochs are refused from now
        on. `only_new`: a group that exists here keeps its position.

        Raises StaleMember if members have been given shards since the seek began, or if a later request has created
        the group. What an incomplete deletion has left of an earlier group is replaced.
        """
        now = self.expiry.begin(now)
        state = self.messages.queue_state(queue)
        position = self._place(state, start, now)
        known = (state.readers or {}).get(group)
        if known is None and len(state.readers or ()) >= GROUPS_MAX:
            raise OverLimit(f"Queue {state.policy.name} has {GROUPS_MAX} reader groups, which is the maximum.")
        reader = Reader(group, created_ms, settings, epoch, epoch, position)
        if known is not None and only_new:
            return known
        if known is not None and known.created_ms > created_ms:
            raise StaleMember(_CREATED_TWICE.format(group=group))
        if known is not None and known.created_ms == created_ms:
            if known.epoch > epoch:
                raise StaleMember(f"The members of reader group {group!r} have changed during the seek. Seek again.")
            reader.group_epoch, reader.seeking_until_ms = known.group_epoch, known.seeking_until_ms
            reader.members = known.members
        return self._set(state, reader, now)

    def delete_reader(self, queue: int, group: str, now: int) -> None:
        now = self.expiry.begin(now)
        state = self.messages.queue_state(queue)
        reader = self.reader(queue, group)
        data = json.dumps({"group": group}).encode()
        w6 = self.frame.put(data)
        self.frame.add(Type.READER_SET | queue << 32, reader.position, now, 0, 0, 0, w6, 0)
        self.on_reader(state, data)
        self._sessions.pop((queue, group), None)

    # --- members -------------------------------------------------------------------------------------

    def join(self, queue: int, group: str, member: str, shards: Sequence[int], now: int) -> Assignment:
        """Add a member, or extend its session. `shards` are the queue's shards now."""
        now = self.expiry.begin(now)
        state = self.messages.queue_state(queue)
        reader = self.reader(queue, group)
        sessions = self._sessions_of(queue, reader, now)
        sessions[member] = now + reader.settings.session_ms
        for other in [other for other, until_ms in sessions.items() if until_ms <= now]:
            del sessions[other]
        if member not in reader.members and len(sessions) > MEMBERS_MAX:
            del sessions[member]
            raise OverLimit(f"Reader group {group!r} has {MEMBERS_MAX} members, which is the maximum.")
        members = {other: mine for other, mine in reader.members.items() if other in sessions}
        members.setdefault(member, [])
        reader = self._balance(state, reader, members, shards, now)
        return self._assignment(reader, member)

    def leave(self, queue: int, group: str, member: str, shards: Sequence[int], now: int) -> None:
        """Remove a member, so that others get its shards at once. No error if it is not a member."""
        now = self.expiry.begin(now)
        state = self.messages.queue_state(queue)
        reader = self.reader(queue, group)
        self._sessions_of(queue, reader, now).pop(member, None)
        if member in reader.members:
            members = {other: mine for other, mine in reader.members.items() if other != member}
            self._balance(state, reader, members, shards, now)

    def assignment(self, queue: int, group: str, member: str) -> Assignment:
        """What a member has now. Raises StaleMember if it is not a member."""
        reader = self.reader(queue, group)
        if member not in reader.members:
            raise StaleMember(f"{member!r} is not a member of reader group {group!r}. Join again.")
        return self._assignment(reader, member)

    @staticmethod
    def _assignment(reader: Reader, member: str) -> Assignment:
        shards = [] if reader.seeking_until_ms else reader.members[member]
        session_ms = reader.settings.session_ms
        return Assignment(reader.group_epoch, list(shards), reader.reset_epoch, len(reader.members), session_ms)

    def _balance(
        self, queue: QueueState, reader: Reader, members: dict[str, list[int]], shards: Sequence[int], now: int
    ) -> Reader:
        """Assign the shards to the members. A change begins a new epoch."""
        ended = 0 < reader.seeking_until_ms <= now
        after = assigned(members, shards)
        if after == reader.members and not ended:
            return reader
        seeking_until_ms = 0 if ended else reader.seeking_until_ms
        epoch = self._next_epoch(reader, now)
        changed = replace(reader, group_epoch=epoch, members=after, seeking_until_ms=seeking_until_ms)
        if ended:  # it may have set some positions, or set them later
            changed.reset_epoch = max(reader.group_epoch, reader.reset_epoch)
        return self._set(queue, changed, now)

    @staticmethod
    def _next_epoch(reader: Reader, now: int) -> int:
        """An epoch above all earlier ones of the group, also of those before another shard became its coordinator:
        epochs follow the time.
        """
        return max(now, reader.group_epoch, reader.epoch, reader.reset_epoch) + 1

    def _sessions_of(self, queue: int, reader: Reader, now: int) -> dict[str, int]:
        if len(self._sessions) > SEEN_MAX:
            for key in [key for key in self._sessions if key[1] not in (self._groups_of(key[0]))]:
                del self._sessions[key]
        sessions = self._sessions.setdefault((queue, reader.group), {})
        for member in reader.members:
            sessions.setdefault(member, now + reader.settings.session_ms)
        return sessions

    def _groups_of(self, queue: int) -> dict[str, Reader]:
        state = self.messages.queues.get(queue)
        return (state.readers or {}) if state is not None else {}

    def begin_seek(self, queue: int, group: str, now: int) -> Reader:
        """Begin to change the positions of a group: no member has a shard until `end_seek`."""
        now = self.expiry.begin(now)
        state = self.messages.queue_state(queue)
        reader = self.reader(queue, group)
        changed = replace(reader, group_epoch=self._next_epoch(reader, now), seeking_until_ms=now + SEEK_MS)
        return self._set(state, changed, now)

    def end_seek(self, queue: int, group: str, epoch: int, now: int) -> Reader:
        """End the seek that began with this epoch. Members have their shards again, in a later epoch."""
        now = self.expiry.begin(now)
        state = self.messages.queue_state(queue)
        reader = self.reader(queue, group)
        if not reader.seeking_until_ms:
            return reader
        changed = replace(reader, group_epoch=self._next_epoch(reader, now))
        changed.reset_epoch = max(epoch, reader.reset_epoch)
        changed.seeking_until_ms = 0
        return self._set(state, changed, now)

    # --- what members do --------------------------------------------------------------------------------

    def _of_member(self, queue: QueueState, group: str, member: str, epoch: int, now: int) -> Reader:
        reader = self.reader(queue.number, group)
        if epoch > max(now, reader.epoch) + EPOCH_AHEAD_MS:  # it would keep out all members that come later
            raise StaleMember(f"Epoch {epoch} of reader group {group!r} was given to no member. Join again.")
        if epoch < reader.epoch or (epoch == reader.epoch and reader.member not in ("", member)):
            raise StaleMember(
                f"{member!r} has epoch {epoch} of reader group {group!r}, but shard {self.number} has been read in "
                f"epoch {reader.epoch}{f' by {reader.member!r}' if reader.member else ''}. Join again."
            )
        return reader

    def begin_fetch(self, queue: int, group: str, member: str, epoch: int, now: int) -> Reader:
        """Check that a member may fetch from this shard. From now on earlier members are refused."""
        now = self.expiry.begin(now)
        state = self.messages.queue_state(queue)
        self._retained(state, now)
        reader = self._of_member(state, group, member, epoch, now)
        if epoch == reader.epoch and member == reader.member:
            return reader
        return self._set(state, replace(reader, epoch=epoch, member=member), now)

    def commit_reader(self, queue: int, group: str, member: str, epoch: int, position: int, now: int) -> Reader:
        """Store that everything up to a position, and including it, is done. A lower position changes nothing."""
        now = self.expiry.begin(now)
        state = self.messages.queue_state(queue)
        reader = self._of_member(state, group, member, epoch, now)
        if position <= reader.position:
            return reader
        self._check_position(state, position, now)
        changed = replace(reader, epoch=epoch, member=member, position=position)
        if changed.failed <= position:
            changed.failed = changed.failures = 0
            changed.error = ""
        return self._set(state, changed, now)

    def fail_reader(
        self, queue: int, group: str, member: str, epoch: int, position: int, error: str, now: int
    ) -> Reader:
        """Count a failure of the message at a position. `Reader.is_given_up` says whether it is to be skipped."""
        now = self.expiry.begin(now)
        state = self.messages.queue_state(queue)
        reader = self._of_member(state, group, member, epoch, now)
        if position <= reader.position:
            raise PositionInvalid(
                f"Position {position_text(self.number, position)} is done already: reader group {group!r} has "
                f"committed {position_text(self.number, reader.position)}."
            )
        self._check_position(state, position, now)
        retained = self._retained(state, now)
        index = retained.index_after(reader.position)
        following = retained.position_at(index) if index < len(retained) else 0
        if position != following:  # a skip commits the position, and so everything before it
            raise PositionInvalid(
                f"Position {position_text(self.number, position)} is not the next one of reader group {group!r}, which "
                f"is {position_text(self.number, following)}. Commit what is done before it first."
            )
        failures = reader.failures + 1 if reader.failed == position else 1
        changed = replace(reader, epoch=epoch, member=member, failed=position, failures=failures)
        changed.error = error[:ERROR_LENGTH_MAX]
        return self._set(state, changed, now)

    def _check_position(self, queue: QueueState, position: int, now: int) -> None:
        """A position that a member has fetched may have left the history since; any other must be in it."""
        retained = self._retained(queue, now)
        if position > retained.last and len(retained):
            raise self._no_message_at(queue, retained, position)
        if position >= retained.first and not retained.has(position):
            raise self._no_message_at(queue, retained, position)
        if not len(retained) and position >= self.frame.number << 16:
            raise self._no_message_at(queue, retained, position)
