"""How long nodes wait for each other, where a test is not about that: far longer than any of them is kept waiting.

With its own limits a node answers without one that is slow, as it should; on a machine that has much else to do, any of
them may be slow at any time, and a test would see the one answer or the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

LONG_S = 120.0
LIMITS = (
    "batonq.node.cluster.catalog.CUT_OFF_S",
    "batonq.node.cluster.catalog.REACH_S",
    "batonq.node.cluster.catalog.REFRESH_S",
    "batonq.node.cluster.node.TAKE_S",
    "batonq.node.cluster.peers.CONNECT_S",
    "batonq.node.cluster.routing.CALL_S",
    "batonq.node.cluster.routing.OWNER_WAIT_S",
    "batonq.node.processes.catalog.TOLD_S",
    "batonq.node.monitoring.everywhere.ASK_S",
    "batonq.node.routing.forwarding.PATIENCE_S",
    "batonq.node.routing.splitter.FRESH_WAIT_S",
    "batonq.node.routing.splitter.RECENT_WAIT_S",
)


@contextmanager
def patient_nodes() -> Iterator[None]:
    """For the nodes of this process. They also ask each other what there is to receive each time anew: what another one
    told a moment ago may be out of date, and how long a moment is depends on the machine.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in LIMITS:
            patch.setattr(name, LONG_S)
        patch.setattr("batonq.node.routing.splitter.HINT_S", 0.0)
        yield
