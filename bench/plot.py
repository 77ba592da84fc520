"""The plot of a run as SVG, without a plotting library."""

from __future__ import annotations

from xml.sax.saxutils import escape

_WIDTH = 900
_LABEL_MIN = 110
_LETTER = 6.5  # the usual width of one
_SCALE = 560
_LINE = 20
_COLOURS = {
    "Baton SQS": "#1f6f8b",
    "Baton REST": "#3f9ab5",
    "JSON": "#1f6f8b",
    "Baton": "#1f6f8b",
    "floor": "#b8b8b8",
    "Redis": "#c0504d",
}
_OTHER_COLOUR = "#8a9a5b"
_GOOD_COLOUR = "#3c8d5a"
_BAD_COLOUR = "#c77f1a"

Group = tuple[str, dict[str, float]]
BarLine = tuple[str, float, float, bool, bool]


def _text(x: float, y: float, text: str, *, weight: str = "normal", anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-weight="{weight}" text-anchor="{anchor}">{escape(text)}</text>'


def _box(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{max(width, 1):.1f}" height="{_LINE - 6}" fill="{colour}"/>'


def draw(groups: list[Group], bars: list[BarLine]) -> str:
    """Each comparison as horizontal bars on its own scale, then each target with its limit as a line."""
    parts: list[str] = []
    longest = max((len(name) for _, values in groups for name in values), default=0)
    left = max(_LABEL_MIN, 18 + _LETTER * longest)
    y = 10
    for title, values in groups:
        y += _LINE + 8
        parts.append(_text(10, y - 6, title, weight="bold"))
        largest = max([*values.values(), 1e-9])
        for name, value in values.items():
            parts.append(_text(left - 8, y + 11, name, anchor="end"))
            width = _SCALE * value / largest
            parts.append(_box(left, y, width, _COLOURS.get(name, _OTHER_COLOUR)))
            parts.append(_text(left + width + 6, y + 11, f"{value:,.1f}"))
            y += _LINE
    if bars:
        y += _LINE + 8
        parts.append(_text(10, y - 6, "bars (value relative to its limit, which is the line)", weight="bold"))
    for text, value, limit, at_least, passed in bars:
        relative = min(value / limit if limit else 0.0, 3.0)
        width = _SCALE / 3 * relative
        parts.append(_text(10, y + 11, f"{text}: {value:.3g} ({'≥' if at_least else '≤'} {limit:g})"))
        y += _LINE
        parts.append(_box(left, y, width, _GOOD_COLOUR if passed else _BAD_COLOUR))
        line_x = left + _SCALE / 3
        parts.append(f'<line x1="{line_x:.0f}" x2="{line_x:.0f}" y1="{y - 2}" y2="{y + _LINE - 4}" stroke="#222"/>')
        y += _LINE + 2
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{y + 20}" font-family="sans-serif"'
    background = f'<rect width="{_WIDTH}" height="{y + 20}" fill="#ffffff"/>'
    return f'{head} font-size="12">{background}{"".join(parts)}</svg>\n'
