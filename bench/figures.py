"""Writes the results of the benchmarks into the documentation: tables into the pages, and the plots.

    python -m bench.figures DIRECTORY…

Each directory is one that `bench.run` or `bench.peers` wrote (`--results`). A measured part of a page is between
`<!-- measured: name -->` and `<!-- end measured -->`. Parts whose sections are not among the results stay as they are.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.clients import BenchError
from bench.peers import SETTINGS
from bench.plot import draw
from bench.report import Bar, Table
from bench.sections import kinds

_ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/explanation/performance.md")
MEASURED = re.compile(r"(<!-- measured: (?P<name>[a-z-]+) -->\n).*?(<!-- end measured -->)", re.DOTALL)
_REDIS = "Redis streams"
_LINE = 120


@dataclass(slots=True)
class Results:
    """The content of one `bench.json`."""

    facts: str
    tables: list[Table]
    bars: list[Bar]

    @classmethod
    def read(cls, directory: Path) -> Results:
        path = directory / "bench.json"
        if not path.exists():
            raise BenchError(f"{path} does not exist. Run the benchmark with --results {directory} first.")
        content: dict[str, Any] = json.loads(path.read_text())
        tables = [Table(one["section"], one["title"], one["samples"], one["shown"]) for one in content["tables"]]
        bars = [
            Bar(one["section"], one["text"], one["value"], one["limit"], one["at_least"]) for one in content["bars"]
        ]
        return cls(_facts(content["machine"], content["options"]), tables, bars)

    def of(self, section: str) -> list[Table]:
        return [table for table in self.tables if table.section == section]


def _facts(machine: dict[str, Any], options: dict[str, Any]) -> str:
    rounds = options["rounds"]
    size = "small" if options.get("quick") else "full"
    against = f" “Before” is commit {options['against']}." if options.get("against") else ""
    return (
        f"Medians of {rounds} round{'s' if rounds > 1 else ''} at {size} size, on {machine['processors']} processors "
        f"({machine['processor']}) that server and clients share, data on {options['file system']}.{against}"
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _prose(text: str) -> str:
    return textwrap.fill(text, _LINE)


def _judged(bar: Bar) -> str:
    return f"{bar.value:.3g}" + ("" if bar.passed else ", missed")


def _target(bar: Bar) -> str:
    return f"{'≥' if bar.at_least else '≤'} {bar.limit:g}"


# --- the parts --------------------------------------------------------------------------------


def peers_part(results: Results) -> str:
    """Baton beside other queues."""
    tables = results.of("peers")
    rows = []
    for table in tables:
        for name in table.samples:
            rate, cpu = (table.median(name, figure) for figure in ("messages/s", "server µs/message"))
            beside = table.ratio(name, _REDIS, "messages/s")
            rows.append([table.title, name, f"{rate:,.0f}", f"{cpu:.1f}", f"{beside:.2f}"])
    head = ("JSON documents of 1 KiB", "system", "messages/s", "server CPU, µs per message", "relative to Redis")
    shown = {name for table in tables for name in table.samples}
    durable = [[name, setting] for name, setting in SETTINGS.items() if name in shown]
    return f"{_prose(results.facts)}\n\n{_table(head, rows)}\n{_table(('system', 'durability'), durable)}"


def kinds_part(results: Results) -> str:
    """Server CPU by kind, then the ratios with their targets."""
    tables = results.of("kinds")
    columns = [(table, figure) for table in tables for figure in (kinds.LIFE, kinds.SEND)]
    titles = [f"{_word(figure)}, {_where(table)}" for table, figure in columns]
    rows = []
    for kind in (name for name in tables[0].samples if not name.endswith(kinds.BEFORE)):
        cells = [_beside(table, kind, figure) for table, figure in columns]
        rows.append([kind, *cells])
    ratios: dict[str, list[Bar]] = {}
    for bar in results.bars:
        if bar.section == "kinds":
            ratios.setdefault(bar.text.rsplit(", ", 2)[0], []).append(bar)
    judged = [[name, _target(bars[0]), *map(_judged, bars)] for name, bars in ratios.items()]
    before = " In parentheses: before." if any(name.endswith(kinds.BEFORE) for name in tables[0].samples) else ""
    return (
        f"{_prose(f'{results.facts} Server CPU in µs per message.{before}')}\n\n{_table(('kind', *titles), rows)}\n"
        f"{_table(('ratio of server CPU', 'target', *titles), judged)}"
    )


def _word(figure: str) -> str:
    return "cycle" if figure == kinds.LIFE else "send"


def _where(table: Table) -> str:
    return table.title.rpartition(", ")[2]


def _beside(table: Table, kind: str, figure: str) -> str:
    """The median, with that of the other revision in parentheses."""
    cell = f"{table.median(kind, figure):.1f}"
    before = kind + kinds.BEFORE
    return f"{cell} ({table.median(before, figure):.1f})" if before in table.samples else cell


def targets_part(results: Results) -> str:
    """Every target of the run, and the floor beside Redis."""
    bars = [bar for bar in results.bars if bar.section != "kinds"]
    rows = [[f"`{bar.section}`", bar.text, _target(bar), _judged(bar)] for bar in bars]
    floor = [f"{table.ratio('floor', 'Redis', 'messages/s'):.2f} on {_where(table)}" for table in results.of("life")]
    beside = f"Cycles per second of the floor relative to Redis, in the same run: {' and '.join(floor)}."
    table = _table(("section", "measure", "target", "measured"), rows)
    return f"{_prose(results.facts)}\n\n{table}\n{_prose(beside)}\n"


PARTS: dict[str, tuple[str, Callable[[Results], str]]] = {  # by name: the section that a run must have, and the part
    "peers": ("peers", peers_part),
    "kinds": ("kinds", kinds_part),
    "targets": ("life", targets_part),
}


def rewritten(text: str, results: Iterable[Results]) -> str:
    """The page with the parts that the results have."""
    parts = {name: part(one) for one in results for name, (section, part) in PARTS.items() if one.of(section)}

    def replace(match: re.Match[str]) -> str:
        part = parts.get(match["name"])
        return match[0] if part is None else f"{match[1]}\n{part.strip()}\n\n{match[3]}"

    return MEASURED.sub(replace, text)


# --- the plots --------------------------------------------------------------------------------


def peers_plot(results: Results) -> str:
    """Messages per second of each system, at each batch size."""
    groups = []
    for table in results.of("peers"):
        values = {name: table.median(name, "messages/s") for name in table.samples}
        groups.append((f"JSON documents of 1 KiB, {table.title}: messages/s", values))
    return draw(groups, [])


def kinds_plot(results: Results) -> str:
    """Server CPU of each kind, JSON first."""
    groups = []
    for table in results.of("kinds"):
        names = [name for name in table.samples if not name.endswith(kinds.BEFORE)]
        names.sort(key=lambda name: name != kinds.JSON)
        values = {name: table.median(name, kinds.LIFE) for name in names}
        groups.append((f"batches of 10 × 1 KiB, {_where(table)}: server CPU, µs per message", values))
    return draw(groups, [])


PLOTS = {"peers": peers_plot, "kinds": kinds_plot}  # by section


def main() -> None:
    parser = argparse.ArgumentParser(description="Write results of the benchmarks into the documentation.")
    parser.add_argument("directories", nargs="+", type=Path, metavar="directory", help="with the results of a run")
    results = [Results.read(directory) for directory in parser.parse_args().directories]
    page = _ROOT / PAGE
    page.write_text(rewritten(page.read_text(), results))
    print(f"wrote {PAGE}")
    for one in results:
        for section, plot in PLOTS.items():
            if one.of(section):
                path = PAGE.parent / f"{section}.svg"
                (_ROOT / path).write_text(plot(one))
                print(f"wrote {path}")


if __name__ == "__main__":
    main()
