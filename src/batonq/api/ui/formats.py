"""How values are written on pages: numbers with units, times, durations, sparklines and JSON.

Templates use these functions as filters of the same names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

NONE = "–"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
JSON_NODES_MAX = 2_000
JSON_DEPTH_MAX = 40
TEXT_MAX = 100_000  # characters of a body that a page shows
SPARK_WIDTH, SPARK_HEIGHT = 80, 20


def number(value: float | None) -> str:
    """1,204; 0.4; – for None."""
    if value is None:
        return NONE
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 0.05 else f"{value:.2g}"


def rate(value: float | None) -> str:
    """Per second: 1,204/s; 0.4/s."""
    if value is None:
        return NONE
    return f"{value:,.0f}/s" if value >= 10 or not value else f"{value:,.1f}/s" if value >= 0.05 else f"{value:.2g}/s"


def percent(share: float | None) -> str:
    if share is None:
        return NONE
    value = share * 100
    return f"{value:.0f} %" if value >= 10 or not value else f"{value:.1f} %" if value >= 0.05 else "< 0.1 %"


def duration(seconds: float | None) -> str:
    """In the largest unit that fits: 0.2 s, 45 s, 4 min, 3 h, 2 d."""
    if seconds is None:
        return NONE
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.1f}".removesuffix(".0") + f" {unit}"
    whole = seconds >= 10 or seconds < 0.05 or float(seconds).is_integer()
    return f"{seconds:.0f} s" if whole else f"{seconds:.1f} s"


def size(count: float | None) -> str:
    """Bytes: 812 B, 1.2 MiB."""
    if count is None:
        return NONE
    value = float(count)
    for unit in _SIZES:
        if value < 1024 or unit == _SIZES[-1]:
            return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def plural(count: int | None, word: str, words: str = "") -> str:
    """1 message; 214 messages."""
    count = count or 0
    return f"{count:,} {word if count == 1 else words or word + 's'}"


def exact(at_ms: float) -> str:
    """2026-11-17 18:59:10.123 UTC"""
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return NONE
    return at.strftime("%Y-%m-%d %H:%M:%S.") + f"{int(at_ms) % 1000:03d} UTC"


def distance(at_ms: float, now_ms: float) -> str:
    """12 s ago; in 18 s."""
    seconds = (now_ms - at_ms) / 1000
    if abs(seconds) < 0.5:
        return "now"
    shown = duration(int(abs(seconds)) if abs(seconds) < 60 else abs(seconds) // 60 * 60)
    return f"{shown} ago" if seconds > 0 else f"in {shown}"


def when(at_ms: float | None, now_ms: float) -> Markup:
    """A time as its distance from now, with the exact time as a tooltip."""
    if not at_ms:
        return Markup(NONE)
    iso = exact(at_ms).removesuffix(" UTC").replace(" ", "T") + "Z"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, exact(at_ms), distance(at_ms, now_ms))


def spark(values: Sequence[float | None] | None) -> Markup:
    """A small line of recent values, zero-based. Gaps stay gaps. Screen readers get the last value."""
    known = [value for value in values or () if value is not None]
    if not values or not known:
        return Markup('<span class="soft">{}</span>').format(NONE)
    top = max(known)
    step = SPARK_WIDTH / max(1, len(values) - 1)
    runs: list[list[str]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            height = 1 + (SPARK_HEIGHT - 2) * (1 - value / top if top > 0 else 1)
            runs[-1].append(f"{place * step:.1f},{height:.1f}")
    lines = Markup("").join(Markup('<polyline points="{}"/>').format(" ".join(run)) for run in runs if len(run) > 1)
    label = f"from {number(known[0])} to {number(known[-1])}, at most {number(top)}"
    return Markup(
        '<svg class="spark" role="img" aria-label="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">{}</svg>'
    ).format(label, SPARK_WIDTH, SPARK_HEIGHT, lines)


def prose(text: str) -> Markup:
    """Text with `code` between backticks."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:  # one backtick has no partner
        return escape(text)
    code = Markup("<code>{}</code>")
    return Markup("").join(code.format(piece) if at % 2 else piece for at, piece in enumerate(pieces))


# --- bodies -----------------------------------------------------------------------------------


def compact(value: Any, length: int = 120) -> str:
    """A body on one line, cut to a length."""
    if isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
        except (ValueError, RecursionError):
            text = str(value)
    text = " ".join(text[: length * 4].split())
    return text if len(text) <= length else text[: length - 1] + "…"


def raw(value: Any) -> str:
    """A body as it would be sent, for copying and editing: text as it is, all else as indented JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"


def json_tree(value: Any) -> Markup:
    """A JSON value as a tree that can be folded, without a script. Large values are shown as text."""
    parsed = value
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = value
    if not isinstance(parsed, (dict, list)):
        return Markup('<pre class="body"><code>{}</code></pre>').format(raw(parsed))
    nodes = [JSON_NODES_MAX]
    tree = _node(parsed, nodes, 0)
    if nodes[0] < 0:
        return Markup('<pre class="body"><code>{}</code></pre>').format(raw(parsed))
    return Markup('<div class="json body">{}</div>').format(tree)


def _node(value: Any, nodes: list[int], depth: int) -> Markup:
    nodes[0] -= 1
    if nodes[0] < 0 or depth > JSON_DEPTH_MAX:
        nodes[0] = -1
        return Markup("")
    if isinstance(value, dict):
        if not value:
            return Markup("<span>{}</span>").format("{}")
        rows = Markup("").join(
            Markup('<li><span class="key">{}</span>: {}</li>').format(name, _node(member, nodes, depth + 1))
            for name, member in value.items()
        )
        return _branch(rows, f"{{ {plural(len(value), 'field')} }}", depth)
    if isinstance(value, list):
        if not value:
            return Markup("<span>[]</span>")
        rows = Markup("").join(Markup("<li>{}</li>").format(_node(member, nodes, depth + 1)) for member in value)
        return _branch(rows, f"[ {plural(len(value), 'item')} ]", depth)
    if isinstance(value, str):
        return Markup('<span class="string">{}</span>').format(json.dumps(value, ensure_ascii=False))
    return Markup('<span class="literal">{}</span>').format(json.dumps(value))


def _branch(rows: Markup, summary: str, depth: int) -> Markup:
    return Markup("<details{}><summary>{}</summary><ul>{}</ul></details>").format(
        Markup(" open") if depth < 3 else "", escape(summary), rows
    )


def code_words(text: str) -> Markup:
    """A text whose words between backticks are shown as code."""
    parts = text.split("`")
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def linked(text: str, links: Mapping[str, str]) -> Markup:
    """A text in which the given parts are links."""
    if not links:
        return escape(text)
    parts = re.split(f"(?<![\\w.-])({'|'.join(map(re.escape, sorted(links, key=len, reverse=True)))})", text)
    return Markup("").join(
        Markup('<a href="{}">{}</a>').format(links[part], part) if at % 2 else part for at, part in enumerate(parts)
    )


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "rate": rate,
    "percent": percent,
    "duration": duration,
    "size": size,
    "plural": plural,
    "exact": exact,
    "when": when,
    "spark": spark,
    "prose": prose,
    "compact": compact,
    "raw_body": raw,
    "json_tree": json_tree,
    "code_words": code_words,
    "linked": linked,
}
