"""Bugs to plant into large payloads: see sim/bugs.py."""

from __future__ import annotations

from collections.abc import Callable

from batonq.core.shard.state.stored_payloads import StoredPayloads
from batonq.errors import PayloadStoreUnavailable
from batonq.node.messages.payload_sweeper import PayloadSweeper
from batonq.payload_store import PayloadStore
from sim.patches import Patches


def objects_of_moved_messages_swept() -> Patches:
    """A message that was moved, such as a dead letter, does not count when the sweeper asks who needs an object."""

    def forget(self: StoredPayloads, *_: object) -> None:
        """Note nothing."""

    return [(StoredPayloads, "put_payload", forget), (StoredPayloads, "copy", forget)]


def failed_writes_count_as_stored() -> Patches:
    """A message is sent although its body could not be written to the store."""
    write = PayloadStore._write

    def write_anyhow(self: PayloadStore, name: str, data: bytes) -> None:
        try:
            write(self, name, data)
        except PayloadStoreUnavailable:
            return

    return [(PayloadStore, "_write", write_anyhow)]


def nothing_swept() -> Patches:
    """Objects that nobody needs stay in the store."""

    async def sweep(self: PayloadSweeper) -> int:
        return 0

    return [(PayloadSweeper, "sweep", sweep)]


PAYLOAD_BUGS: dict[str, Callable[[], Patches]] = {
    "objects-of-moved-messages-swept": objects_of_moved_messages_swept,
    "failed-writes-count-as-stored": failed_writes_count_as_stored,
    "nothing-swept": nothing_swept,
}
