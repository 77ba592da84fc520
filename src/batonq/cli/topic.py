"""`baton topic list|show|create|set|delete|publish|subscribe|unsubscribe|match|waiting`."""

from __future__ import annotations

import argparse
import json
from typing import Any
from urllib.parse import quote

from batonq.cli.actions import add_action
from batonq.cli.confirm import add_yes_argument, confirm
from batonq.cli.connection import Server, add_connection_arguments, connect, queue_path
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.output import duration, moment, note, print_fields, print_json, print_table, style
from batonq.cli.parser import did_you_mean
from batonq.cli.peek import HEAD, LIMIT_MAX, row
from batonq.cli.quantities import parse_duration_s
from batonq.cli.send import Destination, add_message_arguments, encode_body, parse_attributes, send_given
from batonq.errors import BatonError, NotFound, QueueDoesNotExist, SubscriptionExists, TopicDoesNotExist
from batonq.quantities import plural

PAGE = 1_000
FILTER_LENGTH_SHOWN = 60
SCOPES = {"attributes": "MessageAttributes", "body": "MessageBody"}
FLAGS = {"filterPolicy": "--filter", "retentionSeconds": "--retention", "displayName": "--display-name"}
SETTINGS = {"display-name": "displayName", "retention": "retentionSeconds", "tags": "tags"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    listing = add_action(actions, "list", "list topics")
    listing.add_argument("prefix", metavar="PREFIX", nargs="?", help="only topics whose name starts with this")
    listing.add_argument("--names", action="store_true", help="print only the names, one per line")
    show = add_action(actions, "show", "show a topic and its subscriptions")
    create = add_action(actions, "create", "create a topic; an existing topic with the same settings is no error")
    create.add_argument("--fifo", action="store_true", help="a FIFO topic (default if the name ends with .fifo)")
    change = add_action(actions, "set", "change settings of a topic; other settings do not change")
    change.add_argument(
        "--unset", action="append", default=[], choices=SETTINGS, metavar="SETTING", help="restore a setting's default"
    )
    delete = add_action(actions, "delete", "delete a topic and its subscriptions; the queues stay")
    publish = add_action(actions, "publish", "publish messages: each subscribed queue whose filter matches gets a copy")
    subscribe = add_action(actions, "subscribe", "subscribe a queue to a topic")
    unsubscribe = add_action(actions, "unsubscribe", "remove the subscription of a queue")
    match = add_action(actions, "match", "show which queues would get a message, and why others would not")
    waiting = add_action(actions, "waiting", "show the copies that their queue cannot take, and why")
    waiting.add_argument("--after", type=int, default=0, help="show copies after this sequence number (default 0)")
    waiting.add_argument("--limit", type=int, default=10, help=f"maximum number, 1 to {LIMIT_MAX} (default 10)")
    everything = (listing, show, create, change, delete, publish, subscribe, unsubscribe, match, waiting)
    for action in everything[1:]:
        action.add_argument("topic", metavar="TOPIC", help="name of the topic")
    for action in (create, change):
        _add_settings(action)
    add_yes_argument(delete)
    add_message_arguments(publish)
    publish.add_argument("--subject", metavar="TEXT", help="subject of the message, for subscriptions with --envelope")
    for action in (subscribe, unsubscribe):
        action.add_argument("queue", metavar="QUEUE", help="name of the queue")
    _add_subscription_settings(subscribe)
    match.add_argument("body", metavar="BODY", nargs="?", help="the body of the message")
    match.add_argument(
        "--attribute",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an attribute; NAME:=5 is a number; can be repeated",
    )
    for action in everything:
        action.add_argument("--json", action="store_true", help="print JSON")
        add_connection_arguments(action)


def _add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--display-name", metavar="TEXT", help="name of the topic for people")
    parser.add_argument(
        "--retention",
        type=parse_duration_s,
        metavar="TIME",
        help="how long a copy waits for a queue that is full or paused: 1h, 4d (default 4d)",
    )
    parser.add_argument(
        "--content-based-deduplication",
        choices=("true", "false"),
        help="FIFO topics: use the SHA-256 of the body as the deduplication key of a message without one",
    )
    parser.add_argument("--tag", action="append", default=[], metavar="NAME=VALUE", help="a tag; can be repeated")


def _add_subscription_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--filter", metavar="JSON", help='filter policy, for example \'{"shop": ["north"]}\'')
    parser.add_argument(
        "--filter-on", choices=SCOPES, help="what the filter compares: the attributes (default), or the JSON body"
    )
    parser.add_argument("--envelope", action="store_true", help="deliver messages in SNS's JSON envelope, not raw")
    parser.add_argument(
        "--dead-letter-queue", metavar="QUEUE", help="queue for copies that the subscribed queue refuses"
    )
    parser.add_argument("--replace", action="store_true", help="change the subscription to these settings if it exists")


def topic_path(name: str, *rest: str) -> str:
    """The path of a topic, or of something in it, in the REST API."""
    return "/".join(("/v1/topics", quote(name, safe=""), *rest))


def run(arguments: argparse.Namespace) -> int:
    actions = {
        "list": _list,
        "show": _show,
        "create": _create,
        "set": _set,
        "delete": _delete,
        "subscribe": _subscribe,
        "unsubscribe": _unsubscribe,
        "match": _match,
        "waiting": _waiting,
    }
    try:
        if arguments.action == "publish":
            name = arguments.topic
            return send_given(arguments, Destination("topic", name, topic_path(name, "messages"), "Published"))
        return actions[arguments.action](connect(arguments, FLAGS), arguments)
    except TopicDoesNotExist:
        raise _no_such_topic(connect(arguments), arguments.topic) from None


def _no_such_topic(server: Server, name: str) -> BatonError:
    try:
        similar = did_you_mean(name, [topic["name"] for topic in server.get("/v1/topics", limit=PAGE)["topics"]])
    except BatonError:
        similar = ""
    return TopicDoesNotExist(
        f"Topic {name!r} does not exist at {server.url}.{similar} `baton topic list` lists the topics."
    )


# --- topics -----------------------------------------------------------------------------------


def _list(server: Server, arguments: argparse.Namespace) -> int:
    topics = _pages(server, "/v1/topics", "topics", prefix=arguments.prefix)
    if arguments.json:
        print_json({"topics": topics})
    elif arguments.names:
        for topic in topics:
            print(topic["name"])
    elif not topics:
        note(f"There are no topics at {server.url}. Create one with `baton topic create NAME`.")
    else:
        rows = [
            (
                topic["name"],
                "fifo" if topic["fifo"] else "standard",
                str(topic["subscriptions"]),
                moment(topic["createdAtMs"]),
                topic.get("displayName", ""),
            )
            for topic in topics
        ]
        print_table(("TOPIC", "TYPE", "SUBSCRIPTIONS", "CREATED", "DISPLAY NAME"), rows, right=("SUBSCRIPTIONS",))
    return 0


def _pages(server: Server, path: str, field: str, **query: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = server.get(path, limit=PAGE, cursor=cursor, **query)
        found += page[field]
        cursor = page.get("nextCursor")
        if cursor is None:
            return found


def _show(server: Server, arguments: argparse.Namespace) -> int:
    topic = server.get(topic_path(arguments.topic))
    subscriptions = _subscriptions(server, arguments.topic)
    if arguments.json:
        print_json({"topic": topic, "subscriptions": subscriptions})
        return 0
    print(style(f"{topic['name']}  ({'FIFO' if topic['fifo'] else 'standard'})", "bold"))
    tags = ", ".join(f"{name}={value}" for name, value in sorted(topic["tags"].items()))
    fields = [
        ("arn", topic["arn"]),
        ("display name", topic.get("displayName", "")),
        ("retention", duration(topic["retentionSeconds"])),
        ("content-based deduplication", "true" if topic.get("contentBasedDeduplication") else ""),
        ("tags", tags),
        ("waiting copies", _count_waiting(topic)),
        ("created", moment(topic["createdAtMs"])),
        ("changed", moment(topic["modifiedAtMs"])),
    ]
    print_fields([(name, value) for name, value in fields if value])
    if not subscriptions:
        note(f"No queue is subscribed. Subscribe one with `baton topic subscribe {topic['name']} QUEUE`.")
        return 0
    print_table(
        ("QUEUE", "DELIVERY", "DEAD LETTERS", "FILTER"),
        [
            (
                each["queue"] + (" (deleted)" if each.get("queueMissing") else ""),
                "raw" if each["rawDelivery"] else "envelope",
                each.get("deadLetterQueue", ""),
                _shown_filter(each),
            )
            for each in subscriptions
        ],
    )
    return 0


def _subscriptions(server: Server, topic: str) -> list[dict[str, Any]]:
    return _pages(server, topic_path(topic, "subscriptions"), "subscriptions")


def _waiting(server: Server, arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.limit <= LIMIT_MAX:
        raise WrongUsage(f"--limit must be from 1 to {LIMIT_MAX}, not {arguments.limit}.")
    found = server.get(topic_path(arguments.topic, "messages"), after=arguments.after, limit=arguments.limit)
    if arguments.json:
        print_json(found)
        return 0
    if found["messages"]:
        print_table(HEAD, [row(message) for message in found["messages"]], right=("SEQUENCE", "RECEIVED"))
    else:
        note(f"No copy waits in topic {arguments.topic}{f' after {arguments.after}' if arguments.after else ''}.")
    if "nextAfter" in found:
        note(f"There are more copies: --after {found['nextAfter']}")
    return 0


def _count_waiting(topic: dict[str, Any]) -> str:
    """2 copies, the oldest for 5m"""
    count = topic.get("waitingCopies", 0)
    return f"{count:,}, the oldest for {duration(topic.get('oldestWaitingSeconds', 0))}" if count else ""


def _shown_filter(subscription: dict[str, Any]) -> str:
    if "filterPolicy" not in subscription:
        return ""
    text = json.dumps(subscription["filterPolicy"], ensure_ascii=False)
    if len(text) > FILTER_LENGTH_SHOWN:
        text = f"{text[:FILTER_LENGTH_SHOWN]}…"
    return f"body: {text}" if subscription["filterPolicyScope"] == SCOPES["body"] else text


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that the flags name."""
    given: dict[str, Any] = {}
    if arguments.display_name is not None:
        given["displayName"] = arguments.display_name
    if arguments.retention is not None:
        given["retentionSeconds"] = round(arguments.retention)
    if arguments.content_based_deduplication is not None:
        given["contentBasedDeduplication"] = arguments.content_based_deduplication == "true"
    if arguments.tag:
        pairs = [tag.partition("=") for tag in arguments.tag]
        wrong = next(
            (tag for tag, (name, equals, _) in zip(arguments.tag, pairs, strict=True) if not name or not equals), ""
        )
        if wrong:
            raise WrongUsage(f"--tag {wrong!r} must look like team=payments.")
        given["tags"] = {name: value for name, _, value in pairs}
    return given


def _create(server: Server, arguments: argparse.Namespace) -> int:
    fifo = arguments.fifo or arguments.topic.endswith(".fifo")
    spec = {"name": arguments.topic, **({"mode": "FIFO"} if fifo else {}), **_given(arguments)}
    topic = server.post("/v1/topics", spec)
    if arguments.json:
        print_json(topic)
    else:
        print(f"Topic {topic['name']} {'already exists, unchanged' if server.status == 200 else 'is created'}.")
    return 0


def _set(server: Server, arguments: argparse.Namespace) -> int:
    changes = _given(arguments)
    for name in arguments.unset:
        if SETTINGS[name] in changes:
            raise WrongUsage(f"{name} is both set and unset.")
        changes[SETTINGS[name]] = None
    if not changes:
        raise WrongUsage(f"Nothing to change in topic {arguments.topic}. Give a setting, for example --retention 1d.")
    if isinstance(changes.get("tags"), dict):
        changes["tags"] = {**server.get(topic_path(arguments.topic))["tags"], **changes["tags"]}
    topic = server.call("PATCH", topic_path(arguments.topic), changes)
    if arguments.json:
        print_json(topic)
    else:
        print(f"Topic {topic['name']} is changed.")
    return 0


def _delete(server: Server, arguments: argparse.Namespace) -> int:
    name = arguments.topic
    count = server.get(topic_path(name))["subscriptions"]
    confirm(f"This deletes topic {name} at {server.url} with {plural(count, 'subscription')}.", yes=arguments.yes)
    server.call("DELETE", topic_path(name))
    if arguments.json:
        print_json({"topic": name, "deleted": True, "subscriptions": count})
    else:
        print(f"Topic {name} is deleted.")
    return 0


# --- subscriptions ----------------------------------------------------------------------------


def _subscribe(server: Server, arguments: argparse.Namespace) -> int:
    topic, queue = arguments.topic, arguments.queue
    spec: dict[str, Any] = {"rawDelivery": not arguments.envelope}
    if arguments.filter is not None:
        spec["filterPolicy"] = _policy(arguments.filter)
    if arguments.filter_on is not None:
        spec["filterPolicyScope"] = SCOPES[arguments.filter_on]
    if arguments.dead_letter_queue is not None:
        spec["deadLetterQueue"] = arguments.dead_letter_queue
    existing = _of_queue(server, topic, queue) if arguments.replace else None
    if existing is not None:
        defaults = {"filterPolicy": None, "filterPolicyScope": None, "deadLetterQueue": None}
        path = topic_path(topic, "subscriptions", existing["subscriptionId"])
        found, done = server.call("PATCH", path, {**defaults, **spec}), "changed"
    else:
        try:
            found = server.post(topic_path(topic, "subscriptions"), {"queue": queue, **spec})
        except SubscriptionExists as problem:
            said, _, _ = problem.message.partition(" Update the existing subscription")
            raise SubscriptionExists(f"{said} Use --replace to change it.") from None
        except QueueDoesNotExist:
            missing = arguments.dead_letter_queue if _has_queue(server, queue) else queue
            raise server.no_such_queue(queue_path(missing)) from None
        done = (
            f"already subscribed to topic {topic}, unchanged"
            if server.status == 200
            else f"subscribed to topic {topic}"
        )
    if arguments.json:
        print_json(found)
    else:
        what = f"The subscription of queue {queue} to topic {topic}" if existing else f"Queue {queue}"
        print(f"{what} is {done}.")
    return 0


def _has_queue(server: Server, name: str) -> bool:
    try:
        return bool(server.get(queue_path(name)))
    except QueueDoesNotExist:
        return False


def _policy(text: str) -> dict[str, Any]:
    try:
        policy = json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise WrongUsage(f"--filter is not JSON: {problem}.") from None
    if not isinstance(policy, dict):
        raise WrongUsage('--filter must be a JSON object, such as {"shop": ["north"]}.')
    return policy


def _of_queue(server: Server, topic: str, queue: str) -> dict[str, Any] | None:
    """The subscription of a queue, by the queue's name or the subscription's id."""
    for each in _subscriptions(server, topic):
        if queue in (each["queue"], each["subscriptionId"]):
            return each
    return None


def _unsubscribe(server: Server, arguments: argparse.Namespace) -> int:
    topic, queue = arguments.topic, arguments.queue
    found = _of_queue(server, topic, queue)
    if found is None:
        raise NotFound(f"Queue {queue} is not subscribed to topic {topic}. `baton topic show {topic}` lists who is.")
    server.call("DELETE", topic_path(topic, "subscriptions", found["subscriptionId"]))
    if arguments.json:
        print_json({"topic": topic, "queue": found["queue"], "unsubscribed": True})
    else:
        print(f"Queue {found['queue']} is unsubscribed from topic {topic}.")
    return 0


def _match(server: Server, arguments: argparse.Namespace) -> int:
    spec = json.dumps({"attributes": parse_attributes(arguments.attribute)}, ensure_ascii=False).encode()
    if arguments.body is not None:
        body = encode_body(arguments.body.encode("utf-8", "surrogateescape"))
        if not body.startswith('"body"'):
            raise WrongUsage("The body is not text in UTF-8.")
        spec = b"{" + body.encode() + b", " + spec[1:]
    found = server.post(topic_path(arguments.topic) + ":match", spec)
    if arguments.json:
        print_json(found)
        return 0
    rows = [
        (each["queue"], "yes" if each["matches"] else "no", each.get("reason", "")) for each in found["subscriptions"]
    ]
    if rows:
        print_table(("QUEUE", "GETS IT", "WHY NOT"), rows)
    total = len(rows) + found.get("leftOut", 0)
    note(f"{found['matched']} of {plural(total, 'subscription')} would get the message.")
    return 0
