"""Messages that their producer has numbered: each number is accepted once, in order. See producers.py."""

from __future__ import annotations

from batonq.core.commands import Accepted, Send, Sent
from batonq.core.ids import key_hash
from batonq.core.records import Type
from batonq.core.shard.commands.new_messages import ELSEWHERE, NewMessages, Results, Run, outcome, taken_before
from batonq.core.shard.state.messages import Messages
from batonq.core.shard.state.producers import RUN_MAX as PRODUCER_RUN_MAX
from batonq.core.shard.state.producers import Produced, Producers
from batonq.core.shard.state.queue_state import QueueState
from batonq.errors import NotOwner, OverLimit

PRODUCER_IDLE_MS = 7 * 86_400_000
PRODUCER_WAITS = (
    "An earlier message of this producer was refused, or the limit of producers is reached. Send again from that "
    "message on."
)
_PRODUCED = int(Type.PRODUCED)


class NumberedSends:
    def __init__(self, messages: Messages, new_messages: NewMessages) -> None:
        self.journal = messages.journal
        self.number = self.journal.number
        self.frame = messages.frame
        self.dedup = messages.dedup
        self.new_messages = new_messages
        self.producers = Producers()
        self.idle_ms = PRODUCER_IDLE_MS  # a setting: a producer that sends nothing for so long is forgotten

    def take(self, queue: QueueState, command: Send, now: int) -> Sent:
        """Accept messages, without regard to the name of their request."""
        if not command.bodies:
            return Sent(self.number, 0, 0)
        if command.producer:
            return self._send_numbered(queue, command, now)
        return self.new_messages.send_rows(queue, command, now)

    def _send_numbered(self, queue: QueueState, command: Send, now: int) -> Sent:
        """Send messages that their producer has numbered, in runs of consecutive numbers."""
        turn = _ProducerTurn(producer_key(queue.number, command.producer))
        numbers = command.numbers
        results: Results = []
        start = 0
        while start < len(numbers):
            end = start + 1
            while end < len(numbers) and numbers[end] == numbers[end - 1] + 1:
                end += 1
            results += self._send_consecutive(queue, command.pick(range(start, end)), now, turn)
            start = end
        return outcome(self.number, results)

    def _send_consecutive(self, queue: QueueState, command: Send, now: int, turn: _ProducerTurn) -> Results:
        """Send consecutively numbered messages, skipping those that were accepted before.

        After a retryable refusal, all later messages of the request are refused too. If a later number were accepted,
        the refused message would look like a duplicate when it is sent again. For the same reason, after a message that
        has moved to another shard, only messages that have moved too get that answer.
        """
        key, numbers = turn.key, command.numbers
        known = self.producers.get(key, now // 1000)
        old = 0 if known is None else min(max(known.last - numbers[0] + 1, 0), len(numbers))
        results: Results = []
        if known is not None:
            queue.duplicates += old
            results += [self._taken_before(known, number) for number in numbers[:old]]
        command = command.pick(range(old, len(numbers)))
        numbers = command.numbers
        count = len(numbers)
        if not count:
            return results
        if queue.policy.spread and self._producer_is_elsewhere(queue, command):
            turn.moved = True
            return results + [NotOwner(ELSEWHERE)] * count
        waits = turn.moved and not self._has_moved(queue, command, 0, now)
        if turn.refused or waits or self._no_producer_more(key, now):
            turn.refused = True
            return results + [OverLimit(PRODUCER_WAITS)] * count
        run, new_messages = Run(), self.new_messages
        if new_messages.takes_runs(queue) and new_messages.joins(queue, run, command):
            first = new_messages.write_run(queue, run, now)
            if first:
                self._produced(queue.number, key, numbers[-1], first + count - 1, count, now)
                return [*results, *Sent(self.number, first, count).results()]
        return results + self._send_one_by_one(queue, command, now, turn)

    def _send_one_by_one(self, queue: QueueState, command: Send, now: int, turn: _ProducerTurn) -> Results:
        results: Results = []
        last: Accepted | None = None
        number = run = 0
        for at, own in enumerate(command.numbers):
            if turn.refused or (turn.moved and not self._has_moved(queue, command, at, now)):
                turn.refused = True
                results.append(OverLimit(PRODUCER_WAITS))
                continue
            (result,) = self.new_messages.send_rows(queue, command.pick([at]), now).results()
            results.append(result)
            if isinstance(result, Accepted):
                follows = last is not None and (own, result.sequence) == (number + 1, last.sequence + 1)
                run = run + 1 if follows else 1
                number, last = own, result
            elif isinstance(result, NotOwner):
                turn.moved = True
            elif result.retryable:
                turn.refused = True
        if last is not None:
            self._produced(queue.number, turn.key, number, last.sequence, run, now)
        return results

    def _taken_before(self, known: Produced, number: int) -> Accepted:
        back = known.last - number
        if back >= known.run:
            return Accepted(0, "", True)
        return taken_before(self.number, known.message - back)

    def _no_producer_more(self, key: int, now: int) -> bool:
        now_s = now // 1000
        return self.producers.full(now_s, self.journal.limits.producers_max) and self.producers.get(key, now_s) is None

    def _produced(self, queue: int, key: int, number: int, sequence: int, run: int, now: int) -> None:
        expires_s = -(-(now + self.idle_ms) // 1000)
        run = min(run, PRODUCER_RUN_MAX)
        self.frame.add(_PRODUCED | queue << 32, sequence, now, number, run, key, 0, expires_s << 32)
        self.on_produced(key, number, sequence, run, now, expires_s)

    def on_produced(self, key: int, number: int, sequence: int, run: int, time: int, expires_s: int) -> None:
        self.producers.put(key, number, sequence, run, expires_s, time // 1000)

    def forget_after(self, idle_ms: int) -> None:
        """Forget a producer that has sent nothing for so long."""
        self.idle_ms = idle_ms

    def _producer_is_elsewhere(self, queue: QueueState, command: Send) -> bool:
        """Whether another shard owns all of these messages, when only the producer decides the shard."""
        if queue.fifo or any(command.dedup_ids):
            return False
        return self.new_messages.belongs_elsewhere(queue, command, 0)

    def _has_moved(self, queue: QueueState, command: Send, at: int, now: int) -> bool:
        """Whether this shard would refuse a message because it belongs to another shard: the message is unknown
        here, and so is not a duplicate.
        """
        keys = self.dedup.keys_of(queue, command.pick([at]))
        known = bool(keys) and self.dedup.known(queue, keys[0], now) is not None
        return not known and self.new_messages.belongs_elsewhere(queue, command, at)


class _ProducerTurn:
    """What has happened so far to a producer's messages in one request."""

    __slots__ = ("key", "moved", "refused")

    def __init__(self, key: int) -> None:
        self.key = key
        self.refused = False
        self.moved = False


def producer_key(queue: int, producer: str) -> int:
    return key_hash(queue, "producer", producer)
