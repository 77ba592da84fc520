"""The report as a page: the answer in a sentence, then numbers, plots and tables. Names are any text, and escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from batonq import __version__
from batonq.pipeline.report import svg
from batonq.pipeline.report.figures import LATENCIES, LEASES_MAX, QUEUES_MAX, SHARES, Figures, QueueLine

RATE_NAMES = {
    "sends": ("sent", "sent"),
    "receives": ("received", "received"),
    "acks": ("acknowledged", "acked"),
    "retries": ("retried (nack, lease expired)", "retried"),
    "dead_letters": ("dead-lettered", "dead"),
}
OUTCOME_KINDS = {"acked": "acked", "late_acked": "acked", "dead_lettered": "dead", "dead": "dead", "expired": "retried"}
_STYLE = """
:root { color-scheme: light dark; --ground: #fbfbfa; --text: #1d1f21; --soft: #5c6166; --line: #dcdcd8;
  --accent: #2456a6; --good: #1e6b3a; --bad: #a3261b; --hover: #f1f1ee;
  --sent: #2456a6; --received: #7a4fa3; --acked: #1e7b52; --retried: #b06a00; --dead: #a3261b;
  --q0: #2456a6; --q1: #b06a00; --q2: #1e7b52; --q3: #7a4fa3; --q4: #0f7c8c; --q5: #a3466b; --q6: #6b6f1a;
  --q7: #6c757d; }
@media (prefers-color-scheme: dark) { :root { --ground: #17191b; --text: #e4e4e1; --soft: #a0a5aa; --line: #33373a;
  --accent: #8ab4f8; --good: #7fcf9a; --bad: #f2948a; --hover: #1f2224;
  --sent: #8ab4f8; --received: #c7a3ec; --acked: #7fcf9a; --retried: #f0b45c; --dead: #f2948a;
  --q0: #8ab4f8; --q1: #f0b45c; --q2: #7fcf9a; --q3: #c7a3ec; --q4: #6fd0de; --q5: #f09abb; --q6: #cfd36a;
  --q7: #adb5bd; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.75rem 1.5rem; max-width: 86rem; background: var(--ground); color: var(--text);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
header { color: var(--soft); }
header b { color: var(--accent); font-weight: 600; letter-spacing: 0.02em; }
h1 { font-size: 20px; font-weight: 600; margin: 0.35rem 0 0; overflow-wrap: anywhere; }
h2 { font-size: 14px; font-weight: 600; margin: 0 0 0.35rem; }
.good::before { content: "\\25CF  "; color: var(--good); }
.bad::before { content: "\\25B2  "; color: var(--bad); }
dl { display: flex; flex-wrap: wrap; gap: 0.5rem 2rem; margin: 1rem 0 0; font-variant-numeric: tabular-nums; }
dl div { min-width: 6rem; }
dt { color: var(--soft); }
dd { margin: 0; font-size: 18px; }
main { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(25rem, 100%), 1fr)); gap: 2rem 2.5rem;
  margin-top: 2rem; }
section { min-width: 0; }
section.whole { grid-column: 1 / -1; }
p.note { margin: 0.25rem 0 0; color: var(--soft); font-size: 13px; }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 0 1rem; margin: 0 0 0.35rem; padding: 0;
  color: var(--soft); font-size: 13px; }
