"""Dead letters: the dead-letter queues of the server, and the content of one of them, grouped by error and shape."""

from __future__ import annotations

from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import path_of, segment
from batonq.api.ui.pages.message import address
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Level, Page, View

QUEUES_MAX = 200
PAGE = 50


async def show_queues(view: View) -> Page:
    """All dead-letter queues, fullest first."""
    found = await view.backend.get("/v1/queues:stats", sort="dead", order="desc", limit=QUEUES_MAX)
    queues = [queue for queue in found["queues"] if queue.get("isDeadLetterQueue")]
    sentence, level = queues_sentence(queues)
    complete = found["total"] <= len(found["queues"])
    return Page("Dead letters", "dead_letter_queues.html", sentence, level, {"queues": queues, "complete": complete})


def queues_sentence(queues: list[dict[str, Any]]) -> tuple[str, Level]:
    full = [queue for queue in queues if depth(queue)]
    if not full:
        return "No dead letters.", "ok"
    total = sum(map(depth, full))
    most = max(full, key=depth)
    if len(full) == 1:
        return f"{most['name']} has {formats.plural(total, 'dead letter')}.", "warning"
    most_words = f"most of them in {most['name']} ({formats.number(depth(most))})"
    return f"{formats.plural(total, 'dead letter')} in {len(full)} queues, {most_words}.", "warning"


def depth(queue: dict[str, Any]) -> int:
    """Messages in a queue, in any state."""
    return sum(int(queue.get(name, 0)) for name in ("visible", "inFlight", "delayed", "owed"))


async def show_letters(view: View) -> Page:
    queue = view.names["queue"]
    found = await view.backend.get(path_of("queues", queue, "dead-letters"))
    error, text = view.query.get("errorClass", ""), view.query.get("text", "")
    after = view.whole("after", 0, 0, 1 << 53)
    listed = await view.optional(
        path_of("queues", queue, "messages"), limit=PAGE, after=after or None, errorClass=error, text=text
    )
    sentence, level = letters_sentence(found)
    return Page(
        f"Dead letters in {queue}",
        "dead_letters.html",
        sentence,
        level,
        {
            "queue": queue,
            "letters": found,
            "groups": found["groups"],
            "error": error,
            "text": text,
            "listed": listed,
            "address": address,
            "path": f"/ui/queues/{segment(queue)}/dead-letters",
            "to": target_words(found.get("sources", ())),
        },
    )


def letters_sentence(found: dict[str, Any]) -> tuple[str, Level]:
    total, groups = found["total"], found["groups"]
    if not total:
        return f"{found['queue']} has no dead letters.", "ok"
    sources = sorted({group["sourceQueue"] for group in groups if group.get("sourceQueue")})
    origin = f" from {', '.join(sources[:3])}" + (" and others" if len(sources) > 3 else "") if sources else ""
    said = f"{formats.plural(total, 'dead letter')}{origin}"
    if len(groups) == 1:
        return f"{said}, all with the same error: {cause(groups[0])}.", "warning"
    if groups:
        most = max(groups, key=lambda group: int(group["count"]))
        return (
            f"{said} with {len(groups)} kinds of errors; most often {cause(most)} ({formats.number(most['count'])}).",
            "warning",
        )
    return f"{said}.", "warning"


def cause(group: dict[str, Any]) -> str:
    return str(group.get("errorClass") or group.get("reason") or "no error was reported")[:100]


def target_words(sources: Any) -> str:
    """Where a redrive goes: the only source by name."""
    names = list(sources)
    return names[0] if len(names) == 1 else "their source queues"


ROUTES = (
    Route("/ui/dead-letters", show_queues, tab="dead-letters"),
    Route("/ui/queues/{queue}/dead-letters", show_letters, tab="dead-letters"),
)
