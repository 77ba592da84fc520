"""The alarm book: one alarm per condition, acknowledgements, the history, limits, restarts, and damaged files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from batonq.errors import NotFound
from batonq.node.alarms.book import (
    HISTORY_MAX,
    KEPT_MS,
    NOTE_LENGTH_MAX,
    REMEMBERED_MS,
    Alarm,
    AlarmBook,
    alarm_id,
    merged,
    queue_id,
)
from batonq.node.alarms.store import AlarmStore

NOW_MS = 1_700_000_000_000


class Time:
    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def ruled(id: str = "depth.orders", severity: str = "warning", **given: Any) -> Alarm:
    fields = {"text": "many", "raised_ms": NOW_MS, "last_ms": NOW_MS, "ruled": True, **given}
    return Alarm(id=id, kind=id.partition(".")[0], severity=severity, **fields)


def ids(book: AlarmBook) -> list[str]:
    return [alarm.id for alarm in book.active()]


def test_an_alarm_is_one_condition_however_often_it_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    time = Time()
    book = AlarmBook(time, 10)
    for _ in range(3):
        book.put("disk-full", "the disk is full", of=0)
        time.now_ms += 1
    (alarm,) = book.active()
    assert (alarm.id, alarm.count, alarm.raised_ms, alarm.last_ms) == ("disk-full.0", 3, NOW_MS, NOW_MS + 2)
    assert len(caplog.records) == 1 and book.raised == 3
    book.put("disk-full", "the disk is still full", of=0)
    assert len(caplog.records) == 2 and book.active()[0].text == "the disk is still full"
    assert alarm.severity == "critical" and "Free disk space" in alarm.remedy and alarm.runbook.endswith("#disk-full")
    book.clear("disk-full", 0)
    book.clear("disk-full", 0)
    assert book.active() == [] and [alarm.ended_ms for alarm in book.history] == [time.now_ms]


def test_an_alarm_that_nobody_renews_ends_unless_a_rule_watches_it() -> None:
    time = Time()
    book = AlarmBook(time, 10)
    book.put("lease-store", "unreachable")
    book.renew(ruled())
    time.now_ms += KEPT_MS
    assert len(book.active()) == 2
    time.now_ms += 1
    assert ids(book) == ["depth.orders"] and [alarm.id for alarm in book.history] == ["lease-store"]


def test_the_most_severe_alarm_comes_first_and_a_full_book_prefers_it() -> None:
    time = Time()
    book = AlarmBook(time, 2)
    book.renew(ruled("depth.a", "info"))
    time.now_ms += 1
    book.renew(ruled("depth.b", raised_ms=time.now_ms))
    book.renew(ruled("depth.c"))  # in place of a
    assert ids(book) == ["depth.b", "depth.c"] and book.history[0].id == "depth.a"
    for _ in range(3):
        book.renew(ruled("depth.d"))  # no more severe than the others
    assert ids(book) == ["depth.b", "depth.c"] and book.left_out == 3
    book.renew(ruled("depth.e", "critical"))
    assert ids(book)[0] == "depth.e" and len(book.active()) == 2


def test_listeners_learn_of_every_change() -> None:
    told: list[tuple[str, str]] = []
    book = AlarmBook(Time(), 10)
    book.listeners.append(lambda event, alarm: told.append((event, alarm.severity)))
    book.renew(ruled())
    book.renew(ruled(text="more"))
    book.acknowledge("depth.orders", "ann")
    book.renew(ruled(severity="critical"))
    book.renew(ruled(severity="warning"))
    book.end("depth.orders")
    assert told == [
        ("raised", "warning"),
        ("acknowledged", "warning"),
        ("raised", "critical"),
        ("cleared", "warning"),
    ]


def test_an_acknowledgement_says_who_when_and_why_and_ends_when_it_becomes_worse() -> None:
    time = Time()
    book = AlarmBook(time, 10)
    book.renew(ruled())
    time.now_ms += 5
    alarm = book.acknowledge("depth.orders", "ann", "x" * 1_000)
    assert (alarm.acknowledged_by, alarm.acknowledged_ms, alarm.note) == ("ann", NOW_MS + 5, "x" * NOTE_LENGTH_MAX)
    book.renew(ruled(text="more"))
    assert book.active()[0].acknowledged_by == "ann"
    book.renew(ruled(severity="critical"))
    assert (alarm.acknowledged_by, alarm.acknowledged_ms, alarm.note) == ("", 0, "")
    with pytest.raises(NotFound, match=r"No alarm 'depth.other' is active. List the active alarms to see their ids."):
        book.acknowledge("depth.other", "ann")


def test_the_history_is_bounded() -> None:
    book = AlarmBook(Time(), 10)
    for number in range(HISTORY_MAX + 5):
        book.renew(ruled(f"depth.{number}"))
        book.end(f"depth.{number}")
    assert len(book.history) == HISTORY_MAX and book.history[0].id == f"depth.{HISTORY_MAX + 4}"


def test_ids_are_usable_in_a_url() -> None:
    assert alarm_id("clock-off") == "clock-off"
    assert alarm_id("depth", "a b/ä:c" + "x" * 500) == "depth.a-b-c" + "x" * 195
    assert queue_id("orders.fifo", "111", "000") == "orders.fifo@111" and queue_id("orders", "0", "0") == "orders"
    book = AlarmBook(Time(), 10, "n1")
    book.put("clock-off", "it is off")
    assert ids(book) == ["clock-off@n1"] and book.active()[0].node == "n1"
    book.clear("clock-off")
    assert ids(book) == []


def test_alarms_of_several_nodes_are_one_list() -> None:
    both = merged([ruled("depth.a"), ruled("depth.b", "critical"), ruled("depth.a", text="newer")])
    assert [(alarm.id, alarm.text) for alarm in both] == [("depth.b", "many"), ("depth.a", "newer")]


# --- restarts


def reopened(path: Path, time: Time) -> AlarmBook:
    book = AlarmBook(time, 10)
    book.restore(AlarmStore(str(path)).load())
    return book


def test_a_restart_keeps_alarms_acknowledgements_and_history(tmp_path: Path) -> None:
    time = Time()
    book = AlarmBook(time, 10)
    book.renew(ruled())
    book.acknowledge("depth.orders", "ann", "on it")
    book.put("channel-stopped", "stuck", of="0-1")
    book.acknowledge("channel-stopped.0-1", "bob")
    book.put("lease-store", "away")
    book.renew(ruled("depth.ended"))
    book.end("depth.ended")
    asyncio.run(AlarmStore(str(tmp_path)).save(book.saved()))
    assert (tmp_path / "alarms.json").stat().st_mode & 0o777 == 0o600

    time.now_ms += 1_000
    again = reopened(tmp_path, time)
    (alarm,) = again.active()  # the others were seen by the process that ended
    assert (alarm.id, alarm.acknowledged_by, alarm.note) == ("depth.orders", "ann", "on it")
    assert [alarm.id for alarm in again.history] == ["depth.ended"]
    told: list[str] = []
    again.listeners.append(lambda event, alarm: told.append(event))
    again.put("channel-stopped", "stuck", of="0-1")
    known = again.get("channel-stopped.0-1")
    assert known is not None and (known.acknowledged_by, known.raised_ms, known.count) == ("bob", NOW_MS, 2)
    assert told == []  # it is not new
    time.now_ms += REMEMBERED_MS + 1
    again.active()
    assert [alarm.id for alarm in again.history] == ["lease-store", "depth.ended"]
    assert again.history[0].ended_ms == NOW_MS


def test_a_clock_that_is_set_back_puts_no_alarm_into_the_future() -> None:
    time = Time()
    book = AlarmBook(time, 10)
    book.renew(ruled())
    time.now_ms -= 10_000
    again = AlarmBook(time, 10)
    again.restore(book.saved())
    assert [(alarm.raised_ms, alarm.last_ms) for alarm in again.active()] == [(time.now_ms, time.now_ms)]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"active": [{"id": 5}]}', b'{"active": 7}', b"\xff\xfe", b'{"usual": {"a": ["x", 1]}}'],
)
def test_a_damaged_file_costs_the_history_and_nothing_else(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "alarms.json").write_bytes(content)
    book = reopened(tmp_path, Time())
    assert book.active() == [] and not book.history
    assert "cannot be read" in caplog.text


def test_alarms_of_another_release_are_left_out(tmp_path: Path) -> None:
    store = AlarmStore(str(tmp_path), "p1")
    book = AlarmBook(Time(), 10)
    book.renew(ruled())
    saved = book.saved()
    saved.active.append(Alarm(id="x", kind="of-tomorrow", severity="warning", text="", raised_ms=1, last_ms=1))
    saved.history.append(Alarm(id="y", kind="depth", severity="dire", text="", raised_ms=1, last_ms=1))
    asyncio.run(store.save(saved))
    loaded = store.load()
    assert [alarm.id for alarm in loaded.active] == ["depth.orders"] and loaded.history == []
    assert (tmp_path / "alarms-p1.json").exists()


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(AlarmStore(str(tmp_path / "missing")).save(AlarmBook(Time(), 1).saved()))
    assert "cannot be written" in caplog.text


def test_the_alarms_of_rules_move_with_the_rules() -> None:
    book = AlarmBook(Time(), 2)
    book.renew(ruled("depth.old"))
    book.put("lease-store", "away")
    book.evaluating = False
    assert ids(book) == ["lease-store"]
    book.adopt([ruled("depth.new"), ruled("depth.beyond the limit")])
    book.evaluating = True
    assert sorted(ids(book)) == ["depth.new", "lease-store"] and not book.history
