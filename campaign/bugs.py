"""Bugs to plant in a node's process, to check that the campaign finds them. They are not part of the product."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nats.js.api import Header
from nats.js.errors import APIError

from batonq.log import fencing
from batonq.log.backend import Backend
from batonq.log.frames import Frame
from batonq.log.jetstream.backend import JetStreamBackend
from batonq.node.shard_host.group_commit import GroupCommit, Reply
from sim.bugs import epoch_not_compared
from sim.patches import Patches
from sim.topic_bugs import second_subscription_forgotten


def append_not_fenced() -> Patches:
    """A frame is appended at the end of the log, whoever has written there."""

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
    """Every request is answered as soon as it is decided."""

    def point(self: GroupCommit) -> asyncio.Future[None] | None:
        self.kick()
        return None

    def reply(self: GroupCommit, replies: list[Reply]) -> None:
        self.kick()
        for done, outcome in replies:
            done(outcome)

    def release(self: GroupCommit, future: asyncio.Future[None]) -> None:
        self.kick()
        if not future.done():
            future.set_result(None)

    return [(GroupCommit, "point", point), (GroupCommit, "reply", reply), (GroupCommit, "release", release)]


BUGS: dict[str, Callable[[], Patches]] = {
    "append-not-fenced": append_not_fenced,
    "release-before-commit": release_before_commit,
    "lease-epoch-ignored": epoch_not_compared,
    "copies-forgotten": second_subscription_forgotten,
}


def plant(name: str) -> None:
    """Plant the bug for the lifetime of the process."""
    for target, attribute, value in BUGS[name]():
        setattr(target, attribute, value)
