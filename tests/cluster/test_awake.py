"""Whether a node was awake."""

from __future__ import annotations

from batonq.node.cluster.pause_detector import ASLEEP_S, Awake


def test_a_node_is_awake_until_it_misses_its_beats_and_that_is_not_forgotten() -> None:
    now_s = [100.0]
    awake = Awake(lambda: now_s[0])
    for _ in range(10):
        now_s[0] += ASLEEP_S / 2
        awake.beat()
    assert awake.since(100.0)
    assert not awake.since(99.0), "before it was there"
    now_s[0] += 2 * ASLEEP_S
    assert not awake.since(100.0), "before the first beat, too"
    awake.beat()
    assert not awake.since(100.0)
    assert awake.since(now_s[0])
