"""Maps a customer's tier to the queue of its lane, and counts messages that arrived in the wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batonq.priorities import PRIORITIES, PRIORITY_MAX

# Named priority levels within one queue, as in REST. A lane is a queue, a level is not.
LEVELS: Mapping[str, int] = PRIORITIES


def level(name: str | int) -> int:
    """The number of a named priority level; a number from 0 to 255 is returned unchanged."""
    if isinstance(name, int) and not isinstance(name, bool) and 0 <= name <= PRIORITY_MAX:
        return name
    if isinstance(name, str) and name in LEVELS:
        return LEVELS[name]
    raise ValueError(f"a priority must be a number from 0 to 255 or one of {', '.join(LEVELS)}, not {name!r}")


class Router:
    """Producers call `queue_for(tier)`; a worker with this router counts messages whose tier belongs to another queue.

    Without it, wrong routing goes unnoticed: a paid customer's message waits in the slow lane, and nothing fails.
    """

    def __init__(self, queues: Mapping[str, str], default: str | None = None, attribute: str = "tier") -> None:
        if not queues:
            raise ValueError("a router needs at least one tier")
        if default is not None and default not in queues:
            raise ValueError(f"the default tier {default!r} is not one of {', '.join(queues)}")
        self.queues = dict(queues)
        self.default = default
        self.attribute = attribute
        self.unknown = 0  # requests for an unknown tier
        self.misrouted: dict[tuple[str, str], int] = {}  # (tier, queue in which it arrived) → number of messages

    def queue_for(self, tier: str) -> str:
        queue = self.queues.get(tier)
        if queue is not None:
            return queue
        self.unknown += 1
        if self.default is None:
            raise ValueError(f"there is no queue for tier {tier!r}; the tiers are {', '.join(self.queues)}")
        return self.queues[self.default]

    def check(self, message: Any) -> bool:
        """Whether the message arrived in its tier's queue; messages without a known tier are ignored."""
        tier = message.attributes.get(self.attribute) if message.attributes else None
        wanted = self.queues.get(tier) if isinstance(tier, str) else None
        if wanted is None or wanted == message.queue:
            return True
        key = (str(tier), str(message.queue))
        self.misrouted[key] = self.misrouted.get(key, 0) + 1
        return False
