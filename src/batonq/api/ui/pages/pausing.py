"""Pausing and resuming a queue: the forms of its pages, and the banner that says what is held back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import Problem, path_of, segment
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Redirect, View
from batonq.queue_attributes import NOT_PAUSED

# What each button does: the changes of the queue's settings, and the notice after them.
_ACTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "delivery": ({"paused": "delivery"}, "Delivery is paused: receives get nothing, and long polls wait."),
    "sends": ({"paused": "sends"}, "Sends are paused: new messages are refused, and deliveries go on."),
    "both": ({"paused": "both"}, "Delivery and sends are paused."),
    "resume": (
        {"paused": None, "onlyGroup": None, "minimumPriority": None},
        "Resumed: the queue delivers and accepts all messages.",
    ),
}
_PAUSED = {
    "delivery": "Delivery is paused: receives get nothing, and long polls wait.",
    "sends": "Sends are paused: new messages are refused. Deliveries go on.",
    "both": "Delivery and sends are paused.",
}


def held_back(queue: Mapping[str, Any]) -> list[str]:
    """What the queue holds back, one sentence each; empty if it delivers and accepts everything."""
    found: list[str] = []
    paused = queue.get("paused", NOT_PAUSED)
    if paused != NOT_PAUSED:
        found.append(_PAUSED.get(paused, f"Paused: {paused}."))
    if queue.get("onlyGroup"):
        found.append(f"Only messages of the group {queue['onlyGroup']} are delivered.")
    if queue.get("minimumPriority"):
        found.append(f"Only messages of priority {queue['minimumPriority']} or above are delivered.")
    return found


def capped(queue: Mapping[str, Any]) -> str:
    """The queue's cap on deliveries, as a sentence; empty if it has none."""
    cap = int(queue.get("deliveriesPerSecond", 0))
    return f"Deliveries are capped at {formats.plural(cap, 'message')} per second." if cap else ""


async def act(view: View) -> Redirect:
    name = view.names["queue"]
    changes, notice = _ACTIONS.get(view.form.get("verb", ""), (None, ""))
    if changes is None:
        raise Problem(400, "invalid_input", "Choose what to pause: delivery, sends or both; or resume.")
    await view.backend.change("PATCH", path_of("queues", name), changes)
    return Redirect(f"/ui/queues/{segment(name)}", notice)


ROUTES = (Route("/ui/queues/{queue}/pause", act=act, tab="queues"),)
