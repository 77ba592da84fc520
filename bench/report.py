"""The results: medians of rounds, ratios within a round, targets, and how they are printed and stored."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench import machine
from bench.plot import draw

NO_WORSE_MAX = 1.05  # what differs by less is noise
Sample = dict[str, float]  # one round of one contestant: figures by name, units last


@dataclass(slots=True)
class Bar:
    """A target, and whether this run met it."""

    section: str
    text: str
    value: float
    limit: float
    at_least: bool

    @property
    def passed(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def line(self) -> str:
        word = "at least" if self.at_least else "at most"
        verdict = "PASS" if self.passed else "MISS"
        return f"  {verdict}  {self.text}: {self.value:.3g} ({word} {self.limit:g})"


@dataclass(slots=True)
class Table:
    """The rounds of one comparison, by contestant."""

    section: str
    title: str
    samples: dict[str, list[Sample]]
    shown: str  # the figure in the plot

    def median(self, contestant: str, figure: str) -> float:
        return statistics.median(sample[figure] for sample in self.samples[contestant])

    def ratio(self, one: str, other: str, figure: str) -> float:
        """The median of the ratios per round, because a disturbance affects both sides of a round."""
        pairs = zip(self.samples[one], self.samples[other], strict=True)
        return statistics.median(a[figure] / b[figure] if b[figure] else 0.0 for a, b in pairs)


@dataclass(slots=True)
class Report:
    options: dict[str, Any]
    tables: list[Table] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    plots: dict[str, str] = field(default_factory=dict)  # SVGs of sections that draw their own, by file name

    def table(self, section: str, title: str, samples: dict[str, list[Sample]], shown: str) -> Table:
        """Record a comparison, and print the medians."""
        table = Table(section, title, samples, shown)
        self.tables.append(table)
        print(f"\n{section}: {title}")
        figures = list(next(iter(samples.values()))[0])
        width = max(12, *map(len, samples))
        print("  " + " " * width + "".join(f"{figure:>20}" for figure in figures))
        for contestant in samples:
            cells = [f"{table.median(contestant, figure):>20,.{2 if '÷' in figure else 1}f}" for figure in figures]
            print(f"  {contestant:<{width}}" + "".join(cells), flush=True)
        return table

    def bar(self, section: str, text: str, value: float, limit: float, at_least: bool) -> None:
        bar = Bar(section, text, value, limit, at_least)
        self.bars.append(bar)
        print(bar.line(), flush=True)

    def no_worse(self, section: str, text: str, ratio: float) -> None:
        """A target for the ratio of two builds' costs."""
        self.bar(section, f"{text}, this code ÷ before", ratio, NO_WORSE_MAX, at_least=False)

    def note(self, text: str) -> None:
        self.notes.append(text)
        print(f"  {text}", flush=True)

    def finish(self, directory: Path) -> None:
        """Print all targets again, and write `bench.json` and `bench.svg`."""
        print("\nbars")
        for bar in self.bars:
            print(f"{bar.line()}  [{bar.section}]")
        directory.mkdir(parents=True, exist_ok=True)
        content = {
            "machine": machine.describe(),
            "options": self.options,
            "bars": [asdict(bar) | {"passed": bar.passed} for bar in self.bars],
            "tables": [asdict(table) | {"medians": _medians(table)} for table in self.tables],
            "notes": self.notes,
        }
        (directory / "bench.json").write_text(json.dumps(content, indent=1) + "\n")
        groups = [
            (
                f"{table.section}: {table.title} ({table.shown})",
                {name: table.median(name, table.shown) for name in table.samples},
            )
            for table in self.tables
        ]
        bars = [(bar.text, bar.value, bar.limit, bar.at_least, bar.passed) for bar in self.bars]
        drawn = {"bench.svg": draw(groups, bars), **self.plots}
        for name, svg in drawn.items():
            (directory / name).write_text(svg)
        print(f"\nwritten: {', '.join(str(directory / name) for name in ('bench.json', *drawn))}")


def _medians(table: Table) -> dict[str, Sample]:
    return {
        name: {figure: table.median(name, figure) for figure in rounds[0]} for name, rounds in table.samples.items()
    }
