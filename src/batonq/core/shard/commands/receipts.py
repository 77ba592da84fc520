"""Commands by receipt: delete, change visibility, nack. The rules are in lifecycle.RECEIPTS."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from batonq.core.commands import ChangeVisibility, Claim, Delete, Failing, Nack
from batonq.core.records import DeletedFlag, LeaseFlag, Reason, State, Type
from batonq.core.shard.effects.message_records import MessageRecords
from batonq.core.shard.effects.message_runs import MessageRuns
from batonq.core.shard.expiry import Expiry
from batonq.core.shard.lifecycle import RECEIPTS, Rule, Standing, Verdict
from batonq.core.shard.moves.returns import Returns
from batonq.core.shard.state.columns import as_run, counted, delta_ms, joined
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.queue_state import QueueState
from batonq.errors import BatonError, InvalidInput, VisibilityTooLong

VISIBILITY_MAX_MS = 43_200_000
REASON_CHARACTERS_MAX = 500
CLASS_CHARACTERS_MAX = 100
_IN_FLIGHT, _OWED = int(State.IN_FLIGHT), int(State.OWED)
_LEASED_BYTE = bytes((_IN_FLIGHT,))
_ACKNOWLEDGED = int(Type.DELETED) | int(Reason.ACK) << 24


class ReceiptCommands:
    def __init__(
        self, messages: Messages, expiry: Expiry, records: MessageRecords, runs: MessageRuns, returns: Returns
    ) -> None:
        self.frame = messages.frame
        self.messages = messages
        self.columns = messages.columns
        self.expiry = expiry
        self.records = records
        self.runs = runs
        self.returns = returns

    def standing(self, number: int, claim: Claim, now: int) -> Standing:
        columns = self.columns
        slot = claim.slot
        if slot >= columns.used or columns.sequence[slot] != claim.sequence or columns.queue[slot] != number:
            return Standing.GONE
        state = columns.state[slot]
        if state == State.FREE:
            return Standing.GONE
        if columns.epoch[slot] != claim.epoch or state == _OWED:
            return Standing.SUPERSEDED
        return Standing.HELD if state == _IN_FLIGHT and columns.until[slot] > now else Standing.LAPSED

    def _verdict(self, action: str, queue: QueueState, claim: Claim, now: int, strict: bool) -> Verdict:
        standing = self.standing(queue.number, claim, now)
        if strict or queue.policy.strict_receipts:
            rule = Rule.STRICT
        else:
            rule = Rule.FIFO if queue.fifo else Rule.STANDARD
        return RECEIPTS[action, rule, standing]

    def delete(self, commands: Sequence[Delete], now: int) -> list[list[BatonError | None]]:
        """Delete messages of one queue for requests that arrived together; returns one result per claim of each
        request.

        Claims that every rule allows are written as one run: for all requests together, otherwise per request,
        otherwise per claim. Raises QueueDoesNotExist.
        """
        now = self.expiry.begin(now)
        queue = self.messages.queue_state(commands[0].queue)
        if len(commands) > 1:
            claims = [claim for command in commands for claim in command.claims]
            if not queue.fifo:  # in a FIFO queue sorting would change the order in which groups unlock
                claims.sort()
            if self._delete_held(queue, claims, now):
                return [[None] * len(command.claims) for command in commands]
        return [self._delete(queue, command, now) for command in commands]

    def _delete_held(self, queue: QueueState, claims: Sequence[tuple[int, int, int]], now: int) -> bool:
        """Delete messages if all claims are current leases; False means that nothing was done."""
        if not claims:
            return True
        slots = as_run([claim[0] for claim in claims])
        if not self._held(queue.number, slots, claims, now):
            return False
        self._acknowledge_run(queue, slots, claims, now)
        return True

    def _delete(self, queue: QueueState, command: Delete, now: int) -> list[BatonError | None]:
        if self._delete_held(queue, command.claims, now):
            return [None] * len(command.claims)
        results: list[BatonError | None] = []
        for claim in map(Claim._make, command.claims):
            verdict = self._verdict("delete", queue, claim, now, command.strict)
            if verdict.stale:
                queue.stale_deletes += 1
            if verdict.act:
                reason = int(verdict.reason)
                flags = int(DeletedFlag.LATE) if reason == Reason.LATE_ACK else 0
                self.messages.write(Type.DELETED, queue.number, claim.slot, now, flags=flags, reason=reason)
                self.messages.latencies.deleted(queue.number, self.columns, (claim.slot,), now)
                self.records.on_deleted(queue, claim.slot, now, reason)
            results.append(verdict.error() if verdict.error else None)
        return results

    def _held(self, number: int, slots: Sequence[int], claims: Sequence[tuple[int, int, int]], now: int) -> bool:
        """Whether these are the current leases of distinct messages that are `plain`. If so, every rule allows the
        delete.
        """
        columns = self.columns
        if isinstance(slots, range):
            first, end = slots.start, slots.stop
            count = len(slots)
            return (
                end <= columns.used
                and columns.state[first:end].tobytes() == _LEASED_BYTE * count
                and columns.queue[first:end] == array("I", (number,)) * count
                and min(columns.until[first:end]) > now
                and [*zip(slots, columns.sequence[first:end], columns.epoch[first:end], strict=True)] == claims
                and self.messages.plain(slots)
            )
        if max(slots) >= columns.used or len(set(slots)) != len(slots):
            return False
        sequences, queues, states = columns.sequence, columns.queue, columns.state
        epochs, untils = columns.epoch, columns.until
        for slot, sequence, epoch in claims:
            if (
                sequences[slot] != sequence
                or states[slot] != _IN_FLIGHT
                or epochs[slot] != epoch
                or queues[slot] != number
                or untils[slot] <= now
            ):
                return False
        return self.messages.plain(slots)

    def _acknowledge_run(
        self, queue: QueueState, slots: Sequence[int], claims: Sequence[tuple[int, int, int]], now: int
    ) -> None:
        columns = self.columns
        priorities, counts, lasts = columns.priority, columns.count, columns.last
        w0 = _ACKNOWLEDGED | queue.number << 32
        if isinstance(slots, range):
            # The rows start as copies of the shared values; the columns that differ are then written over them.
            first, end = slots.start, slots.stop
            rows = array("Q", (w0, 0, now, 0, 0, 0, 0, 0)) * len(slots)
            if any(priorities[first:end]):
                rows[0::8] = array("Q", [w0 | priority << 16 for priority in priorities[first:end]])
            rows[1::8] = columns.sequence[first:end]
            rows[4::8] = joined(columns.epoch[first:end], array("I", counts[first:end]))
            rows[5::8] = lasts[first:end]
            rows[7::8] = counted("Q", slots)
        else:
            words: list[int] = []
            for slot, sequence, epoch in claims:
                lease = epoch | counts[slot] << 32
                words += (w0 | priorities[slot] << 16, sequence, now, 0, lease, lasts[slot], 0, slot)
            rows = array("Q", words)
        self.frame.extend(rows)
        self.messages.latencies.deleted(queue.number, columns, slots, now)
        self.runs.on_acknowledged(queue, slots)

    def change_visibility(
        self, command: ChangeVisibility, now: int, by_attempt: bool = False
    ) -> list[int | BatonError]:
        """Change the visibility timeouts of leases; returns the new deadline of each in milliseconds, or 0 if the
        lease has ended.

        `by_attempt` means that the change does not come from the holder, so the receive's attempt id stays valid for
        these leases.
        """
        now = self.expiry.begin(now)
        queue = self.messages.queue_state(command.queue)
        columns = self.columns
        results: list[int | BatonError] = []
        for claim, visibility_ms in zip(map(Claim._make, command.claims), command.visibilities_ms, strict=True):
            verdict = self._verdict("change", queue, claim, now, command.strict)
            result: int | BatonError = verdict.error() if verdict.error else 0
            slot = claim.slot
            if verdict.act:
                began = columns.sent[slot] + delta_ms(columns.leased[slot])
                until = now + visibility_ms
                if not visibility_ms:
                    self.returns.end_lease(slot, now, now, Reason.RELEASED)
                elif until > began + VISIBILITY_MAX_MS:
                    result = VisibilityTooLong(
                        f"{visibility_ms // 1000} more seconds would keep the message in flight for longer than "
                        f"{VISIBILITY_MAX_MS // 1000} seconds since it was received."
                    )
                else:
                    flags = int(LeaseFlag.ATTEMPT) if by_attempt else 0
                    position = self.messages.write(Type.EXTENDED, queue.number, slot, now, until=until, flags=flags)
                    self.records.on_extended(slot, until, position, by_attempt)
                    result = until
            results.append(result)
        return results

    def give_back(self, number: int, claims: Sequence[tuple[int, int, int]], now: int) -> None:
        """End leases whose answer was never sent. No consumer got the messages, so no receive is counted. Claims
        that are not current leases are skipped.
        """
        now = self.expiry.begin(now)
        self.messages.queue_state(number)
        for claim in map(Claim._make, claims):
            if self.standing(number, claim, now) is Standing.HELD:
                self.returns.end_lease(claim.slot, now, now, Reason.RELEASED, charged=False)

    def nack(self, command: Nack, now: int) -> list[BatonError | None]:
        now = self.expiry.begin(now)
        queue = self.messages.queue_state(command.queue)
        pairs = zip(map(Claim._make, command.claims), command.failings, strict=True)
        return [self._nack(queue, claim, failing, now) for claim, failing in pairs]

    def _nack(self, queue: QueueState, claim: Claim, failing: Failing, now: int) -> BatonError | None:
        verdict = self._verdict("nack", queue, claim, now, True)
        if verdict.error:
            return verdict.error()
        delay_ms = failing.delay_ms
        if delay_ms is not None and not 0 <= delay_ms <= queue.policy.retention_ms:
            return InvalidInput("The delay of a nack must be 0 to the queue's retention period.")
        if len(failing.reason) > REASON_CHARACTERS_MAX or len(failing.error_class) > CLASS_CHARACTERS_MAX:
            return InvalidInput(
                f"The reason of a nack can have at most {REASON_CHARACTERS_MAX} characters, its error class "
                f"at most {CLASS_CHARACTERS_MAX}."
            )
        if failing.untried:
            if failing.dead_letter:
                return InvalidInput("A released message counts as not tried, so it cannot be dead-lettered as well.")
            self.returns.end_lease(claim.slot, now, now + (delay_ms or 0), Reason.RELEASED, charged=False)
            return None
        self.returns.end_lease(
            claim.slot,
            now,
            now + (self.returns.retry_delay(queue, claim.slot) if delay_ms is None else delay_ms),
            Reason.NACK,
            failing.error_class,
            failing.reason,
            failing.dead_letter,
        )
        return None
