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
    topic: str
    subscription: str
    history: str  # a queue that retains its messages
    group: str
    schedule: str


STEP_S = 20
PAUSED = "held-orders"  # a queue whose delivery is paused
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
    rest("POST", "/v1/queues", {"name": PAUSED})
    for at in range(12):
        body = {"body": {"order": at}, "messageGroupId": "acme" if at % 4 else "zeta"}
        rest("POST", f"/v1/queues/{PAUSED}/messages", body)
    rest("PATCH", f"/v1/queues/{PAUSED}", {"paused": "delivery", "deliveriesPerSecond": 50})
    rest("POST", "/v1/keys", {"name": "grafana", "role": "read", "expiresInSeconds": 864_000})
    queue, dead = "demo-orders", "demo-emails-dead"
    held = rest("GET", f"/v1/queues/{queue}/messages?state=IN_FLIGHT&limit=1")["messages"][0]["currentId"]
    letter = rest("GET", f"/v1/queues/{dead}/messages?limit=1")["messages"][0]["currentId"]
    job = rest("POST", "/v1/queues/demo-thumbnails-dead:redrive", {"maxMessagesPerSecond": 1})["jobId"]
    subscription = fill_topic(rest, "shop-events")
    fill_history(rest, "demo-journal", "analytics")
    schedule = fill_schedule(rest, "demo-nightly", "demo-reports")
    alarm = wait_for_alarm(rest, dead)
    parts = ("shop-events", subscription, "demo-journal", "analytics", schedule)
    return Shown(queue, dead, held, letter, job, alarm, *parts)


def fill_schedule(rest: Rest, name: str, queue: str) -> str:
    """A schedule and one that is paused. Returns the id of the first."""
    rest("POST", "/v1/queues", {"name": queue})
    message = {"body": {"report": "daily"}, "attributes": {"kind": "report"}}
    timing = {"cron": "30 2 * * MON-FRI", "timeZone": "Europe/Berlin"}
    often = {"name": f"{name}-often", "queue": queue, "rateSeconds": 300, "message": {"body": "tick"}}
    rest("POST", "/v1/schedules", {**often, "enabled": False})
    made: str = rest("POST", "/v1/schedules", {"name": name, "queue": queue, **timing, "message": message})[
        "scheduleId"
    ]
    return made


def fill_topic(rest: Rest, topic: str) -> str:
    """A topic with three subscriptions, of which one has a filter. Returns the id of that one."""
    rest("POST", "/v1/topics", {"name": topic})
    path = f"/v1/topics/{topic}/subscriptions"
    for name in (f"{topic}-all", f"{topic}-billing", f"{topic}-audit", f"{topic}-refused"):
        rest("POST", "/v1/queues", {"name": name})
    policy = {"kind": ["created", {"prefix": "order-"}], "total": [{"numeric": [">=", 100]}]}
    filtered = {"queue": f"{topic}-billing", "filterPolicy": policy, "deadLetterQueue": f"{topic}-refused"}
    rest("POST", path, {"queue": f"{topic}-all"})
    rest("POST", path, {"queue": f"{topic}-audit", "rawDelivery": False})
    made: str = rest("POST", path, filtered)["subscriptionId"]
    return made


def fill_history(rest: Rest, queue: str, group: str) -> None:
    """A queue that retains its messages, and a reader group that has read some of them."""
    rest("POST", "/v1/queues", {"name": queue, "retainSeconds": 86_400})
    for number in range(30):
        rest("POST", f"/v1/queues/{queue}/messages", {"body": {"entry": number}})
    path = f"/v1/queues/{queue}/readers"
    rest("POST", path, {"name": group})
    member = rest("POST", f"{path}/{group}:join", {"member": "reader-1"})
    claim = {"member": "reader-1", "epoch": member["epoch"]}
    fetched = rest("POST", f"{path}/{group}:fetch", {**claim, "maxMessages": 10})["messages"]
    rest("POST", f"{path}/{group}:commit", {**claim, "positions": [fetched[-1]["position"]]})


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
    topic, history = f"/ui/topics/{quote(shown.topic)}", f"/ui/queues/{quote(shown.history)}"
    return {
        "overview": "/ui",
        "queues": "/ui/queues",
        "queue": queue,
        "queue-paused": f"/ui/queues/{PAUSED}",
        "queue-messages": f"{queue}/messages",
        "queue-send-receive": f"{queue}/try",
        "queue-consumers": f"{queue}/consumers",
        "queue-settings": f"{queue}/settings",
        "queue-history": f"{history}/history",
        "queue-without-history": f"{queue}/history",
        "reader-group": f"{history}/readers/{quote(shown.group)}",
        "replay": f"{history}/replay",
        "queue-counters": f"{queue}/counters",
        "topics": "/ui/topics",
        "topic": topic,
        "topic-publish": f"{topic}/publish",
        "topic-waiting": f"{topic}/waiting",
        "topic-settings": f"{topic}/settings",
        "subscription": f"{topic}/subscriptions/{shown.subscription}",
        "create-topic": "/ui/create-topic",
        "schedules": "/ui/schedules",
        "schedule": f"/ui/schedules/{quote(shown.schedule)}",
        "create-schedule": "/ui/create-schedule",
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
