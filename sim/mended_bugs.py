"""Bugs that this code once had, to plant again: each shows that the simulator would find it today.

They were found by reading, when the simulator had only the limits of production.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batonq.core.commands import Arrival, Leases, Receive
from batonq.core.records import Reason
from batonq.core.shard.commands.channels import ChannelCommands
from batonq.core.shard.commands.queues import QueueCommands
from batonq.core.shard.commands.remembered_requests import _DUPLICATE, RememberedRequests
from batonq.core.shard.moves.arrivals import Arrivals
from batonq.core.shard.state.channel_end import Incoming
from batonq.core.shard.state.dedup_table import DedupTable
from batonq.core.shard.state.messages import Messages
from batonq.errors import BatonError, QueueDoesNotExist
from batonq.node.routing.multi_queue_receive import Watch
from batonq.node.shard_host.group_commit import GroupCommit
from batonq.node.shard_host.long_polls import LongPolls
from batonq.node.shard_host.waiters import ServingBudget
from sim.patches import Patches

REFUSALS_KEPT = 4  # instead of 65,536


def _sealing_can_fail() -> Patches:
    """An exception while long polls are served keeps the frame from being sealed."""
    flush = GroupCommit._flush

    def flush_or_fail(self: GroupCommit) -> None:
        if self._failed or self.appending:
            return
        self._scheduled = True
        try:
            self._before_seal()
        finally:
            self._scheduled = False
        serve, self._before_seal = self._before_seal, _nothing
        try:
            flush(self)
        finally:
            self._before_seal = serve

    return [(GroupCommit, "_flush", flush_or_fail)]


def _nothing() -> None:
    """Stands for serving long polls, which has happened already."""


def poll_wedges_shard() -> Patches:
    """A long poll over many queues, served while the open frame is full, keeps that frame from ever being sealed."""

    def take(self: LongPolls, command: Receive, budget: ServingBudget | None = None) -> Leases | None:
        host = self._host
        now_ms = host.admit()
        try:
            (outcome,) = host.run(host.shard.receive, [command], now_ms)
        except QueueDoesNotExist:
            return None
        return outcome if isinstance(outcome, Leases) else None

    def fail(self: Watch, problem: BaseException) -> None:
        raise problem

    return [(LongPolls, "take", take), (Watch, "fail", fail), *_sealing_can_fail()]


def full_tables_stay_full() -> Patches:
    """A full table of keys or requests refuses new entries without first removing expired ones."""

    def full(self: DedupTable, now_s: int, entries_max: int, beside_s: int = 0) -> bool:
        return len(self) >= entries_max

    return [(DedupTable, "full", full)]


def refusals_forgotten() -> Patches:
    """The most recent refusals are remembered for all sources together. An arrived entry that is not among them counts
    as accepted.
    """
    refused: dict[tuple[int, int, int], int] = {}  # shard, source, number → verdict
    on_entry = Arrivals.on_entry

    def remember(self: Arrivals, source_shard: int, number: int, verdict: int) -> None:
        on_entry(self, source_shard, number, verdict)
        if verdict != Reason.ACCEPTED:
            refused[self.number, source_shard, number] = verdict
            mine = [key for key in refused if key[0] == self.number]
            for key in mine[:-REFUSALS_KEPT]:
                del refused[key]

    def past_verdict(self: ChannelCommands, arrival: Arrival) -> int:
        return refused.get((self.number, arrival.source_shard, arrival.number), Reason.ACCEPTED)

    def verdict(self: Incoming, number: int, kept_max: int = 0) -> int:
        return Reason.ACCEPTED

    return [
        (Arrivals, "on_entry", remember),
        (ChannelCommands, "_past_verdict", past_verdict),
        (Incoming, "verdict", verdict),
    ]


def waiters_overflow_frame() -> Patches:
    """All long polls are served into one frame, each after a step of the timers."""

    def lease(self: LongPolls, command: Receive, budget: ServingBudget) -> Leases:
        host = self._host
        (outcome,) = host.run(host.shard.receive, [command], host.now_ms())
        if isinstance(outcome, BatonError):
            raise outcome
        assert isinstance(outcome, Leases)
        return outcome

    def over(self: ServingBudget) -> bool:
        return False

    return [(LongPolls, "_lease", lease), (ServingBudget, "over", property(over))]


def committed_replies_not_told() -> Patches:
    """An exception while a frame is sealed keeps the outcomes of committed frames from being released."""
    stop = GroupCommit.stop

    def stop_waiting_only(self: GroupCommit, why: str) -> None:
        released, self._released = self._released, []
        replies, self._replies = self._replies, []
        stop(self, why)
        self._released, self._replies = released, replies

    return [(GroupCommit, "stop", stop_waiting_only), *_sealing_can_fail()]


def failed_host_hangs() -> Patches:
    """Whoever asks a host that failed in the middle of an append what to wait for, waits for ever."""
    stop = GroupCommit.stop

    def stop_in_the_middle(self: GroupCommit, why: str) -> None:
        appending, assured = self.appending, self._assured
        stop(self, why)
        self.appending, self._assured = appending, assured

    return [(GroupCommit, "stop", stop_in_the_middle)]


def woken_queue_forgotten() -> Patches:
    """A queue with too many used-up messages for one receive is not examined again before a frame is sealed."""
    serve = LongPolls.serve

    def serve_once(self: LongPolls) -> None:
        woken = self._host.shard.woken
        self._unserved.update(dict.fromkeys(self._waiters.waited_on(woken)))
        woken.clear()
        serve(self)

    def has_work(self: LongPolls) -> bool:
        self._host.shard.woken.clear()
        return bool(self._unserved or self._to_ask)

    return [(LongPolls, "serve", serve_once), (LongPolls, "_has_work", has_work)]


def duplicates_not_remembered() -> Patches:
    """A request with an Idempotency-Key does not remember messages that were duplicates."""
    remember = RememberedRequests._remember_once

    def remember_new(
        self: RememberedRequests, number: int, keys: Sequence[int], sequence: int, count: int, now: int, window_ms: int
    ) -> None:
        if len(keys) > 1 or count != _DUPLICATE:
            remember(self, number, keys, sequence, count, now, window_ms)

    return [(RememberedRequests, "_remember_once", remember_new)]


def purge_of_nothing_is_of_all() -> Patches:
    """A purge that began when a shard had no message yet removes all messages that arrive before it ends."""
    purge = QueueCommands.purge

    def purge_all(self: QueueCommands, number: int, now: int, through: int | None = None) -> tuple[int, bool]:
        return purge(self, number, now, through or None)

    return [(QueueCommands, "purge", purge_all)]


def deleted_queues_leak() -> Patches:
    """The numbers of deleted queues stay in the set of queues that may have messages."""

    def forget(self: Messages, number: int) -> None:
        del self.queues[number]

    def filled_queues(self: Messages) -> list[int]:
        queues = self.queues
        empty = [number for number in self.filled if number not in queues or not queues[number].visible]
        self.filled.difference_update(empty)
        return list(self.filled)

    return [(Messages, "_forget_queue", forget), (Messages, "filled_queues", filled_queues)]


MENDED_BUGS: dict[str, Callable[[], Patches]] = {
    "poll-wedges-shard": poll_wedges_shard,
    "full-tables-stay-full": full_tables_stay_full,
    "refusals-forgotten": refusals_forgotten,
    "waiters-overflow-frame": waiters_overflow_frame,
    "committed-replies-not-told": committed_replies_not_told,
    "failed-host-hangs": failed_host_hangs,
    "woken-queue-forgotten": woken_queue_forgotten,
    "duplicates-not-remembered": duplicates_not_remembered,
    "purge-of-nothing-is-of-all": purge_of_nothing_is_of_all,
    "deleted-queues-leak": deleted_queues_leak,
}
