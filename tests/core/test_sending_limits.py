"""What does not fit into a record is refused before it is written."""

from __future__ import annotations

import pytest

from batonq.core.commands import Accepted, Send
from batonq.errors import InvalidInput
from tests.core.rig import Bench


@pytest.mark.parametrize("fields", [{"max_receives": 256}, {"max_receives": -1}, {"priority": 256}, {"priority": -1}])
def test_a_number_that_has_no_room_in_its_byte_is_refused(fields: dict[str, int]) -> None:
    bench = Bench()
    bench.queue(1)
    bench.queue(2)
    (refused,) = bench.send(1, "a", group="g", **fields)
    assert isinstance(refused, InvalidInput) and "0 to 255" in refused.message
    (taken,) = bench.send(1, "b", max_receives=255, priority=255)
    assert not isinstance(taken, InvalidInput)
    assert [view.maximum for view in bench.messages(1)] == [255]
    assert bench.waiting(2) == []
    bench.check()


def test_the_messages_of_a_full_shard_are_counted_once_per_group(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.limit(slots_max=4)
    bench.queue(1)
    bench.send(1, "a", "b", "c")
    living, counted = bench.shard.messages.living, []

    def counting() -> int:
        counted.append(1)
        return living()

    monkeypatch.setattr(bench.shard.messages, "living", counting)
    outcomes = bench.shard.send([Send(1, [b"x"]) for _ in range(20)], bench.now)
    accepted = [isinstance(outcome.results()[0], Accepted) for outcome in outcomes]
    assert accepted == [True] + [False] * 19
    assert len(counted) == 1
    bench.check()
