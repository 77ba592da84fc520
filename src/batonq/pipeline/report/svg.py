"""Plots as SVG: lines over time, bars, a heat map. Colours are CSS classes of the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape

from batonq.pipeline.report.figures import Clock, Series

WIDTH, HEIGHT = 480, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 8, 10, 24
_PLOT_WIDTH, _PLOT_HEIGHT = WIDTH - _LEFT - _RIGHT, HEIGHT - _TOP - _BOTTOM
_DAY_S = 86_400
_BAR = 22


def lines(clock: Clock, series: Mapping[str, tuple[str, Series]], unit: str, *, log: bool = False) -> str:
    """`series`: name → (class, values). A bucket without a value is a gap. `log`: a scale of powers of ten."""
    top = max((value for _, values in series.values() for value in values if value is not None), default=0.0)
    scale = _LogScale(top) if log else _Scale(top)
    parts = [_frame(clock, scale, unit)]
    for kind, values in series.values():
        for stretch in _stretches(values):
            points = " ".join(f"{_x(clock, bucket):.1f},{scale.y(value):.1f}" for bucket, value in stretch)
            parts.append(f'<polyline class="line {kind}" points="{points}"/>')
            if len(stretch) == 1:
                bucket, value = stretch[0]
                parts.append(
                    f'<circle class="dot {kind}" cx="{_x(clock, bucket):.1f}" cy="{scale.y(value):.1f}" r="2"/>'
                )
    for bucket in range(clock.count):
        told = [
            f"{name}: {number(values[bucket])} {unit}"
            for name, (_, values) in series.items()
            if values[bucket] is not None
        ]
        if told:
            parts.append(_hover(clock, bucket, told))
    return _svg(HEIGHT, parts)


def heat(clock: Clock, cells: Mapping[tuple[int, int], int]) -> str:
    """Messages by time and by powers of two of milliseconds: darker means more messages."""
    powers = [power for _, power in cells]
    low, high = (min(powers), max(powers) + 1) if powers else (0, 1)
    high = max(high, low + 4)
    most = max(cells.values(), default=1)
    height = _PLOT_HEIGHT / (high - low)
    width = _PLOT_WIDTH / clock.count
    parts = []
    for power in range(low, high + 1, max(1, (high - low) // 5)):
        y = _TOP + _PLOT_HEIGHT - (power - low) * height
        parts.append(_tick(y, duration(2.0**power)))
    for (bucket, power), count in sorted(cells.items()):
        x, y = _LEFT + bucket * width, _TOP + _PLOT_HEIGHT - (power - low + 1) * height
        full = 0.1 + 0.9 * math.sqrt(count / most)
        text = f"{moment(clock, bucket)}: {count:,} from {duration(2.0**power)} to {duration(2.0 ** (power + 1))}"
        parts.append(
            f'<rect class="cell" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.8):.2f}" height="{height:.2f}" '
            f'fill-opacity="{full:.2f}"><title>{escape(text)}</title></rect>'
        )
    parts.append(_times(clock))
    return _svg(HEIGHT, parts)


def bars(values: Sequence[tuple[str, int, str]]) -> str:
    """(name, count, class), one below the other, each with its number and share."""
    total = sum(count for _, count, _ in values) or 1
    most = max((count for _, count, _ in values), default=1) or 1
    label, room = 150, WIDTH - 150 - 110
    parts = []
    for index, (name, count, kind) in enumerate(values):
        y = index * _BAR
        shown = name if len(name) <= 22 else name[:21] + "…"
        width = room * count / most
        parts.append(
            f"<g><title>{escape(name)}: {count:,}</title>"
            f'<text class="name" x="{label - 8}" y="{y + 15}" text-anchor="end">{escape(shown)}</text>'
            f'<rect class="bar {kind}" x="{label}" y="{y + 4}" width="{max(width, 1):.1f}" height="{_BAR - 8}"/>'
            f'<text class="value" x="{label + width + 6:.1f}" y="{y + 15}">{count:,}  ({count / total:.1%})</text></g>'
        )
    return _svg(max(len(values), 1) * _BAR, parts)


# --- scales -----------------------------------------------------------------------------------------


class _Scale:
    """From zero to a round number above the largest value."""

    def __init__(self, top: float) -> None:
        step = 10.0 ** math.floor(math.log10(top)) if top > 0 else 1.0
        self.top = next(step * factor for factor in (1, 2, 4, 6, 8, 10) if step * factor >= top * 0.999)
        self.ticks = [self.top * part / 4 for part in range(5)]

    def y(self, value: float) -> float:
        return _TOP + _PLOT_HEIGHT * (1 - value / self.top)


class _LogScale(_Scale):
    """From one millisecond to a power of ten above the largest value; shorter values are at the bottom."""

    def __init__(self, top: float) -> None:
        decades = max(1, math.ceil(math.log10(max(top, 10.0))))
        self.top = 10.0**decades
        self.ticks = [10.0**power for power in range(0, decades + 1, max(1, -(-decades // 6)))]

    def y(self, value: float) -> float:
        return _TOP + _PLOT_HEIGHT * (1 - math.log10(max(value, 1.0)) / math.log10(self.top))


def _x(clock: Clock, bucket: int) -> float:
    return _LEFT + _PLOT_WIDTH * (bucket + 0.5) / clock.count


def _stretches(values: Series) -> list[list[tuple[int, float]]]:
    """Runs of buckets that have a value."""
    found: list[list[tuple[int, float]]] = []
    open_run = False
    for bucket, value in enumerate(values):
        if value is not None and open_run:
            found[-1].append((bucket, value))
        elif value is not None:
            found.append([(bucket, value)])
        open_run = value is not None
    return found


# --- parts ------------------------------------------------------------------------------------------


def _svg(height: float, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img">{"".join(parts)}</svg>'


def _frame(clock: Clock, scale: _Scale, unit: str) -> str:
    told = _seconds if unit == "ms" else number
    return "".join(_tick(scale.y(tick), told(tick)) for tick in scale.ticks) + _times(clock)


def _tick(y: float, text: str) -> str:
    return (
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>'
    )


def _times(clock: Clock) -> str:
    parts = []
    for part in range(5):
        bucket = round((clock.count - 1) * part / 4)
        if part and bucket == round((clock.count - 1) * (part - 1) / 4):
            continue
        anchor = ("start", "middle", "middle", "middle", "end")[part] if clock.count > 1 else "middle"
        x = _x(clock, bucket)
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{moment(clock, bucket)}</text>'
        )
    return "".join(parts)


def _hover(clock: Clock, bucket: int, told: Sequence[str]) -> str:
    width = _PLOT_WIDTH / clock.count
    text = "\n".join((moment(clock, bucket, whole=True), *told))
    return (
        f'<rect class="hover" data-bucket="{bucket}" x="{_LEFT + bucket * width:.1f}" y="{_TOP}" width="{width:.2f}" '
        f'height="{_PLOT_HEIGHT}"><title>{escape(text)}</title></rect>'
    )


# --- words ------------------------------------------------------------------------------------------


def moment(clock: Clock, bucket: int, *, whole: bool = False) -> str:
    time = datetime.fromtimestamp(clock.start_s + bucket * clock.step_s, UTC)
    if whole:
        return f"{time:%Y-%m-%d %H:%M} UTC"
    return f"{time:%d %b}" if clock.step_s * clock.count > 3 * _DAY_S else f"{time:%H:%M}"


def number(value: float | None) -> str:
    if value is None:
        return ""
    if value >= 10_000_000:
        return f"{value / 1_000_000:,.0f} M"
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 0.001 else f"{value:.1e}"


def duration(ms: float | None) -> str:
    if ms is None:
        return ""
    for limit, unit, size in (
        (1000, "ms", 1),
        (60_000, "s", 1000),
        (3_600_000, "min", 60_000),
        (86_400_000, "h", 3_600_000),
    ):
        if ms < limit:
            return f"{ms / size:.3g} {unit}"
    return f"{ms / 86_400_000:.3g} d"


def _seconds(ms: float) -> str:
    """Powers of ten, which minutes and hours are not."""
    return f"{ms:,.0f} ms" if ms < 1000 else f"{ms / 1000:,.0f} s"


def size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:,.0f} {unit}" if count >= 100 or count == int(count) else f"{count:.3g} {unit}"
