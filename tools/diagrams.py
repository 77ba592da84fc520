"""The diagrams of docs/explanation, as SVG. `make docs` writes them; tests/docs checks that they are up to date.

Boxes have fixed places; what connects them in the lifecycle comes from the core's table.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import hypot
from typing import NamedTuple

from batonq.core.records import State
from batonq.core.shard.lifecycle import TRANSITIONS

INK, SOFT, LINE, FILL, ACCENT = "#1d2733", "#5b6878", "#7d8a99", "#f4f6f8", "#2557a7"
BEGIN, END = "sent or moved here", "deleted"


class Box(NamedTuple):
    x: float  # of the centre
    y: float
    width: float
    height: float
    title: str
    lines: tuple[str, ...] = ()
    accent: bool = False


def words(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def picture(width: int, height: int, description: str, parts: Iterable[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" font-family="system-ui, sans-serif" font-size="13">'
        f"<title>{escape(description)}</title>"
        '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0 10 5 0 10z" fill="{LINE}"/></marker></defs>'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    )
    return head + "\n" + "\n".join(parts) + "\n</svg>\n"


def drawn(box: Box) -> str:
    left, top = box.x - box.width / 2, box.y - box.height / 2
    first = box.y + 4.5 - 8.5 * len(box.lines)
    color = ACCENT if box.accent else LINE
    style = f'font-weight="600" fill="{INK}"'
    texts = []
    for number, line in enumerate((box.title, *box.lines)):
        y = first + 17 * number
        texts.append(f'<text x="{box.x:g}" y="{y:g}" text-anchor="middle" {style}>{escape(line)}</text>')
        style = f'font-size="12" fill="{SOFT}"'
    return (
        f'<rect x="{left:g}" y="{top:g}" width="{box.width:g}" height="{box.height:g}" rx="6" fill="{FILL}" '
        f'stroke="{color}" stroke-width="{2 if box.accent else 1.2}"/>' + "".join(texts)
    )


def _edge(box: Box, towards: tuple[float, float]) -> tuple[float, float]:
    """Where the line from the box's centre leaves the box."""
    dx, dy = towards[0] - box.x, towards[1] - box.y
    scale = min(box.width / 2 / abs(dx) if dx else 1e9, box.height / 2 / abs(dy) if dy else 1e9)
    return box.x + dx * scale, box.y + dy * scale


def arrow(start: Box, stop: Box, label: str = "", bend: float = 0.0, at: float = 0.5, dashed: bool = False) -> str:
    """A line from box to box, bent to its left by `bend`, with its label near the share `at` of its length."""
    dx, dy = stop.x - start.x, stop.y - start.y
    length = hypot(dx, dy)
    middle = ((start.x + stop.x) / 2 + bend * dy / length, (start.y + stop.y) / 2 - bend * dx / length)
    (x0, y0), (x1, y1) = _edge(start, middle), _edge(stop, middle)
    path = f"M{x0:.1f} {y0:.1f} Q{middle[0]:.1f} {middle[1]:.1f} {x1:.1f} {y1:.1f}"
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    line = f'<path d="{path}" fill="none" stroke="{LINE}" stroke-width="1.3"{dash} marker-end="url(#tip)"/>'
    if not label:
        return line
    x = (1 - at) ** 2 * x0 + 2 * at * (1 - at) * middle[0] + at**2 * x1
    y = (1 - at) ** 2 * y0 + 2 * at * (1 - at) * middle[1] + at**2 * y1
    return line + text(x, y + 4, label)