ul.legend li { max-width: 100%; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
ul.legend li::before { content: ""; display: inline-block; width: 14px; height: 3px; margin: 0 5px 3px 0;
  background: currentColor; }
ul.legend span { color: var(--soft); }
svg { display: block; width: 100%; height: auto; font-size: 11px; font-variant-numeric: tabular-nums; }
svg text { fill: var(--soft); }
svg .name { fill: var(--text); }
.grid { stroke: var(--line); stroke-width: 1; }
.line { fill: none; stroke: currentColor; stroke-width: 1.6; stroke-linejoin: round; }
.dot, .bar, .cell { fill: currentColor; }
.cell { shape-rendering: crispEdges; }
.bar, .cell { color: var(--accent); }
.hover { fill: var(--text); fill-opacity: 0; }
.hover:hover, .hover.on { fill-opacity: 0.09; }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 500; color: var(--soft); white-space: nowrap; }
th, td { height: 32px; padding: 0 0.75rem; border-bottom: 1px solid var(--line); }
td { text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td:first-child { max-width: 20rem; overflow: hidden; text-overflow: ellipsis; }
tbody tr:hover { background: var(--hover); }
footer { margin-top: 2.5rem; color: var(--soft); }
""" + "".join(
    f".{name} {{ color: var(--{name}); }}\n"
    for name in ("sent", "received", "acked", "retried", "dead", *(f"q{index}" for index in range(QUEUES_MAX)))
)
# One time axis: the bucket under the pointer is marked in every plot. Without the script each plot still shows its
# numbers.
_SCRIPT = """
let marked = [];
addEventListener("pointerover", event => {
  const bucket = event.target.dataset?.bucket;
  for (const one of marked) one.classList.remove("on");
  marked = bucket === undefined ? [] : [...document.querySelectorAll(`.hover[data-bucket="${bucket}"]`)];
  for (const one of marked) one.classList.add("on");
});
"""


def render(figures: Figures | None, lake: str) -> str:
    """The whole page."""
    body = _body(figures) if figures is not None else _empty()
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>Baton report</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n"
        f"<footer>From the lake {escape(lake)}, by Baton {escape(__version__)}. Times are UTC. Counts are of what "
        f"history has: a receive that found nothing leaves no record.</footer>\n<script>{_SCRIPT}</script>\n"
        "</body>\n</html>\n"
    )


def _empty() -> str:
    return (
        "<header><b>Baton</b> report</header>\n<h1>There is no history yet.</h1>\n<p>Send some messages, then "
        "run <code>baton pipeline ingest</code> and <code>baton pipeline report</code>.</p>"
    )


def _body(figures: Figures) -> str:
    clock = figures.clock
    start, stop = svg.moment(clock, 0, whole=True), svg.moment(clock, clock.count, whole=True)
    died = figures.outcomes.get("dead_lettered", 0) + figures.outcomes.get("dead", 0)
    parts = [
        f"<header><b>Baton</b> report, {start} to {stop}, in steps of {svg.duration(clock.step_s * 1000)}</header>",
        f'<h1 class="{"bad" if died else "good"}">{escape(sentence(figures))}</h1>',
        _numbers(figures),
        "<main>",
        _rates(figures),
        _levels(figures),
        *_by_queue(figures),
        *_latencies(figures),
        _retries(figures),
        _causes(figures),
        _outcomes(figures),
        _queue_table(figures),
        _usage_table(figures),
        "</main>",
    ]
    return "\n".join(parts)


def sentence(figures: Figures) -> str:
    """The answer first."""
    outcomes = figures.outcomes
    total = sum(outcomes.values())
    acked = outcomes.get("acked", 0) + outcomes.get("late_acked", 0)
    died = outcomes.get("dead_lettered", 0) + outcomes.get("dead", 0)
    there = sum(outcomes.get(name, 0) for name in ("waiting", "in_flight", "delayed", "owed", "dead"))
    queues = f"{figures.queue_count:,} queue{'s' if figures.queue_count != 1 else ''}"
    dead = f"{died:,} dead-lettered" if died else "none dead-lettered"
    share = f"{acked / total:.1%}" if total else "none"
    return f"{total:,} messages in {queues}: {share} acknowledged, {dead}, {there:,} remaining"


def _numbers(figures: Figures) -> str:
    seconds = figures.clock.step_s * figures.clock.count
    sums = {name: sum(value or 0 for value in values) * figures.clock.step_s for name, values in figures.rates.items()}
    told = [(RATE_NAMES[name][0].partition(" (")[0], f"{round(total):,}") for name, total in sums.items()]
    peak = max((value or 0 for value in figures.rates["sends"]), default=0.0)
    told.append(("sent per second", f"{svg.number(sums['sends'] / seconds)}, at most {svg.number(peak)}"))
    told.append(("depth at the end", svg.number(figures.depth[-1])))
    told.append(("in flight at the end", svg.number(figures.in_flight[-1])))
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in told)
    return f"<dl>{items}</dl>"


# --- plots ------------------------------------------------------------------------------------------


def _section(title: str, content: str, note: str = "", *, whole: bool = False) -> str:
    below = f'<p class="note">{escape(note)}</p>' if note else ""
    return f"<section{' class=whole' if whole else ''}><h2>{escape(title)}</h2>{content}{below}</section>"


def _legend(names: Iterable[tuple[str, str]]) -> str:
    items = (f'<li class="{kind}" title="{escape(name)}"><span>{escape(name)}</span></li>' for name, kind in names)
    return f'<ul class="legend">{"".join(items)}</ul>'


def _rates(figures: Figures) -> str:
    series = {RATE_NAMES[name][0]: (RATE_NAMES[name][1], values) for name, values in figures.rates.items()}
    legend = _legend((name, kind) for name, (kind, _) in series.items())
    return _section("Messages per second, all queues", legend + svg.lines(figures.clock, series, "/s"))


def _levels(figures: Figures) -> str:
    series = {"in the queues": ("sent", figures.depth), "in flight": ("received", figures.in_flight)}
    legend = _legend((name, kind) for name, (kind, _) in series.items())
    return _section("Depth and in flight, all queues", legend + svg.lines(figures.clock, series, "messages"))


def _by_queue(figures: Figures) -> list[str]:
    shown = figures.queues[:QUEUES_MAX]
    more = figures.queue_count - len(shown)
    note = f"The {len(shown)} busiest of {figures.queue_count:,} queues." if more > 0 else ""
    named = _unique(shown)
    legend = _legend((name, f"q{index}") for index, name in enumerate(named))
    rates = {name: (f"q{index}", line.rates) for index, (name, line) in enumerate(named.items())}
    depths = {name: (f"q{index}", line.depths) for index, (name, line) in enumerate(named.items())}
    return [
        _section("Sent per second, by queue", legend + svg.lines(figures.clock, rates, "/s"), note),
        _section("Depth, by queue", legend + svg.lines(figures.clock, depths, "messages"), note),
    ]


def _unique(shown: Sequence[QueueLine]) -> dict[str, QueueLine]:
    """Two queues may have the same name: a deleted one, and one that was created later."""
    named: dict[str, QueueLine] = {}
    for line in shown:
        name, again = line.name, 2
        while name in named:
            name, again = f"{line.name} ({again})", again + 1
        named[name] = line
    return named


def _latencies(figures: Figures) -> list[str]:
    found = []
    kinds = ("sent", "received", "retried", "dead")
    for name, words in LATENCIES.items():
        cells = figures.heat[name]
        title = words[0].upper() + words[1:]
        if not cells:
            found.append(_section(title, '<p class="note">No messages in this time.</p>'))
            continue
        note = "Messages by time and latency, on a scale of powers of two; darker means more messages."
        found.append(_section(f"{title}: how long", svg.heat(figures.clock, cells), note))
        series = {
            share: (kind, values)
            for (share, values), kind in zip(figures.percentiles[name].items(), kinds, strict=True)
        }
        legend = _legend((share, kind) for share, (kind, _) in series.items())
        found.append(_section(f"{title}: percentiles", legend + svg.lines(figures.clock, series, "ms", log=True)))
    return found


def _retries(figures: Figures) -> str:
    values = [
        (
            "never received" if leases == 0 else f"{leases}×{' or more' if leases == LEASES_MAX else ''}",
            count,
            "acked" if leases == 1 else "retried" if leases else "",
        )
        for leases, count in sorted(figures.leases.items())
    ]
    return _section("How often a message was received", _bars(values), "Only messages that have ended.")


def _causes(figures: Figures) -> str:
    values = [(name, count, "dead") for name, count in figures.causes]
    note = "The last error class of dead letters, and of messages that died in their queue."
    return _section("Causes of dead letters", _bars(values), note)


def _outcomes(figures: Figures) -> str:
    ordered = sorted(figures.outcomes.items(), key=lambda item: (-item[1], item[0]))
    values = [(name.replace("_", " "), count, OUTCOME_KINDS.get(name, "")) for name, count in ordered]
    note = "A moved message counts once for each queue that it was in."
    return _section("Outcomes", _bars(values), note)


def _bars(values: Sequence[tuple[str, int, str]]) -> str:
    return svg.bars(values) if values else '<p class="note">None.</p>'


# --- tables -----------------------------------------------------------------------------------------


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = "".join(f"<th>{escape(one)}</th>" for one in head)
    lines = "".join(
        f'<tr><td title="{escape(row[0])}">{escape(row[0])}</td>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>'


def _queue_table(figures: Figures) -> str:
    head = ("queue", "sent", "received", "acked", "nacked", "expired", "dead", "depth", "in flight", "oldest", *SHARES)
    rows = [
        (
            line.name,
            *(f"{value:,}" for value in line.totals.values()),
            f"{line.depth:,}",
            f"{line.in_flight:,}",
            svg.duration(line.oldest_age_ms),
            *(svg.duration(value) for value in line.percentiles.values()),
        )
        for line in figures.queues
    ]
    more = figures.queue_count - len(rows)
    note = "Depth, in flight and oldest are from the queue's last minute; percentiles are from send to acknowledgement."
    if more > 0:
        note = f"The {len(rows)} busiest of {figures.queue_count:,} queues. {note}"
    return _section("Queues", _table(head, rows), note, whole=True)


def _usage_table(figures: Figures) -> str:
    head = ("queue", "account", "operations", "messages sent", "bytes sent", "bytes received", "stored")
    rows = [
        (
            str(row["name"] or f"queue {row['queue']}"),
            str(row["tenant"] or ""),
            f"{row['operations']:,}",
            f"{row['sends']:,}",
            svg.size(row["sent_bytes"]),
            svg.size(row["received_bytes"]),
            f"{svg.size(row['stored_byte_hours'])} h",
        )
        for row in figures.usage
    ]
    more = figures.usage_count - len(rows)
    note = "Stored is bytes times the hours that they were stored."
    if more > 0:
        note = f"The {len(rows)} most used of {figures.usage_count:,} queues. {note}"
    return _section("Usage", _table(head, rows), note, whole=True)
