"""Tables, quantities, progress bars and the screen of `baton top`: what is printed, without a server."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from batonq import quantities
from batonq.cli import output, top
from batonq.cli.confirm import NotConfirmed, confirm
from batonq.cli.exit_codes import MEANINGS, Unreachable, WrongUsage, exit_code_of
from batonq.cli.progress import Progress
from batonq.errors import AccessDenied, BatonError, InvalidInput, JobNotFound, QueueDoesNotExist
from tests.cli.support import Terminal

# --- quantities -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.04, "0s"),
        (0.25, "0.2s"),
        (2, "2s"),
        (9.96, "10s"),
        (45, "45s"),
        (60, "1m"),
        (200, "3m20s"),
        (7_500, "2h5m"),
        (86_400, "1d"),
        (356_400, "4d3h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert output.duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (812, "812 B"), (1536, "1.5 KiB"), (3 << 30, "3 GiB"), (1 << 60, "1024 PiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert output.size(count) == text


def test_counts_rates_and_times() -> None:
    assert [quantities.plural(1, "message"), quantities.plural(2_000, "message")] == ["1 message", "2,000 messages"]
    assert [output.rate(None), output.rate(0), output.rate(0.25), output.rate(1234.5)] == ["-", "0", "0.2", "1234"]
    assert [output.moment(None), output.moment(1_794_942_000_000)] == ["", "2026-11-17 19:00:00"]


# --- text of strangers ------------------------------------------------------------------------

CORPUS = ("\x1b[2J", "\x07", "\u202eevil", "a\rb", "\x9b31m", "\u2028", "\ud800", "\x00")


@pytest.mark.parametrize("text", CORPUS)
def test_no_control_character_reaches_a_terminal(text: str) -> None:
    shown = [output.printable(text), output.safe_lines(text), *output.table(("HEAD",), [(text,)])]
    for line in shown:
        assert all(letter.isprintable() for letter in line), repr(line)


def test_a_table_is_aligned_and_cut_on_a_terminal() -> None:
    rows = [("orders", "5", "a long note that does not fit"), ("x", "12345", "")]
    assert list(output.table(("QUEUE", "DEPTH", "NOTE"), rows, right=("DEPTH",), width=30)) == [
        "QUEUE   DEPTH  NOTE",
        "orders      5  a long note th…",
        "x       12345",
    ]
    assert list(output.table(("Q",), [("long " * 50,)]))[1] == ("long " * 50).rstrip()


def test_optional_columns_are_left_out_where_there_is_no_room() -> None:
    head, rows = ("QUEUE", "TYPE", "DEPTH", "NOTE"), [["orders", "standard", "5", "late"]]
    assert output.fitting(head, rows, 80, ("TYPE", "DEPTH")) == (head, rows)
    assert output.fitting(head, rows, 35, ("TYPE", "DEPTH")) == (["QUEUE", "DEPTH", "NOTE"], [["orders", "5", "late"]])
    assert output.fitting(head, rows, 10, ("TYPE", "DEPTH"))[0] == ["QUEUE", "NOTE"]


def test_bars_over_time_keep_every_peak() -> None:
    values = [0.0] * 100
    values[37] = 8.0
    condensed = output.condensed(values, 10)
    assert condensed == [0, 0, 0, 8, 0, 0, 0, 0, 0, 0] and output.spark(condensed) == "▁▁▁█▁▁▁▁▁▁"
    assert output.condensed([1, None, 3], 10) == [1, None, 3] and output.condensed([], 10) == []


# --- progress ---------------------------------------------------------------------------------


def test_a_progress_bar_is_only_for_terminals() -> None:
    quiet, shown = io.StringIO(), Terminal()
    for stream in (quiet, shown):
        with Progress("Sending", 200, stream) as bar:
            bar.update(50)
    assert quiet.getvalue() == ""
    said = shown.getvalue()
    assert said.startswith("\rSending  [######..................]  50 of 200") and said.endswith("\x1b[K")
    assert Progress("Moving", 0, quiet).line(1_500, 3.0) == "Moving  [........................]  1,500"
    assert Progress("Moving", 100, quiet).line(25, 10.0) == "Moving  [######..................]  25 of 100  30s left"


# --- asking, exit codes -----------------------------------------------------------------------


def test_confirm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    confirm("This deletes all.", yes=True)
    monkeypatch.setattr("sys.stdin", io.StringIO("yes\n"))
    with pytest.raises(WrongUsage, match=r"This deletes all\. Nothing was changed: add --yes"):
        confirm("This deletes all.", yes=False)
    for answer, agreed in (("yes\n", True), ("Y\n", True), ("no\n", False), ("", False)):
        keyboard = Terminal(answer)
        monkeypatch.setattr("sys.stdin", keyboard)
        if agreed:
            confirm("This deletes all.", yes=False)
        else:
            with pytest.raises(NotConfirmed):
                confirm("This deletes all.", yes=False)
    assert capsys.readouterr().err.startswith("This deletes all.\nContinue? [y/N] ")


def test_exit_codes() -> None:
    problems = [
        BatonError(),
        InvalidInput(),
        WrongUsage(),
        QueueDoesNotExist(),
        JobNotFound(),
        Unreachable(),
        AccessDenied(),
    ]
    assert [exit_code_of(problem) for problem in problems] == [1, 1, 2, 3, 3, 4, 5]
    assert sorted(MEANINGS) == [0, 1, 2, 3, 4, 5, 6, 130]


# --- top --------------------------------------------------------------------------------------


def summary(name: str, visible: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "visible": visible, "inFlight": 0, "delayed": 0, "dead": 0, "level": "ok", **more}


def view(count: int = 3) -> top.View:
    queues = [summary(f"queue-{place}", place, oldestAgeSeconds=place * 100) for place in range(count)]
    return top.View(queues=queues, total=count, at_ms=1_794_942_000_000)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 10), (20, 6)])
def test_the_screen_fits(width: int, height: int) -> None:
    lines = top.render(view(100), "http://x", width, height)
    assert len(lines) == height and all(len(line) <= width for line in lines)
    assert lines[0].startswith("19:00:00  Queues at")


def test_the_screen_shows_order_level_and_trend() -> None:
    shown = view()
    shown.sort = "visible"
    shown.queues[0] |= {"level": "critical", "visible": 1_234_567_890, "trend": [0, 5, 10] * 7}
    lines = top.render(shown, "http://x", 120, 24)
    assert "*VISIBLE" in lines[3] and lines[3].endswith("LAST 15 MINUTES")
    assert lines[4].startswith("!! queue-0 ") and " 1.2G " in lines[4] and lines[4].endswith("▁▅█")
    assert "3m20s" in lines[6]
    assert output.spark([]) == "" and output.spark([0, None]) == "▁ "


def test_keys_of_top() -> None:
    shown = view(100)
    assert top.press(shown, b"s") and shown.sort == "name"
    assert top.press(shown, b"r") and shown.reverse
    assert top.press(shown, b"\x1b[B") and shown.first == 1
    assert top.press(shown, b"\x1b[A") and top.press(shown, b"k") and shown.first == 0
    assert not top.press(shown, b"x") and top.press(shown, b" ")
    shown.first = 1_000
    assert "queue-99" in top.render(shown, "http://x", 80, 24)[-2]


def test_json_cannot_change_what_a_terminal_shows(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = {"a\x9b31m": "\x1b[2J\x7f\u202eevil\u2066 ü"}
    output.print_json(hostile)
    shown = capsys.readouterr().out
    assert all(letter.isprintable() for letter in shown.rstrip("\n")) and "ü" in shown
    assert json.loads(shown) == hostile
