"""Texts of an attacker, sent through every field that a page can show, and the proof that none of them ran.

Each text calls the function `xssRan`, which the harness reports, or asks another host for something, which the harness
reports too. Texts that need other surroundings (an attribute, a script, a text area) close them first.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from playwright.sync_api import Page

from tests.ui.servers import Rest, wait_for

MARKUP = (
    "<script>xssRan('script')</script>",
    "\"><img src=x onerror=xssRan('image')>",
    "'><svg onload=xssRan('svg')>",
    "</script><script>xssRan('closed')</script>",
    "</textarea></title></style><script>xssRan('text')</script>",
    "<a href=\"javascript:xssRan('link')\">open</a>",
    "<input autofocus onfocus=xssRan('focus')>",
    "<p onmouseover=xssRan('over')>over</p>",
    "<details open ontoggle=xssRan('toggle')>",
    "<iframe srcdoc=\"<script>parent.xssRan('frame')</script>\"></iframe>",
    "<img src=http://localhost:9/leak.png>",
    "<link rel=stylesheet href=http://localhost:9/leak.css>",
    "--><script>xssRan('comment')</script><!--",
)
# Harmless as markup: they need an attribute, an address or a template around them.
OTHERS = (
    '" onmouseover="xssRan(\'attribute\')" x="',
    "' onfocus='xssRan(1)' autofocus='",
    "javascript:xssRan('address')",
    "{{constructor.constructor('xssRan(1)')()}}${xssRan(2)}<%= xssRan(3) %>",
    "\u2028\u202exssRan(1)//",
)
PAYLOADS = MARKUP + OTHERS
SHORT = "<img src=x onerror=xssRan('short')>"  # for names of consumers and clients
TIGHT = "<svg/onload=xssRan('tight')>"  # no spaces: for groups and deduplication ids
LOOKS_LIKE_HTMX = "<b hx-get=/ui/ hx-trigger=load hx-on:load=xssRan('htmx') data-hx-get=/ui/>x</b>"

# Calls the inline handlers that an attacker planted, and lists them.
_POKE = """
() => {
  for (const element of document.querySelectorAll('*')) {
    for (const kind of ['mouseover', 'mouseenter', 'focus', 'error', 'toggle']) element.dispatchEvent(new Event(kind));
    if (element.tagName === 'A' && element.protocol === 'javascript:') window.xssRan('link ' + element.href);
  }
  const attributes = Object.getOwnPropertyDescriptor(Element.prototype, 'attributes').get;  // a form can hide its own
  const inline = [...document.querySelectorAll('*')].flatMap(element => [...attributes.call(element)]
    .filter(attribute => attribute.name.startsWith('on') || /^\\s*javascript:/i.test(attribute.value))
    .filter(attribute => attribute.name !== 'value')
    .map(attribute => element.tagName + ' ' + attribute.name + '=' + attribute.value));
  if (inline.length) window.xssRan(inline.slice(0, 5).join('; '));
}
"""


def poke(page: Page) -> None:
    """Hover over and focus everything, and report inline handlers and `javascript:` addresses that a page contains."""
    page.evaluate(_POKE)


class Planted(NamedTuple):
    """Where the texts are."""

    queue: str
    dead_letter_queue: str
    message_id: str  # visible, with a failure
    held_id: str  # in flight
    dead_id: str  # in the dead-letter queue


def plant(rest: Rest, name: str) -> Planted:
    """Put the texts into every field of a queue, its messages, its failures and its consumers."""
    dead = f"{name}-dead"
    tags: dict[str, Any] = {payload[:128]: payload[:256] for payload in PAYLOADS}
    rest("POST", "/v1/queues", {"name": name, "deadLetterQueue": dead, "maxReceiveCount": 1, "tags": tags})
    queue = f"/v1/queues/{name}"
    agent = {"User-Agent": SHORT}
    bodies = [*PAYLOADS, LOOKS_LIKE_HTMX, {payload: [payload, {payload: None}] for payload in PAYLOADS}]
    for body in bodies:
        rest("POST", f"{queue}/messages", {"body": body}, agent)
    # Dead letters: each with another reason and class.
    attributes = {f"a{number}": payload for number, payload in enumerate(PAYLOADS)}
    for number, payload in enumerate(PAYLOADS):
        message = {"body": payload, "messageGroupId": TIGHT, "deduplicationKey": f"{TIGHT}{number}"}
        rest("POST", f"{queue}/messages", {**message, "attributes": attributes, "tracestate": f"x={TIGHT[:-1]}"}, agent)
    taken = _receive(rest, queue, SHORT, agent)
    failed, held = taken[:-1], taken[-1]
    for number, message in enumerate(failed):
        payload = PAYLOADS[number % len(PAYLOADS)]
        path = f"{queue}/messages/{message['receiptHandle']}:nack"
        rest("POST", path, {"reason": payload, "errorClass": payload[:100], "deadLetter": True}, agent)
    last = {"body": json.dumps(PAYLOADS), "attributes": attributes, "messageGroupId": TIGHT}
    waiting = rest("POST", f"{queue}/messages", last, agent)["messageId"]
    letters = wait_for(lambda: _letters(rest, dead, len(failed)))
    return Planted(name, dead, waiting, held["messageId"], letters[0]["messageId"])


def plant_fanout(rest: Rest, name: str) -> str:
    """Put the texts into every field of a topic, a subscription, retained messages, a reader group and a schedule,
    all of this name. Returns the id of the subscription.
    """
    tags = {payload[:128]: payload[:256] for payload in PAYLOADS}
    rest("POST", "/v1/queues", {"name": name, "retainSeconds": 3_600})
    rest("POST", "/v1/topics", {"name": name, "displayName": SHORT, "tags": tags})
    policy = {"kind": [SHORT, {"prefix": PAYLOADS[0]}], PAYLOADS[1]: [{"exists": False}]}
    made: str = rest("POST", f"/v1/topics/{name}/subscriptions", {"queue": name, "filterPolicy": policy})[
        "subscriptionId"
    ]
    rest("POST", "/v1/queues", {"name": f"{name}-full", "maxMessages": 1})
    rest("POST", f"/v1/topics/{name}/subscriptions", {"queue": f"{name}-full"})
    for payload in PAYLOADS:
        rest("POST", f"/v1/queues/{name}/messages", {"body": payload, "messageGroupId": TIGHT})
        rest("POST", f"/v1/topics/{name}/messages", {"body": payload, "messageGroupId": TIGHT})
    group = f"/v1/queues/{name}/readers/{name}"
    rest("POST", f"/v1/queues/{name}/readers", {"name": name})
    claim = {"member": TIGHT, "epoch": rest("POST", f"{group}:join", {"member": TIGHT})["epoch"]}
    first = rest("POST", f"{group}:fetch", {**claim, "maxMessages": 1})["messages"][0]["position"]
    rest("POST", f"{group}:fail", {**claim, "position": first, "error": SHORT})
    hostile = {"body": {payload: payload for payload in PAYLOADS}, "attributes": {"a": SHORT}, "messageGroupId": TIGHT}
    rest("POST", "/v1/schedules", {"name": name, "queue": name, "rateSeconds": 3_600, "message": hostile})
    return made


def _letters(rest: Rest, queue: str, count: int) -> list[dict[str, Any]]:
    """All of them, or none while some are on their way."""
    found: list[dict[str, Any]] = rest("GET", f"/v1/queues/{queue}/messages?limit=100")["messages"]
    return found if len(found) == count else []


def _receive(rest: Rest, queue: str, consumer: str, headers: dict[str, str]) -> list[dict[str, Any]]:
    wanted = {"maxMessages": 100, "consumer": consumer, "visibilityTimeoutSeconds": 3600}
    got: list[dict[str, Any]] = rest("POST", f"{queue}/messages:receive", wanted, headers)["messages"]
    return got
