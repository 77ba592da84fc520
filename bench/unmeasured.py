"""`baton` without metrics and time series, to measure what they cost: python -m bench.unmeasured serve …

Nothing in Baton itself can be switched off. This module replaces what counts and samples by functions that do nothing.
What remains are the calls of these functions, some tens of nanoseconds each, a few times per request.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from batonq.api.http.server import HttpCounters
from batonq.cli import main
from batonq.core.shard.commands.new_messages import NewMessages
from batonq.core.shard.state.latencies import Latencies
from batonq.node import node
from batonq.node.broker import Broker
from batonq.node.monitoring.histogram import Histogram
from batonq.node.monitoring.process import LagMeter
from batonq.node.monitoring.sampler import SeriesKeeper


def _nothing(*_: Any, **__: Any) -> None:
    pass


async def _forever(*_: Any, **__: Any) -> None:
    await asyncio.Event().wait()


# What every request or message is counted by.
_COUNTING: tuple[tuple[Any, str], ...] = (
    *((Latencies, name) for name in ("received_first", "received", "deleted")),
    (NewMessages, "_count_overhead"),
    (Histogram, "observe"),
    (HttpCounters, "sent"),
    (Broker, "_count_empty"),
)
_COUNTED = [getattr(owner, name) for owner, name in _COUNTING]


def count(on: bool) -> None:
    """Switch the counting of requests and messages off, or on again."""
    for (owner, name), counting in zip(_COUNTING, _COUNTED, strict=True):
        setattr(owner, name, counting if on else _nothing)


def switch_off() -> None:
    """From now on nothing is measured in this process. For its start: samples are not taken either."""
    count(False)
    LagMeter.run = _forever  # type: ignore[method-assign]
    SeriesKeeper.run = _forever  # type: ignore[method-assign]
    vars(node)["watch_garbage"] = _nothing


if __name__ == "__main__":
    switch_off()
    sys.exit(main.main())
