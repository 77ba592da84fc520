"""Bugs to plant into a cluster, to check that the checkers find them: see sim/bugs.py."""

from __future__ import annotations

from collections.abc import Callable

from batonq.errors import BatonError, NotOwner
from batonq.log import fencing
from batonq.log.backend import Backend
from batonq.log.frames import Frame
from batonq.log.jetstream.leases import JetStreamLeases
from batonq.node.cluster.peers import ClosedUnanswered, NoAnswer, NotSent, Peers
from sim.bugs import epoch_not_compared, release_before_commit
from sim.cluster.forwarding_bugs import FORWARDING_BUGS
from sim.cluster.takeover_bugs import TAKEOVER_BUGS
from sim.patches import Patches
from sim.payload_bugs import objects_of_moved_messages_swept


def append_epoch_not_checked() -> Patches:
    """Any frame at the position where an append was refused counts as that append, even a later owner's frame."""
    look = fencing._look

    async def lenient(backend: Backend, frame: Frame, tail_epoch: int) -> str:
        if await backend.find(frame.number) is not None:
            return fencing._COMMITTED
        return await look(backend, frame, tail_epoch)

    return [(fencing, "_look", lenient)]


def lease_epoch_ignored() -> Patches:
    """A node renews a lease without checking who holds it by now."""

    async def renew(self: JetStreamLeases, shard: int) -> None:
        held = self._held[shard]
        key = f"owner.{shard}"
        value = await self._bucket.get(key)
        renewed = await self._bucket.put(key, self._text(held.epoch), value.revision, self._ttl_s)
        if renewed is not None:
            self._held[shard] = held._replace(revision=renewed)

    return [(JetStreamLeases, "_renew", renew)]


def _repeats_by_itself(told: type[BatonError]) -> Patches:
    """A call that was written to a kept connection is retried on a new one. If the retry raises `told`, that is taken
    as proof that the call did not run.
    """
    ask = Peers.ask

    async def ask_twice(self: Peers, address: str, path: str, call: str, body: bytes, timeout_s: float) -> bytes:
        try:
            return await ask(self, address, path, call, body, timeout_s)
        except ClosedUnanswered:
            for line in self._idle.pop(address, ()):
                line.close()
        try:
            return await ask(self, address, path, call, body, timeout_s)
        except (NotSent, NotOwner) as problem:
            if isinstance(problem, told):
                raise
            raise NoAnswer(problem.message) from None

    return [(Peers, "ask", ask_twice)]


def reconnect_counts_as_not_sent() -> Patches:
    """A node that has run a call and died is treated as one that was never called."""
    return _repeats_by_itself(NotSent)


def restarted_node_counts_as_not_asked() -> Patches:
    """A node that has run a call, died and restarted reports that it is not the owner, so the next owner is called."""
    return _repeats_by_itself(NotOwner)


CLUSTER_BUGS: dict[str, Callable[[], Patches]] = {
    "append-epoch-not-checked": append_epoch_not_checked,
    "release-before-commit": release_before_commit,
    "lease-epoch-ignored": lease_epoch_ignored,
    "epoch-not-compared": epoch_not_compared,
    "reconnect-counts-as-not-sent": reconnect_counts_as_not_sent,
    "restarted-node-counts-as-not-asked": restarted_node_counts_as_not_asked,
    **FORWARDING_BUGS,
    **TAKEOVER_BUGS,
    "objects-of-moved-messages-swept": objects_of_moved_messages_swept,
}
