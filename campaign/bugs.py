"""Bugs to be planted into a node's process, to see that the campaign finds them. Nothing of it is in the product."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nats.js.api import Header
from nats.js.errors import APIError

from batonq.log import fencing
from batonq.log.backend import Backend
from batonq.log.frames import Frame
from batonq.log.jetstream.backend import JetStreamBackend
from batonq.node.commit import Committed, GroupCommit
from batonq.sim.bugs import epoch_not_compared
from batonq.sim.patches import Patches


def append_not_fenced() -> Patches:
    """A frame is appended wherever the log ends, whoever has written there."""

    async def append(self: JetStreamBackend, frame: Frame) -> None:
        data = b"".join((frame.header, frame.rows, frame.variable))
        headers = {Header.EXPECTED_STREAM.value: self._stream}
        try:
            await self._ask(self._context.publish(self._subject, data, timeout=self._timeout_s, headers=headers))
        except APIError as refused:
            raise self._unsettled(refused) from None

    async def commit(
        backend: Backend,
        frame: Frame,
        tail_epoch: int,
        pauses: fencing.Pauses,
        on_trouble: Callable[[str], None],
    ) -> None:
        del tail_epoch, pauses, on_trouble
        await backend.append(frame)

    return [(JetStreamBackend, "append", append), (fencing, "commit", commit)]


def release_before_commit() -> Patches:
    """Everything is answered as soon as it is decided."""

    def point(self: GroupCommit) -> asyncio.Future[None] | None:
        self.kick()
        return None

    def call(self: GroupCommit, committed: Committed) -> None:
        self.kick()
        committed(None)

    def release(self: GroupCommit, future: asyncio.Future[None]) -> None:
        self.kick()
        if not future.done():
            future.set_result(None)

    return [(GroupCommit, "point", point), (GroupCommit, "call", call), (GroupCommit, "release", release)]


BUGS: dict[str, Callable[[], Patches]] = {
    "append-not-fenced": append_not_fenced,
    "release-before-commit": release_before_commit,
    "lease-epoch-ignored": epoch_not_compared,
}


def plant(name: str) -> None:
    """For as long as the process lives."""
    for target, attribute, value in BUGS[name]():
        setattr(target, attribute, value)
