"""What commands print: tables, JSON, times, sizes, and text from messages made safe for a terminal."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

ELLIPSIS = "…"
CELL_WIDTH_MIN = 8
LAST_WIDTH_WANTED = 16
GAP = "  "
_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "reverse": "7"}
# Control characters that JSON may contain, line separators, and marks that change the direction of text.
_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_BARS = "▁▂▃▄▅▆▇█"
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def printable(text: str) -> str:
    """Text from a message, made safe for a terminal: on one line, without control characters."""
    return "".join(letter if letter.isprintable() else " " if letter.isspace() else "\ufffd" for letter in text)


def safe_lines(text: str) -> str:
    """Like `printable`, but lines and tabs are kept."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)


def print_json(value: Any) -> None:
    """Indented on a terminal, on one line in a pipe or a file."""
    print(json_text(value, indent=2 if sys.stdout.isatty() else None), flush=True)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON in which every character that could change what a terminal shows is escaped, not only the first 32."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def note(text: str) -> None:
    """A remark for people: on standard error, so that it never mixes with results."""
    print(text, file=sys.stderr, flush=True)


def style(text: str, name: str) -> str:
    """Text with a colour or weight, if standard output is a terminal and NO_COLOR is not set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_STYLES[name]}m{text}\x1b[0m"


# --- tables -----------------------------------------------------------------------------------


def print_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = (), optional: Sequence[str] = ()
) -> None:
    """Print a table. On a terminal that is too narrow, the `optional` columns are left out, the first one first, and
    the last column is cut to the width of the screen. Elsewhere the table is complete.
    """
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if width is not None and optional:
        head, rows = fitting(head, list(rows), width, optional)
        right = [name for name in right if name in head]
    lines = list(table(head, rows, right=right, width=width))
    print(style(lines[0], "bold"))
    for line in lines[1:]:
        print(line)


def fitting(
    head: Sequence[str], rows: Sequence[Sequence[str]], width: int, optional: Sequence[str]
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The table without as many optional columns as needed to leave room for the last column."""
    for name in optional:
        widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head) - 1)]
        if sum(widths) + len(GAP) * len(widths) + LAST_WIDTH_WANTED <= width:
            break
        left = [column for column, title in enumerate(head) if title != name]
        head, rows = [head[column] for column in left], [[row[column] for column in left] for row in rows]
    return head, rows


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = (), width: int | None = None
) -> Iterator[str]:
    """The lines of a table, with columns as wide as their longest cell. `right` names the columns of numbers."""
    whole = [tuple(head), *(tuple(map(printable, row)) for row in rows)]
    aligned_right = {head.index(name) for name in right}
    widths = [max(len(row[column]) for row in whole) for column in range(len(head))]
    if width is not None:
        before = sum(widths[:-1]) + len(GAP) * (len(widths) - 1)
        widths[-1] = min(widths[-1], max(CELL_WIDTH_MIN, width - before))
    last = len(head) - 1
    for row in whole:
        cells = []
        for column, cell in enumerate(row):
            if column in aligned_right:
                cells.append(cell.rjust(widths[column]))
            else:
                cells.append(cut(cell, widths[column]) if column == last else cell.ljust(widths[column]))
        yield GAP.join(cells).rstrip()


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + ELLIPSIS


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Names and values, one per line, with the values in one column."""
    kept = list(fields)
    widest = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        print(f"{name.ljust(widest)}{GAP}{safe_lines(value)}")


# --- quantities -------------------------------------------------------------------------------


def moment(at_ms: int | None) -> str:
    """A time in UTC: 2026-11-17 19:00:00."""
    if not at_ms:
        return ""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(at_ms / 1000))


def duration(seconds: float) -> str:
    """A duration in at most two units: 0.2s, 45s, 3m20s, 2h5m, 4d3h."""
    if seconds < 0.05:
        return "0s"
    if seconds < 10:
        return f"{seconds:.1f}s".replace(".0s", "s")
    whole = round(seconds)
    for size, name, smaller, smaller_name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size}{name}" + (f"{rest}{smaller_name}" if rest else "")
    return f"{whole}s"


def size(count: float) -> str:
    """A number of bytes: 812 B, 1.5 KiB, 3 GiB."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"


def rate(per_second: float | None) -> str:
    if per_second is None:
        return "-"
    if per_second and per_second < 10:
        return f"{per_second:.1f}"
    return f"{per_second:.0f}"


def spark(values: Sequence[float | None]) -> str:
    """A line of bars, the highest of which is the largest value, and gaps where nothing was measured."""
    largest = max((value or 0 for value in values), default=0) or 1
    return "".join(" " if value is None else _BARS[round(value / largest * (len(_BARS) - 1))] for value in values)


def condensed(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most `width` values: the largest of each part, so that no peak is lost; None if nothing was measured."""
    count = min(width, len(values))
    edges = [place * len(values) // count for place in range(count + 1)] if count else [0]
    parts = (values[start:end] for start, end in pairwise(edges))
    return [max((value for value in part if value is not None), default=None) for part in parts]


def number(count: int) -> str:
    """A count for a sentence: 1,234."""
    return f"{count:,}"


def body_text(message: dict[str, Any]) -> str:
    """The body of a message from the REST API as text: text as it is, JSON as JSON, bytes as their base64."""
    if "bodyBase64" in message:
        return str(message["bodyBase64"])
    body = message.get("body", "")
    return body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
