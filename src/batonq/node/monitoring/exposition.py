"""Writes metrics in the Prometheus text format."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from batonq.node.monitoring.metrics import BY_NAME, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LINES_AT_ONCE = 4_000  # lines that are written before other requests get a turn


class HistogramSample(NamedTuple):
    """One histogram: `counts` by bucket (see histogram.py), and the sum of all values in the metric's unit."""

    labels: str
    counts: list[int]
    total: float


class Family(NamedTuple):
    """A metric, by its name, with its samples: labels as they are written, and a value."""

    metric: str
    samples: list[tuple[str, float]] = []
    histograms: list[HistogramSample] = []

    def labelled(self, label: str) -> Family:
        """The same samples with one more label."""
        return Family(
            self.metric,
            [(joined(labels, label), value) for labels, value in self.samples],
            [one._replace(labels=joined(one.labels, label)) for one in self.histograms],
        )


Families = list[Family]
DECODER = msgspec.msgpack.Decoder(Families)


def one(metric: Metric, value: float, labels: str = "") -> Family:
    return Family(metric.name, [(labels, value)])


def many(metric: Metric, samples: Iterable[tuple[str, float]]) -> Family:
    return Family(metric.name, [*samples])


def histograms(metric: Metric, samples: Iterable[HistogramSample]) -> Family:
    return Family(metric.name, [], [*samples])


def label(name: str, value: str) -> str:
    """One label. The value may be any text."""
    if "\\" in value or '"' in value or "\n" in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}="{value}"'


def joined(*labels: str) -> str:
    return ",".join(filter(None, labels))


def merged(parts: Mapping[str, Sequence[Family]], label_name: str) -> Families:
    """The metrics of several processes, each labelled with its name; without a label's name, of one process. Each
    counts from zero at its start, so their numbers are not summed.
    """
    whole: dict[str, Family] = {}
    for name, families in parts.items():
        for family in families:
            if family.metric not in BY_NAME:
                continue  # of another release
            own = family.labelled(label(label_name, name)) if label_name else family
            before = whole.get(family.metric)
            if before is not None:
                own = Family(own.metric, before.samples + own.samples, before.histograms + own.histograms)
            whole[family.metric] = own
    return [*whole.values()]


async def written(families: Iterable[Family]) -> bytes:
    """The text of all metrics, in the order of the reference. Long texts are written in several turns."""
    by_name = {family.metric: family for family in families}
    lines: list[str] = []
    parts: list[bytes] = []
    for name, metric in BY_NAME.items():
        family = by_name.get(name)
        if family is None:
            continue
        for part in _portions(family):
            _write(lines, metric, part, head=part.is_first)
            if len(lines) > LINES_AT_ONCE:
                parts.append("\n".join(lines).encode())
                lines.clear()
                await asyncio.sleep(0)
    lines.append("")
    parts.append("\n".join(lines).encode())
    return b"\n".join(parts)


class _Portion(NamedTuple):
    is_first: bool
    samples: Sequence[tuple[str, float]]
    histograms: Sequence[HistogramSample]


def _portions(family: Family) -> Iterable[_Portion]:
    yield _Portion(True, family.samples[:LINES_AT_ONCE], family.histograms[:100])
    for start in range(LINES_AT_ONCE, len(family.samples), LINES_AT_ONCE):
        yield _Portion(False, family.samples[start : start + LINES_AT_ONCE], ())
    for start in range(100, len(family.histograms), 100):
        yield _Portion(False, (), family.histograms[start : start + 100])


def _write(lines: list[str], metric: Metric, part: _Portion, *, head: bool) -> None:
    name = metric.name
    if head:
        lines.append(f"# HELP {name} {metric.doc}")
        lines.append(f"# TYPE {name} {metric.kind}")
    lines += [
        f"{name}{{{labels}}} {number(value)}" if labels else f"{name} {number(value)}" for labels, value in part.samples
    ]
    for sample in part.histograms:
        assert metric.buckets is not None, f"{name} is not a histogram"
        count = sum(sample.counts)
        start = f"{name}_bucket{{{sample.labels}," if sample.labels else f"{name}_bucket{{"
        for bound, below in zip(metric.buckets.bounds, metric.buckets.cumulative(sample.counts), strict=True):
            lines.append(f'{start}le="{number(bound)}"}} {below}')
        lines.append(f'{start}le="+Inf"}} {count}')
        suffix = f"{{{sample.labels}}}" if sample.labels else ""
        lines.append(f"{name}_sum{suffix} {number(max(0.0, sample.total))}")
        lines.append(f"{name}_count{suffix} {count}")


def number(value: float) -> str:
    """A number as text: whole ones without a fraction, others with nine digits."""
    return str(int(value)) if value == int(value) else f"{value:.9g}"
