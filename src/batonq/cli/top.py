"""`baton top`: a live view of all queues in the terminal. `--once` prints it once, for scripts."""

from __future__ import annotations

import argparse
import os
import select
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from batonq.cli.connection import Server, add_connection_arguments, connect
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.output import cut, duration, moment, print_json, printable, rate, spark
from batonq.cli.quantities import parse_duration_s
from batonq.cli.queue import SORTS, list_queues
from batonq.errors import AccessDenied, BatonError
from batonq.quantities import plural

INTERVAL_S = 2.0
INTERVAL_MIN_S = 0.2
ROWS_MAX = 200
ONCE_SIZE = (80, 24)
NAME_WIDTH_MIN = 14
TREND_WIDTH = 20
_NUMBERS = (
    ("VISIBLE", 8, "visible"),
    ("FLIGHT", 7, "inFlight"),
    ("DELAY", 6, "delayed"),
    ("DEAD", 5, "dead"),
    ("OLDEST", 6, "oldest"),
    ("SENT/S", 6, "sent"),
    ("RECV/S", 6, "received"),
    ("ACK/S", 5, "acked"),
)
_NUMBERS_WIDTH = sum(width + 1 for _, width, _ in _NUMBERS)
_UNITS = "kMGTP"
_KEYS = "q quit   s sort   r reverse   ↑↓ scroll   space refresh"
ENTER_SCREEN, LEAVE_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


@dataclass
class View:
    """What is shown, and how."""

    sort: str = "depth"
    reverse: bool = False
    search: str | None = None
    first: int = 0  # the first row on the screen
    queues: list[dict[str, Any]] = field(default_factory=list)
    total: int = 0
    status: dict[str, Any] | None = None
    at_ms: int = 0
    problem: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("search", metavar="TEXT", nargs="?", help="only queues whose name contains this text")
    parser.add_argument("--sort", choices=SORTS, default="depth", help="order of the queues (default depth)")
    parser.add_argument("--reverse", action="store_true", help="reverse the order")
    parser.add_argument(
        "--interval",
        type=parse_duration_s,
        default=INTERVAL_S,
        metavar="TIME",
        help="pause between updates (default 2s)",
    )
    parser.add_argument("--once", action="store_true", help="print one screen and exit")
    parser.add_argument("--json", action="store_true", help="print the figures once as JSON and exit")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.interval < INTERVAL_MIN_S:
        raise WrongUsage(f"--interval must be at least {INTERVAL_MIN_S:g}s.")
    server = connect(arguments)
    view = View(arguments.sort, arguments.reverse, arguments.search)
    if arguments.once or arguments.json:
        _refresh(server, view)
        if arguments.json:
            print_json({"status": view.status, "total": view.total, "atMs": view.at_ms, "queues": view.queues})
            return 0
        width, height = tuple(shutil.get_terminal_size(ONCE_SIZE)) if sys.stdout.isatty() else ONCE_SIZE
        for line in render(view, server.url, width, max(height, 5 + len(view.queues) + 1), keys=False):
            print(line)
        return 0
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise WrongUsage("`baton top` needs a terminal. Use `baton top --once` in a script.")
    return _watch(server, view, arguments.interval)


def _refresh(server: Server, view: View) -> None:
    found = list_queues(server, search=view.search, sort=view.sort, reverse=view.reverse, limit=ROWS_MAX)
    view.queues, view.total, view.at_ms = found["queues"], found["total"], found["atMs"]
    try:
        view.status = server.get("/v1/status")
    except AccessDenied:  # a key of another account sees its own queues only
        view.status = None


# --- the screen -------------------------------------------------------------------------------


def render(view: View, url: str, width: int, height: int, *, keys: bool = True) -> list[str]:
    """The screen as lines, at most `width` wide and `height` high."""
    lines = [_verdict(view, url), _totals(view), ""]
    trend = width >= NAME_WIDTH_MIN + _NUMBERS_WIDTH + TREND_WIDTH + 12
    name_width = max(NAME_WIDTH_MIN, width - _NUMBERS_WIDTH - (TREND_WIDTH + 2 if trend else 0))
    heads = [_head(title, name, view, each) for title, each, name in _NUMBERS]
    lines.append("QUEUE".ljust(name_width) + "".join(heads) + ("  LAST 15 MINUTES" if trend else ""))
    room = max(1, height - len(lines) - (1 if keys else 0))
    view.first = max(0, min(view.first, len(view.queues) - room))
    shown = view.queues[view.first : view.first + room]
    lines += [_row(queue, name_width, trend=trend) for queue in shown]
    if not shown:
        lines.append("No queues." if not view.search else f"No queue contains {view.search!r} in its name.")
    if keys:
        lines += [""] * (height - len(lines) - 1)
        hidden = view.total - len(shown)
        more = f"   {hidden:,} more queues" if hidden > 0 else ""
        lines.append(view.problem or _KEYS + more)
    return [cut(line, width) for line in lines]


