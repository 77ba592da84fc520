"""Tracebacks of unexpected exceptions: one per place and pause, and the number of those in between."""

from __future__ import annotations

import logging

import pytest

from batonq.node.fault_log import PAUSE_S, PLACES_MAX, FaultLog


def fail(faults: FaultLog, error: Exception) -> None:
    try:
        raise error
    except Exception:
        faults.report("it failed: %s", "here")


def test_the_same_fault_again_is_only_counted(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 1000.0
    faults = FaultLog(logging.getLogger("batonq.test"), lambda: now_s)
    for _ in range(5):
        fail(faults, ValueError("x"))
    assert [record.getMessage() for record in caplog.records] == ["it failed: here"]
    assert caplog.records[0].exc_info is not None
    fail(faults, KeyError("another kind of error"))
    assert len(caplog.records) == 2
    now_s += PAUSE_S
    fail(faults, ValueError("x"))
    assert caplog.records[-1].getMessage() == "it failed: here (4 more since the last traceback from this line)"
    now_s += PAUSE_S
    fail(faults, ValueError("x"))
    assert caplog.records[-1].getMessage() == "it failed: here"


def test_it_remembers_a_bounded_number_of_places(caplog: pytest.LogCaptureFixture) -> None:
    faults = FaultLog(logging.getLogger("batonq.test"), lambda: 0.0)
    for number in range(PLACES_MAX + 50):
        fail(faults, type(f"Error{number}", (Exception,), {})())
    assert len(caplog.records) == PLACES_MAX + 50
    assert len(faults._reported) <= PLACES_MAX