def text(x: float, y: float, words: str, *, anchor: str = "middle") -> str:
    """A label with a white halo, readable on top of a line."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="12" fill="{ACCENT}" stroke="#ffffff" '
        f'stroke-width="4" paint-order="stroke">{escape(words)}</text>'
    )


# --- the lifecycle ------------------------------------------------------------------------------

STATES = {
    BEGIN: Box(90, 200, 156, 34, BEGIN),
    State.DELAYED.name: Box(330, 60, 120, 44, "DELAYED"),
    State.VISIBLE.name: Box(330, 200, 120, 44, "VISIBLE", accent=True),
    State.IN_FLIGHT.name: Box(610, 200, 120, 44, "IN_FLIGHT", accent=True),
    State.OWED.name: Box(470, 340, 120, 44, "OWED"),
    State.DEAD.name: Box(610, 470, 120, 44, "DEAD"),
    END: Box(830, 340, 90, 34, END),
}
RARE = ("QueuePurged",)
# The transitions that are drawn: (from, to) → how the line is bent, and where its label is.
DRAWN: dict[tuple[str, str], tuple[float, float]] = {
    (BEGIN, "DELAYED"): (0, 0.5),
    (BEGIN, "VISIBLE"): (0, 0.5),
    ("VISIBLE", "IN_FLIGHT"): (30, 0.5),
    ("IN_FLIGHT", "VISIBLE"): (30, 0.5),
    ("IN_FLIGHT", "DELAYED"): (-40, 0.55),
    ("IN_FLIGHT", "OWED"): (-25, 0.45),
    ("VISIBLE", "OWED"): (-25, 0.4),
    ("OWED", "VISIBLE"): (-25, 0.4),
    ("OWED", "DEAD"): (-20, 0.5),
    ("DEAD", "OWED"): (-20, 0.5),
    ("IN_FLIGHT", "DEAD"): (-40, 0.62),
    ("IN_FLIGHT", END): (30, 0.5),
    ("OWED", END): (0, 0.5),
}


def transitions() -> dict[tuple[str, str], list[str]]:
    """(from, to) → the records that lead there."""
    found: dict[tuple[str, str], list[str]] = {}
    for (state, record), ends in TRANSITIONS.items():
        for end in ends:
            start = BEGIN if state is State.FREE else state.name
            stop = END if end is State.DELETED else end.name
            found.setdefault((start, stop), []).append(words(record.name))
    return found


def lifecycle() -> str:
    """The usual ways of a message. The rare ones are in the table below the diagram on the page."""
    table = transitions()
    lines = []
    for (start, stop), (bend, at) in DRAWN.items():
        records = [record for record in table[start, stop] if record not in RARE]
        lines.append(arrow(STATES[start], STATES[stop], ", ".join(records), bend, at))
    delay_ends = arrow(STATES["DELAYED"], STATES["VISIBLE"], "the delay ends", 0, 0.5, dashed=True)
    return picture(900, 520, "The delivery states of a message", [*lines, delay_ends, *map(drawn, STATES.values())])


# --- the architecture ---------------------------------------------------------------------------


def architecture() -> str:
    clients = Box(462, 40, 665, 48, "clients", ("boto3, AWS CLI, Celery · Python client and workers · curl · browser",))
    api = Box(462, 130, 665, 56, "api/", ("SQS, REST, dashboard: bytes to commands, outcomes to bytes",), accent=True)
    routing = Box(270, 236, 280, 56, "node/routing", ("which shard, on this node or another",), accent=True)
    host = Box(630, 236, 330, 56, "node/shard_host", ("grouping, timers, long polls, commit",), accent=True)
    core = Box(630, 342, 330, 56, "core/", ("pure: state, commands, time → records, outcomes",), accent=True)
    log = Box(630, 448, 330, 56, "log/", ("files · NATS JetStream · PostgreSQL",), accent=True)
    other = Box(270, 342, 280, 56, "other nodes", ("the same commands, signed",))
    spark = Box(270, 448, 280, 56, "pipeline/ on Spark", ("history → tables, report, audit",))
    boxes = (clients, api, routing, host, core, log, other, spark)
    arrows = [
        arrow(clients, api, "HTTP"),
        arrow(api, routing, "submit(command)"),
        arrow(routing, host),
        arrow(routing, other, "forward"),
        arrow(host, core, "commands of one turn"),
        arrow(core, log, "one frame, then the answers"),
        arrow(log, spark, "frames"),
    ]
    return picture(900, 500, "The way of a request through Baton", [*arrows, *map(drawn, boxes)])


# --- failover -----------------------------------------------------------------------------------


def failover() -> str:
    """Time goes down. The old owner stops answering; another node takes the shard over."""
    columns = {
        "node a": Box(130, 40, 150, 36, "node a", (), accent=True),
        "log": Box(450, 40, 220, 36, "log (quorum of three)"),
        "node b": Box(770, 40, 150, 36, "node b"),
    }
    life = [
        f'<line x1="{box.x:g}" y1="58" x2="{box.x:g}" y2="470" stroke="{LINE}" stroke-dasharray="3 4"/>'
        for box in columns.values()
    ]

    def step(y: float, start: str, stop: str, label: str) -> str:
        x0, x1 = columns[start].x, columns[stop].x
        side = 4 if x1 > x0 else -4
        return (
            f'<line x1="{x0 + side:g}" y1="{y:g}" x2="{x1 - side:g}" y2="{y:g}" stroke="{LINE}" stroke-width="1.3" '
            f'marker-end="url(#tip)"/>' + text((x0 + x1) / 2, y - 7, label)
        )

    def note(y: float, column: str, label: str) -> str:
        side = -10 if column == "node b" else 10
        return text(columns[column].x + side, y, label, anchor="end" if side < 0 else "start")

    steps = [
        step(100, "node a", "log", "append frame 41, epoch 7"),
        step(130, "log", "node a", "committed: the answers are sent"),
        step(165, "log", "node b", "frames 1 to 41: the follower is warm"),
        note(205, "node a", "stops, or is cut off"),
        note(240, "node b", "the lease has run out"),
        step(275, "node b", "log", "append epoch 8 after frame 41"),
        step(305, "log", "node b", "committed: node b is the owner"),
        note(340, "node b", "serves the shard"),
        step(380, "node a", "log", "append frame 42, epoch 7"),
        step(410, "log", "node a", "refused: a higher epoch is there"),
        note(445, "node a", "fenced: it forgets what was not committed"),
    ]
    return picture(
        900, 480, "A shard moves to another node after a failure", [*life, *map(drawn, columns.values()), *steps]
    )


DIAGRAMS = {"lifecycle.svg": lifecycle, "architecture.svg": architecture, "failover.svg": failover}
