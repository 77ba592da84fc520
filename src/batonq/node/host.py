"""A shard's host: one shard over one log on the event loop.

Commands run at once, one after the other, and answer with what they decided; `point()` says what the reply has to wait
for. Between a command and its `point()` nothing may be awaited. Life, timers and limits are in hosting.py, receives and
long polls in polling.py; what a command means is the shard's. When the log fails, the host is over: the keeper
(keeper.py) opens the shard again.
"""

from __future__ import annotations

from collections.abc import Sequence

from batonq.core.commands import Accepted, Arrival, Claim, Counters, FirstLeases, Nack, Send
from batonq.core.policy import QueuePolicy
from batonq.core.records import State
from batonq.core.shard.columns import NIL
from batonq.core.shard.once import Once
from batonq.core.shard.sending import PlainSend
from batonq.errors import BatonError
from batonq.node.polling import Polling

TOGETHER_MAX = 256  # requests that are run at once,
TOGETHER_BYTES_MAX = 4 * 1024 * 1024  # and bytes of theirs: the host looks at its limits in between


class ShardHost(Polling):
    """Hosts one opened shard. It serves after `start` and until its log fails or `close`."""

    def send(self, queue: int, sends: Sequence[Send], invocation: int = 0) -> list[Accepted | BatonError]:
        now_ms = self.begin(adds=True)
        results = self.run(self.shard.send, queue, sends, now_ms, invocation)
        if self.shard.woken:
            self._woken()
        return results

    def send_once(self, queue: int, sends: Sequence[Send], once: Once) -> tuple[list[Accepted | BatonError], bool]:
        """See Shard.send_once: the same request again is answered as the first time."""
        now_ms = self.begin(adds=True)
        outcome = self.run(self.shard.send_once, queue, sends, now_ms, once)
        if self.shard.woken:
            self._woken()
        return outcome

    def send_plain(
        self,
        queue: int,
        bodies: Sequence[bytes],
        digests: Sequence[bytes],
        sender: str,
        invocation: int,
        content: int = 0,
        producer: str = "",
        producer_sequence: int = 0,
    ) -> int:
        """See Shard.send_plain: the first sequence, or 0 when `send` must be called."""
        now_ms = self.begin(adds=True)
        first = self.run(
            self.shard.send_plain,
            queue,
            bodies,
            digests,
            sender,
            now_ms,
            invocation,
            content,
            producer,
            producer_sequence,
        )
        if self.shard.woken:
            self._woken()
        return first

    def receive_front(
        self, queue: int, max_messages: int, visibility_ms: int | None, holder: str
    ) -> FirstLeases | None:
        """See Shard.receive_front: leases without a choice or a wait, or None when `receive` must be called."""
        if self._waiters.total and self._waiters.count(queue):
            return None
        return self.run(self.shard.receive_front, queue, max_messages, visibility_ms, self.begin(), holder)

    def has_front(self, queue: int) -> bool:
        """Is there something to lease without a choice to make, and nobody who waits for it?"""
        state = self.shard.queues.get(queue)
        if state is None or (self._waiters.total and self._waiters.count(queue)):
            return False
        return bool(state.ready.front(1))

    def send_together(self, queue: int, requests: Sequence[PlainSend], sender: str, content: int = 0) -> list[int]:
        now_ms = self.begin(adds=True)
        return self.run(self.shard.send_together, queue, requests, sender, now_ms, content)

    def receive_together(
        self, queue: int, wants: Sequence[tuple[str, int]], visibility_ms: int | None
    ) -> tuple[FirstLeases, list[int]] | None:
        if self._waiters.total and self._waiters.count(queue):
            return None
        return self.run(self.shard.receive_together, queue, wants, visibility_ms, self.begin())

    def delete_together(self, queue: int, claims: list[tuple[int, int, int]]) -> bool:
        return self.run(self.shard.delete_together, queue, claims, self.begin())

    # ---

    def is_late(self, leases: FirstLeases) -> bool:
        """Has so much of these leases passed since they were decided that they must be extended?"""
        passed_ms = self._clock.now_ms() - leases.leased_ms
        return passed_ms * 10 > leases.deadline_ms - leases.leased_ms

    def delete(self, queue: int, claims: Sequence[Claim], strict: bool = False) -> list[BatonError | None]:
        now_ms = self.begin()
        results = self.run(self.shard.delete, queue, claims, now_ms, strict)
        if self.shard.woken:  # a FIFO group is free again
            self._woken()
        return results

    def deadline(self, claim: Claim) -> int:
        """When the lease that a claim names ends; 0: it is over."""
        columns = self.shard.columns
        slot = claim.slot
        if slot >= columns.used or columns.sequence[slot] != claim.sequence or columns.epoch[slot] != claim.epoch:
            return 0
        return columns.until[slot] if columns.state[slot] == State.IN_FLIGHT else 0

    def nack(self, queue: int, nacks: Sequence[Nack]) -> list[BatonError | None]:
        now_ms = self.begin()
        results = self.run(self.shard.nack, queue, nacks, now_ms)
        if self.shard.woken:
            self._woken()
        return results

    def set_policy(self, policy: QueuePolicy) -> None:
        self.run(self.shard.set_policy, policy, self.begin_own())

    def close_queue(self, queue: int, version: int) -> None:
        """The queue was deleted: whoever waits on it is told so. `purge` removes its messages."""
        self.run(self.shard.close_queue, queue, version, self.begin_own())
        self.shard.woken.add(queue)
        self._woken()

    def purge(self, queue: int, through: int | None) -> tuple[int, bool]:
        """One step of a purge up to sequence `through` (None: of all messages): how many went, and whether that was
        all.
        """
        return self.run(self.shard.purge, queue, self.begin(), through)

    def counters(self, queue: int) -> Counters:
        self.run(self.shard.advance, self.begin())
        return self.shard.counters(queue)

    def seek(self, queue: int, after_sequence: int, slot: int = NIL, sequence: int = 0) -> tuple[int, bool]:
        """See Shard.seek: one step towards a place in a queue, as the queue is when what is due has happened."""
        self.run(self.shard.advance, self.begin())
        return self.run(self.shard.seek, queue, after_sequence, slot, sequence)

    # --- between shards -----------------------------------------------------------------------

    def arrive(self, arrivals: Sequence[Arrival]) -> list[tuple[int, int]]:
        """Take entries of a channel from another shard: (number, verdict) of each."""
        now_ms = self.begin(adds=True)
        self.shard.check_arrivals(arrivals)  # a fault of the source's is none of this shard
        results = self.run(self.shard.arrive, arrivals, now_ms)
        if self.shard.woken:
            self._woken()
        return results

    def settle(self, destination_shard: int, results: Sequence[tuple[int, int]]) -> None:
        self.run(self.shard.settle, destination_shard, results, self.begin())
        if self.shard.woken:
            self._woken()


async def committed(host: ShardHost) -> None:
    """Wait until what was decided last is committed."""
    point = host.point()
    if point is not None:
        await point
