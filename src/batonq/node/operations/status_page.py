"""The status page, shown when a browser opens the node's address. JavaScript is optional: it adds live updates."""

from __future__ import annotations

from html import escape

from batonq import __version__
from batonq.node.alarms.verdict import Verdict, judge
from batonq.node.clock import duration
from batonq.node.monitoring.overview import Overview, QueueReading
from batonq.node.operations.page_headers import page_headers
from batonq.node.quantities import plural

ROWS_MAX = 500
_SECOND_MS = 1000
_STYLE = """
:root { color-scheme: light dark; --ground: #fbfbfa; --text: #1d1f21; --soft: #5c6166; --line: #dcdcd8;
  --accent: #2456a6; --good: #1e6b3a; --bad: #a3261b; --hover: #f1f1ee; }
@media (prefers-color-scheme: dark) { :root { --ground: #17191b; --text: #e4e4e1; --soft: #a0a5aa; --line: #33373a;
  --accent: #8ab4f8; --good: #7fcf9a; --bad: #f2948a; --hover: #1f2224; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
body > * { max-width: 70rem; margin: 0 auto; padding: 0 1.5rem; }
header { padding-top: 1.75rem; color: var(--soft); }
header b { color: var(--accent); font-weight: 600; letter-spacing: 0.02em; }
h1 { font-size: 20px; font-weight: 600; margin: 0.35rem 0 0; }
h2 { font-size: 14px; font-weight: 600; margin: 2rem 0 0.5rem; }
.good::before { content: "\\25CF  "; color: var(--good); }
.bad::before { content: "\\25B2  "; color: var(--bad); }
.wide { overflow-x: auto; }
table { width: 100%; border-collapse: collapse; margin-top: 1.5rem; font-variant-numeric: tabular-nums; }
th { text-align: right; font-weight: 500; color: var(--soft); white-space: nowrap; }
th, td { height: 32px; padding: 0 0.75rem; border-bottom: 1px solid var(--line); }
td { text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
tbody tr:hover { background: var(--hover); }
td.zero { color: var(--soft); }
td.late, .late { color: var(--bad); }
td small, .soft { color: var(--soft); }
code { font: 13px ui-monospace, "SF Mono", Menlo, Consolas, monospace; }
pre { margin: 0.75rem 0; padding: 0.75rem 1rem; border: 1px solid var(--line); overflow-x: auto; }
ul { margin: 0.5rem 0; padding-left: 1.1rem; }
li { margin: 0.2rem 0; }
footer { padding-top: 2rem; padding-bottom: 2rem; color: var(--soft); }
a { color: var(--accent); }
#stale { color: var(--bad); }
"""

_SCRIPT = """
let last = Date.now();
const note = document.getElementById("stale");
async function look() {
  if (!document.hidden) {
    try {
      const options = { headers: { Accept: "text/html" }, signal: AbortSignal.timeout(5000) };
      const answer = await fetch(location.href, options);
      if (!answer.ok) throw new Error();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      document.querySelector("main").replaceWith(page.querySelector("main"));
      document.title = page.title;
      last = Date.now();
      note.textContent = "";
    } catch (problem) {
      note.textContent = `Live updates lost ${Math.round((Date.now() - last) / 1000)} s ago, retrying.`;
    }
  }
  setTimeout(look, 2000);
}
setTimeout(look, 2000);
"""


HEADERS = (("Cache-Control", "no-store"), *page_headers(_STYLE, _SCRIPT))


def render(overview: Overview, address: str, *, dev: bool) -> str:
    """Render the whole page. `address` is where the browser reached the node."""
    verdict = judge(overview)
    mark = "bad" if verdict.problems else "good"
    profile = "development profile: signatures are not checked" if dev else "secured"
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
        f"<title>{escape(_title(verdict))}</title>"
        '<noscript><meta http-equiv="refresh" content="5"></noscript>'
        f"<style>{_STYLE}</style></head><body>"
        f"<header><b>Baton</b> &middot; {escape(profile)}</header>"
        f'<main><h1 class="{mark}">{escape(verdict.sentence)}</h1>'
        f"{_alarms(overview)}{_queues(overview, address)}{_shards(overview)}</main>"
        f'<footer>Baton {__version__} &middot; <a href="/metrics">metrics</a> '
        f'<span id="stale" role="status"></span></footer>'
        f"<script>{_SCRIPT}</script></body></html>\n"
    )


def _title(verdict: Verdict) -> str:
    return f"({len(verdict.problems)}) Baton" if verdict.problems else "Baton"


def _alarms(overview: Overview) -> str:
    if not overview.alarms:
        return ""
    items = "".join(
        f'<li><span class="late">{escape(alarm.severity)}</span> {escape(alarm.text)} '
        f'<span class="soft">{duration(max(0, overview.at_ms - alarm.last_ms))} ago'
        f"{f', {alarm.count:,} times' if alarm.count > 1 else ''}</span></li>"
        for alarm in overview.alarms[:20]
    )
    return f"<h2>Alarms</h2><ul>{items}</ul>"


def _queues(overview: Overview, address: str) -> str:
    if not overview.queues:
        command = f"aws --endpoint-url {address} sqs create-queue --queue-name orders"
        return f'<p class="soft">A queue appears here once it is created:</p><pre><code>{escape(command)}</code></pre>'
    heads = ("visible", "in flight", "delayed", "oldest", "sent", "received", "deleted", "long polls")
    head = "".join(f"<th scope=col>{name}</th>" for name in heads)
    rows = "".join(_row(overview, queue) for queue in overview.queues[:ROWS_MAX])
    more = len(overview.queues) - ROWS_MAX
    rest = f'<p class="soft">{plural(more, "more queue")}: see the metrics for all queues.</p>' if more > 0 else ""
    return (
        f'<div class="wide"><table><thead><tr><th scope=col>queue</th>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{rest}"
    )


def _row(overview: Overview, queue: QueueReading) -> str:
    counters = queue.counters
    age_ms = overview.age_ms(queue)
    late = bool(queue.sla_seconds) and age_ms > queue.sla_seconds * _SECOND_MS
    oldest = duration(age_ms) + (" &#9650;" if late else "") if counters.oldest_sent_ms else "&ndash;"
    kind = " <small>dead letters</small>" if queue.dead_letters else ""
    cells = [
        _number(counters.visible),
        _number(counters.in_flight),
        _number(counters.delayed),
        f"<td{' class=late' if late else ''}>{oldest}</td>",
        _number(counters.sent),
        _number(counters.received),
        _number(counters.deleted),
        _number(queue.waiters),
    ]
    title = escape(f"account {queue.account}, shard {queue.shard}", quote=True)
    return f'<tr><td title="{title}">{escape(queue.name)}{kind}</td>{"".join(cells)}</tr>'


def _number(value: int) -> str:
    return f"<td>{value:,}</td>" if value else "<td class=zero>0</td>"


def _shards(overview: Overview) -> str:
    stopped = [shard for shard in overview.shards if shard.state != "serving"]
    if not stopped:
        return ""
    items = "".join(f"<li>Shard {shard.number}: {escape(shard.why)}</li>" for shard in stopped)
    return f"<h2>Unavailable shards</h2><ul>{items}</ul>"
