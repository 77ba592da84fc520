"""What a node gives to its catalog and to each of its shards."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from batonq.node.alarms.book import AlarmBook
from batonq.node.backup.front_holds import FrontHolds
from batonq.node.clock import Clock
from batonq.node.settings import Settings


@dataclass(slots=True, frozen=True)
class NodeContext:
    loop: asyncio.AbstractEventLoop
    clock: Clock
    settings: Settings
    cluster: int  # the cluster id in every frame
    alarms: AlarmBook
    holds: FrontHolds = field(default_factory=FrontHolds)
