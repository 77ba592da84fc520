"""How values are written on pages: numbers with units, times, durations, sparklines and JSON.

Templates use these functions as filters of the same names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from markupsafe import Markup, escape

from batonq import quantities

NONE = "–"
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB")
JSON_NODES_MAX = 2_000
JSON_DEPTH_MAX = 40
TEXT_MAX = 100_000  # characters of a body that a page shows
_ENCODER = json.JSONEncoder(ensure_ascii=False)
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
    return quantities.plural(count or 0, word, words)


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
    """A body on one line, cut to a length. Only the part that is shown is encoded."""
    text = " ".join((value if isinstance(value, str) else _start_of_json(value, length * 4))[: length * 4].split())
    return text if len(text) <= length else text[: length - 1] + "…"


def _start_of_json(value: Any, length: int) -> str:
    parts: list[str] = []
    try:
        for part in _ENCODER.iterencode(value):
            parts.append(part)
            length -= len(part)
            if length < 0:
                break
    except (ValueError, RecursionError):
        parts.append("…")
    return "".join(parts)


def raw(value: Any, text_max: int = TEXT_MAX) -> str:
    """A body as it would be sent, for copying and editing: text as it is, all else as JSON, indented if it is short."""
    text = value if isinstance(value, str) else _json(value, text_max)
    return text if len(text) <= text_max else text[:text_max] + "…"


def _json(value: Any, text_max: int) -> str:
    try:
        encoded = msgspec.json.encode(value)
    except (ValueError, RecursionError):
        return _start_of_json(value, text_max)
    return (msgspec.json.format(encoded, indent=2) if len(encoded) <= text_max else encoded).decode()


def json_tree(value: Any, nodes_max: int = JSON_NODES_MAX, text_max: int = TEXT_MAX) -> Markup:
    """A JSON value as a tree that can be folded, without a script. Large values are shown as text, which may be cut."""
    parsed = value
    if isinstance(value, str) and value[:1] in ("{", "[") and len(value) <= text_max:
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            parsed = value
    if not isinstance(parsed, (dict, list)) or not _is_small(parsed, nodes_max):
        return Markup('<pre class="body"><code>{}</code></pre>').format(raw(value, text_max))
    parts = ['<div class="json body">']
    _add_node(parts, parsed, 0)
    parts.append("</div>")
    return Markup("".join(parts))


def _is_small(value: Any, nodes_max: int) -> bool:
    """Whether a JSON value has few enough nodes for a tree. A large one is not walked through."""
    level, nodes = [value], 1
    for _ in range(JSON_DEPTH_MAX + 1):
        below: list[Any] = []
        for one in level:
            if isinstance(one, (dict, list)):
                nodes += len(one)
                if nodes > nodes_max:
                    return False
                below += one.values() if isinstance(one, dict) else one
        if not below:
            return True
        level = below
    return False


def _add_node(parts: list[str], value: Any, depth: int) -> None:
    """Add the HTML of a JSON value. What comes from the value is escaped."""
    if isinstance(value, dict) and value:
        _open_branch(parts, f"{{ {plural(len(value), 'field')} }}", depth)
        for name, member in value.items():
            parts.append(f'<li><span class="key">{escape(name)}</span>: ')
            _add_node(parts, member, depth + 1)
            parts.append("</li>")
        parts.append("</ul></details>")
    elif isinstance(value, list) and value:
        _open_branch(parts, f"[ {plural(len(value), 'item')} ]", depth)
        for member in value:
            parts.append("<li>")
            _add_node(parts, member, depth + 1)
            parts.append("</li>")
        parts.append("</ul></details>")
    elif isinstance(value, (dict, list)):
        parts.append("<span>{}</span>" if isinstance(value, dict) else "<span>[]</span>")
    else:
        kind = "string" if isinstance(value, str) else "literal"
        parts.append(f'<span class="{kind}">{escape(json.dumps(value, ensure_ascii=False))}</span>')


def _open_branch(parts: list[str], summary: str, depth: int) -> None:
    parts.append(f"<details{' open' if depth < 3 else ''}><summary>{escape(summary)}</summary><ul>")


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
