"""A lane's policy as one line of text."""

from __future__ import annotations

import pytest

from batonq.errors import InvalidInput
from batonq.scaling import Autoscale, Drain, KeepUp, Largest, Pace, PerWorker, Sla, Steps, parse_lane


def test_two_numbers_are_enough() -> None:
    assert Autoscale.parse("2:50") == Autoscale(2, 50, PerWorker(100), Pace())


def test_options() -> None:
    found = Autoscale.parse("0:9, per-worker=10, sla=60, rate=4, up=5, window=120, down=30, tolerance=0")
    assert found.policy == Largest((PerWorker(10), Sla(60, 4), KeepUp(4)))
    assert found.pace == Pace(up_cooldown_s=5, down_window_s=120, down_cooldown_s=30, tolerance=0)
    assert Autoscale.parse("1:2,steps=0:1/500:2").policy == Steps(((0, 1), (500, 2)))
    assert Autoscale.parse("1:2,drain=300,rate=1.5").policy == Largest((Drain(300, 1.5), KeepUp(1.5)))
    assert Autoscale.parse("1:2,interval=0.5").interval_s == 0.5


def test_a_lane() -> None:
    name, found = parse_lane("paid=5:50,per-worker=10")
    assert (name, found.minimum, found.maximum, found.policy) == ("paid", 5, 50, PerWorker(10))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "2:50"),
        ("2", "2:50"),
        ("a:b", "2:50"),
        ("50:2", "is not a valid range"),
        ("0:0", "is not a valid range"),
        ("2:50,", "is not an option"),
        ("2:50,speed=9", "per-worker="),
        ("2:50,latency=1000", "per-worker="),
        ("2:50,sla=", "is not an option"),
        ("2:50,sla=soon", "not a number"),
        ("2:50,sla=-1", "must be 0 or more"),
        ("2:50,sla=nan", "must be 0 or more"),
        ("2:50,sla=0", "greater than 0"),
        ("2:50,interval=0", "is too short"),
        ("2:50,sla=1,sla=2", "twice"),
        ("2:50,steps=0:1/x", "not a step"),
        ("2:50,steps=5:1", "must be for depth 0"),
    ],
)
def test_what_cannot_be_read_says_how_it_should_be(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        Autoscale.parse(text)


@pytest.mark.parametrize("text", ["2:50", "=2:50", "paid", "paid:5=1:2"])
def test_a_lane_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="QUEUE=MIN:MAX"):
        parse_lane(text)
