"""Line plots against a size, in panels side by side, as SVG."""

from __future__ import annotations

from typing import NamedTuple
from xml.sax.saxutils import escape

_PANEL_WIDTH, _PANEL_HEIGHT = 420, 260
_LEFT, _TOP, _BOTTOM, _GAP = 60, 40, 46, 30
_COLOURS = ("#1f6f8b", "#c0504d", "#3c8d5a", "#c77f1a", "#6b5b95", "#8a9a5b")


class Panel(NamedTuple):
    """Lines by name, each a list of (x, y); both axes begin at 0."""

    title: str
    x_label: str
    lines: dict[str, list[tuple[float, float]]]


def draw(panels: list[Panel]) -> str:
    width = len(panels) * (_LEFT + _PANEL_WIDTH + _GAP)
    height = _TOP + _PANEL_HEIGHT + _BOTTOM + 18 * max(len(panel.lines) for panel in panels)
    parts = [_panel(panel, number * (_LEFT + _PANEL_WIDTH + _GAP) + _LEFT) for number, panel in enumerate(panels)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
    return f'{head} font-size="12"><rect width="{width}" height="{height}" fill="#ffffff"/>{"".join(parts)}</svg>\n'


def _panel(panel: Panel, left: float) -> str:
    x_max = max(x for line in panel.lines.values() for x, _ in line)
    y_max = _round_up(max(y for line in panel.lines.values() for _, y in line))
    bottom = _TOP + _PANEL_HEIGHT

    def place(x: float, y: float) -> tuple[float, float]:
        return left + _PANEL_WIDTH * x / x_max, bottom - _PANEL_HEIGHT * y / y_max

    parts = [_text(left, _TOP - 14, panel.title, weight="bold")]
    for step in range(5):
        value = y_max * step / 4
        y = place(0, value)[1]
        parts.append(_line(left, y, left + _PANEL_WIDTH, y, "#dddddd"))
        parts.append(_text(left - 6, y + 4, f"{value:,.4g}", anchor="end"))
    for x in sorted({x for line in panel.lines.values() for x, _ in line}):
        parts.append(_text(place(x, 0)[0], bottom + 16, f"{x:g}", anchor="middle"))
    parts.append(_text(left + _PANEL_WIDTH / 2, bottom + 34, panel.x_label, anchor="middle"))
    for number, (name, line) in enumerate(panel.lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        points = [place(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        legend_y = bottom + _BOTTOM + 18 * number
        parts.append(_line(left, legend_y, left + 20, legend_y, colour, 2))
        values = ", ".join(f"{y:,.4g}" for _, y in line)
        parts.append(_text(left + 26, legend_y + 4, f"{name}: {values}"))
    return "".join(parts)


def _round_up(value: float) -> float:
    """The next of 1, 2, 4, 8 times a power of ten."""
    power = 1.0
    while value > 10 * power:
        power *= 10
    while value <= power:
        power /= 10
    return next(step * power for step in (2, 4, 8, 10) if value <= step * power)


def _text(x: float, y: float, text: str, *, weight: str = "normal", anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-weight="{weight}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    return f'<line x1="{x1:.0f}" y1="{y1:.1f}" x2="{x2:.0f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'
