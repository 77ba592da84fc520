"""What does not fit into a record is refused before it is written."""

from __future__ import annotations

import pytest

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
