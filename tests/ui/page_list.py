"""Every page of the dashboard, on a server with something to show on each. Tests and pictures go through this list."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from tests.system.process import baton
from tests.ui.servers import Rest, UiServer, wait_for


class Shown(NamedTuple):
    """What the pages are about."""

    queue: str
    dead_letter_queue: str
    message: str  # in flight
    dead_letter: str
    job: str
    alarm: str


STEP_S = 20
REPORT = "<!doctype html><html lang=en><title>Report · Baton</title><main><h1>Report</h1><p>Figures of a day.</main>"


@contextmanager
def filled_server(directory: Path) -> Iterator[tuple[UiServer, Shown]]:
    """A server with something to show on every page."""
    reports = directory / "reports"
    reports.mkdir()
    (reports / "today.html").write_text(REPORT)
    with UiServer(directory / "data", "--reports", str(reports)) as server:
        yield server, _fill(server)


def _fill(server: UiServer) -> Shown:
    """The demo's queues and messages, a key, and a redrive that takes a while."""
    done = baton("demo", "--url", server.url, "--once")
    assert done.returncode == 0, done.stderr
    rest = server.rest
    rest("POST", "/v1/keys", {"name": "orders-service"})
    rest("POST", "/v1/keys", {"name": "grafana", "role": "read", "expiresInSeconds": 864_000})
    queue, dead = "demo-orders", "demo-emails-dead"
    held = rest("GET", f"/v1/queues/{queue}/messages?state=IN_FLIGHT&limit=1")["messages"][0]["currentId"]
    letter = rest("GET", f"/v1/queues/{dead}/messages?limit=1")["messages"][0]["currentId"]
    job = rest("POST", "/v1/queues/demo-thumbnails-dead:redrive", {"maxMessagesPerSecond": 1})["jobId"]
    return Shown(queue, dead, held, letter, job, wait_for_alarm(rest, dead))


def wait_for_alarm(rest: Rest, queue: str) -> str:
    """Let time pass until a queue has an alarm: dead letters that stay for a minute raise one."""

    def look() -> str:
        rest("POST", "/_baton/clock/advance", {"seconds": STEP_S})
        time.sleep(1)  # the rules are evaluated every few seconds
        found = [one["alarm"] for one in rest("GET", "/v1/alarms")["alarms"] if one.get("queue") == queue]
        return found[0] if found else ""

    return wait_for(look)


def paths(shown: Shown) -> dict[str, str]:
    """Path by name. Names are file names of pictures."""
    queue, dead = f"/ui/queues/{quote(shown.queue)}", f"/ui/queues/{quote(shown.dead_letter_queue)}"
    return {
        "overview": "/ui",
        "queues": "/ui/queues",
        "queue": queue,
        "queue-messages": f"{queue}/messages",
        "queue-send-receive": f"{queue}/try",
        "queue-consumers": f"{queue}/consumers",
        "queue-settings": f"{queue}/settings",
        "create-queue": "/ui/create-queue",
        "connect": "/ui/start",
        "figures": "/ui/figures",
        "message": f"{queue}/messages/{shown.message}",
        "dead-letter": f"{dead}/messages/{shown.dead_letter}",
        "dead-letter-queues": "/ui/dead-letters",
        "dead-letters": f"{dead}/dead-letters",
        "jobs": "/ui/jobs",
        "job": f"/ui/jobs/{shown.job}",
        "workers": "/ui/workers",
        "cluster": "/ui/cluster",
        "alarms": "/ui/alarms",
        "alarm": f"/ui/alarms/{quote(shown.alarm)}",
        "keys": "/ui/keys",
        "reports": "/ui/reports",
        "report": "/ui/reports/today.html",
    }


def is_listed(route: str, listed: dict[str, str]) -> bool:
    """Whether a route such as `/ui/jobs/{job}` is that of a listed path."""
    parts = route.split("/")
    return any(_fits(parts, path.partition("?")[0].split("/")) for path in listed.values())


def _fits(parts: list[str], given: list[Any]) -> bool:
    return len(parts) == len(given) and all(
        part.startswith("{") or part == text for part, text in zip(parts, given, strict=True)
    )