def _verdict(view: View, url: str) -> str:
    sentence = printable(view.status["verdict"]["sentence"]) if view.status else f"Queues at {url}"
    return f"{moment(view.at_ms)[11:]}  {sentence}"


def _totals(view: View) -> str:
    source = view.status
    if source is None:
        names = ("visible", "inFlight", "sentPerSecond", "ackedPerSecond")
        source = {name: sum(queue.get(name) or 0 for queue in view.queues) for name in names}
    text = (
        f"{plural(view.total, 'queue')}  {source['visible']:,} visible  {source['inFlight']:,} in flight  "
        f"{rate(source['sentPerSecond'])} sent/s  {rate(source['ackedPerSecond'])} acked/s"
    )
    if view.status:
        text += f"  {source['deadLetters']:,} dead letters  {source['alarms']['active']} alarms"
    return text


def _head(title: str, name: str, view: View, width: int) -> str:
    mark = "*" if name == view.sort else ""
    return f"{mark}{title}".rjust(width + 1)


def _row(queue: dict[str, Any], name_width: int, *, trend: bool) -> str:
    oldest = queue.get("oldestAgeSeconds") or 0
    cells = (
        str(queue["visible"]),
        str(queue["inFlight"]),
        str(queue["delayed"]),
        str(queue["dead"]),
        duration(oldest) if oldest else "-",
        rate(queue.get("sentPerSecond")),
        rate(queue.get("receivedPerSecond")),
        rate(queue.get("ackedPerSecond")),
    )
    numbers = "".join(_short(cell, width).rjust(width + 1) for cell, (_, width, _) in zip(cells, _NUMBERS, strict=True))
    mark = {"warning": "! ", "critical": "!! "}.get(queue.get("level", "ok"), "")
    line = cut(mark + printable(queue["name"]), name_width - 1).ljust(name_width) + numbers
    return f"{line}  {spark((queue.get('trend') or [])[-TREND_WIDTH:])}" if trend else line


def _short(text: str, width: int) -> str:
    """A cell that fits: 1234567 in six characters is 1.2M."""
    if len(text) <= width or not text.isdigit():
        return cut(text, width)
    value, unit = float(text), 0
    while value >= 1000 and unit < len(_UNITS):
        value /= 1000
        unit += 1
    return f"{value:.1f}{_UNITS[unit - 1]}" if value < 100 else f"{value:.0f}{_UNITS[unit - 1]}"


# --- the terminal -----------------------------------------------------------------------------


@contextmanager
def _screen() -> Iterator[int]:
    """The alternate screen, with keys that arrive one by one. The terminal is restored in any case."""
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setcbreak(handle)
        sys.stdout.write(ENTER_SCREEN)
        yield handle
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
        sys.stdout.write(LEAVE_SCREEN)
        sys.stdout.flush()


def _watch(server: Server, view: View, interval_s: float) -> int:
    _refresh(server, view)  # a server that cannot be reached is an error before the screen changes
    with _screen() as handle:
        while True:
            width, height = shutil.get_terminal_size(ONCE_SIZE)
            lines = render(view, server.url, width, height)
            sys.stdout.write("\x1b[H" + "\r\n".join(f"{line}\x1b[K" for line in lines) + "\x1b[J")
            sys.stdout.flush()
            if not _wait(handle, view, interval_s):
                return 0
            try:
                _refresh(server, view)
                view.problem = ""
            except BatonError as problem:
                view.problem = printable(problem.message)


def _wait(handle: int, view: View, interval_s: float) -> bool:
    """Handle keys until the next update. Returns False if the user quits."""
    end = time.monotonic() + interval_s
    while (left := end - time.monotonic()) > 0:
        if not select.select([handle], [], [], left)[0]:
            return True
        keys = os.read(handle, 64)
        if not keys or b"q" in keys or b"\x03" in keys:
            return False
        if press(view, keys):
            return True
    return True


def press(view: View, keys: bytes) -> bool:
    """Apply keys to the view. Returns whether the figures must be read again."""
    if keys.startswith(b"s"):
        view.sort, view.first = SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)], 0
    elif keys.startswith(b"r"):
        view.reverse = not view.reverse
    elif keys.startswith((b"\x1b[B", b"j")):
        view.first += 1
    elif keys.startswith((b"\x1b[A", b"k")):
        view.first = max(0, view.first - 1)
    elif not keys.startswith(b" "):
        return False
    return True
