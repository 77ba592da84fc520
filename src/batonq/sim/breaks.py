"""Commands that break off: the shard abandons what is open and starts over from its log, as after any error of its own.

It is receives that do, because they run everywhere: for a client, and for those who wait while a frame is sealed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batonq.core.shard.machine import Shard
from batonq.node.hosting import Hosting
from batonq.sim.loop import current_life
from batonq.sim.patches import Patches

RECEIVES = (Shard.receive, Shard.receive_at)


class BrokenOff(Exception):
    """A command broke off, because the simulator wanted it to."""


def receives_that_break_off() -> Patches:
    """Each life of a node says after how many receives one of them breaks off (see Life.receives_left)."""
    run = Hosting.run

    def run_or_break_off(self: Hosting, command: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        life = current_life()
        if life is None or life.receives_left < 0 or getattr(command, "__func__", None) not in RECEIVES:
            return run(self, command, *arguments, **named)
        life.receives_left -= 1
        if life.receives_left >= 0:
            return run(self, command, *arguments, **named)

        def breaks_off() -> None:
            command(*arguments, **named)
            raise BrokenOff("a receive broke off")

        return run(self, breaks_off)

    return [(Hosting, "run", run_or_break_off)]
