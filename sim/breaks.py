"""Receives that fail: the shard discards the open frame and recovers from its log, as after any internal error.

Either a client's receive fails, or a receive for a long poll, which runs while a frame is sealed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batonq.core.shard.commands.receive import ReceiveCommands
from batonq.node.shard_host.host import ShardHost
from sim.loop import Life, current_life
from sim.patches import Patches


class BrokenOff(Exception):
    """The error of a command that the simulator made fail."""


def receives_that_break_off() -> Patches:
    """Make receives fail. Each life of a node sets after how many receives one fails. A life can also make the next
    receive for a long poll fail, while the outcomes of committed frames are still to be released.
    """
    run = ShardHost.run

    def run_or_break_off(self: ShardHost, command: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        life = current_life()
        if life is None or not _breaks_off(life, self, command):
            return run(self, command, *arguments, **named)

        def breaks_off() -> None:
            command(*arguments, **named)
            raise BrokenOff("a receive broke off")

        return run(self, breaks_off)

    return [(ShardHost, "run", run_or_break_off)]


def _breaks_off(life: Life, host: ShardHost, command: Callable[..., Any]) -> bool:
    receive = getattr(command, "__func__", None)
    if life.poll_breaks and receive is ReceiveCommands.receive_at and (host.commit._released or host.commit._replies):
        life.poll_breaks = False
        return True
    if life.receives_left < 0 or receive is not ReceiveCommands.receive:
        return False
    life.receives_left -= 1
    return life.receives_left < 0
