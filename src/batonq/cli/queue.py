"""`baton queue list|show|create|set|delete|purge|counters|consumers|series`, and what queue_pausing.py adds."""

from __future__ import annotations

import argparse
import shlex
from http import HTTPStatus
from typing import Any

from batonq.cli import queue_pausing
from batonq.cli.actions import add_action
from batonq.cli.confirm import add_yes_argument, confirm
from batonq.cli.connection import Server, add_connection_arguments, connect, queue_path
from batonq.cli.exit_codes import WrongUsage
from batonq.cli.output import (
    condensed,
    duration,
    moment,
    note,
    print_fields,
    print_json,
    print_table,
    printable,
    rate,
    size,
    spark,
    style,
)
from batonq.cli.queue_counters import show_counters
from batonq.cli.queue_flags import (
    add_setting_arguments,
    field_of,
    flags_of,
    given_settings,
    in_words_of_flags,
    shown_settings,
)
from batonq.errors import BatonError, QueueExists
from batonq.quantities import plural
from batonq.queue_attributes import NOT_PAUSED

SORTS = ("name", "visible", "inFlight", "delayed", "oldest", "sent", "received", "acked", "dead", "depth")
RANGES = ("15m", "1h", "6h", "24h", "72h")
SPARK_WIDTH = 48
LIST_DEFAULT = 100
PAGE = 1_000
TOPICS_SHOWN = 10
COLUMNS = ("QUEUE", "TYPE", "VISIBLE", "IN FLIGHT", "DELAYED", "DEAD", "OLDEST", "SENT/S", "RECV/S", "ACK/S", "NOTE")
NUMBERS = COLUMNS[2:-1]
OPTIONAL = ("RECV/S", "TYPE", "DELAYED", "ACK/S", "SENT/S")  # left out on a narrow terminal, in this order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    listing = add_action(actions, "list", "list queues with their depth, age and rates")
    listing.add_argument("search", metavar="TEXT", nargs="?", help="only queues whose name contains this text")
    listing.add_argument("--sort", choices=SORTS, default="name", help="order of the list (default name)")
    listing.add_argument("--reverse", action="store_true", help="reverse the order")
    listing.add_argument(
        "--limit",
        type=int,
        default=LIST_DEFAULT,
        metavar="N",
        help=f"maximum number of queues (default {LIST_DEFAULT})",
    )
    listing.add_argument("--all", action="store_true", help="list all queues, however many there are")
    listing.add_argument("--names", action="store_true", help="print only the names, one per line")
    show = add_action(actions, "show", "show the settings and statistics of a queue")
    create = add_action(actions, "create", "create a queue; an existing queue with the same settings is no error")
    create.add_argument("--fifo", action="store_true", help="a FIFO queue (default if the name ends with .fifo)")
    change = add_action(actions, "set", "change settings of a queue; other settings do not change")
    change.add_argument(
        "--unset", action="append", default=[], metavar="SETTING", help="restore a setting's default; can be repeated"
    )
    delete = add_action(actions, "delete", "delete a queue with all its messages")
    purge = add_action(actions, "purge", "delete all messages of a queue; the queue stays")
    counters = add_action(actions, "counters", "show exact counters at log positions, and where every message went")
    consumers = add_action(actions, "consumers", "show who receives from a queue, and who holds its messages")
    series = add_action(actions, "series", "show how a queue, or the whole server, behaved over time")
    series.add_argument("queue", metavar="QUEUE", nargs="?", help="name of the queue (default: the whole server)")
    series.add_argument("--range", choices=RANGES, default=RANGES[1], help=f"how far back (default {RANGES[1]})")
    pausing = queue_pausing.add_pausing_actions(actions)
    for action in (show, create, change, delete, purge, counters, consumers):
        action.add_argument("queue", metavar="QUEUE", help="name of the queue")
    for action in (create, change):
        add_setting_arguments(action)
    for action in (delete, purge):
        add_yes_argument(action)
    for action in (listing, show, create, change, delete, purge, counters, consumers, series, *pausing):
        action.add_argument("--json", action="store_true", help="print JSON")
        add_connection_arguments(action)


def run(arguments: argparse.Namespace) -> int:
    actions = {
        "list": _list,
        "show": _show,
        "create": _create,
        "set": _set,
        "delete": _delete,
        "purge": _purge,
        "counters": _counters,
        "consumers": _consumers,
        "series": _series,
        "pause": queue_pausing.pause,
        "resume": queue_pausing.resume,
        "drain": queue_pausing.drain,
        "pace": queue_pausing.pace,
    }
    server = connect(arguments)
    try:
        return actions[arguments.action](server, arguments)
    except BatonError as problem:
        raise type(problem)(in_words_of_flags(problem.message)) from None


# --- list -------------------------------------------------------------------------------------


def _list(server: Server, arguments: argparse.Namespace) -> int:
    if arguments.limit < 1:
        raise WrongUsage("--limit must be at least 1.")
    found = list_queues(
        server,
        search=arguments.search,
        sort=arguments.sort,
        reverse=arguments.reverse,
        limit=None if arguments.all else arguments.limit,
    )
    queues = found["queues"]
    if arguments.json:
        print_json(found)
    elif arguments.names:
        for queue in queues:
            print(queue["name"])
    elif not queues:
        what = f"No queue contains {arguments.search!r} in its name" if arguments.search else "There are no queues"
        note(f"{what} at {server.url}. Create one with `baton queue create NAME`.")
    else:
        print_table(COLUMNS, [summary_row(queue) for queue in queues], right=NUMBERS, optional=OPTIONAL)
        if found["total"] > len(queues):
            note(f"{plural(found['total'] - len(queues), 'more queue')}: use --limit or --all.")
    return 0


def list_queues(
    server: Server,
    *,
    search: str | None = None,
    sort: str = "name",
    reverse: bool = False,
    limit: int | None = None,
) -> dict[str, Any]:
    """Queues with their statistics, from as many pages as needed."""
    found: dict[str, Any] = {}
    queues: list[dict[str, Any]] = []
    while True:
        room = PAGE if limit is None else min(PAGE, limit - len(queues))
        page = server.get(
            "/v1/queues:stats",
            search=search or None,
            sort=sort,
            order=order_of(sort, reverse),
            offset=len(queues),
            limit=room,
        )
        found = found or page
        queues += page["queues"]
        if not page["queues"] or len(queues) >= min(page["total"], limit or page["total"]):
            return {**found, "queues": queues}


def order_of(sort: str, reverse: bool) -> str:
    """Names from a to z; figures from the largest on, because those need attention."""
    return "asc" if (sort == "name") != reverse else "desc"


def summary_row(queue: dict[str, Any]) -> tuple[str, ...]:
    return (
        queue["name"],
        "fifo" if queue["mode"] == "FIFO" else "standard",
        str(queue["visible"]),
        str(queue["inFlight"]),
        str(queue["delayed"]),
        str(queue["dead"]),
        age_of(queue),
        rate(queue.get("sentPerSecond")),
        rate(queue.get("receivedPerSecond")),
        rate(queue.get("ackedPerSecond")),
        note_of(queue),
    )


def age_of(queue: dict[str, Any]) -> str:
    seconds = queue.get("oldestAgeSeconds") or 0
    return duration(seconds) if seconds else "-"


def note_of(queue: dict[str, Any]) -> str:
    """What deserves attention, or how the queue is connected to others."""
    level = queue.get("level", "ok")
    if queue.get("note"):
        return f"{level}: {queue['note']}" if level != "ok" else str(queue["note"])
    if queue.get("sources"):
        return f"dead letters of {', '.join(queue['sources'])}"
    return f"dead letters to {queue['deadLetterQueue']}" if queue.get("deadLetterQueue") else ""


# --- one queue --------------------------------------------------------------------------------


def _show(server: Server, arguments: argparse.Namespace) -> int:
    queue = server.get(queue_path(arguments.queue))
    stats = server.get(queue_path(arguments.queue, "stats"))
    if arguments.json:
        print_json({"queue": queue, "stats": stats})
        return 0
    print(style(f"{queue['name']}  ({'FIFO' if queue['fifo'] else 'standard'})", "bold"))
    if queue["paused"] != NOT_PAUSED:
        what = {"delivery": "Delivery is", "sends": "Sends are", "both": "Delivery and sends are"}[queue["paused"]]
        print(style(f"{what} paused. `baton queue resume {queue['name']}` resumes.", "bold"))
    print_fields(
        [
            ("visible", str(stats["visible"])),
            ("in flight", str(stats["inFlight"])),
            ("delayed", str(stats["delayed"])),
            ("moving to another queue", str(stats["owed"])),
            ("dead", str(stats["dead"])),
            ("size", size(stats["bytes"])),
            ("oldest message", duration(stats["oldestAgeSeconds"]) if stats["oldestAgeSeconds"] else "-"),
            ("oldest visible message", _visible_age(stats)),
            ("waiting receives", str(stats["waitingReceives"])),
            ("rates", _rates(stats)),
            ("sent", str(stats["sent"])),
            ("received", str(stats["received"])),
            ("acknowledged", str(stats["deleted"])),
            ("returned", f"{stats['returned']} ({stats['expiredLeases']} by expired leases)"),
            ("dead-lettered", str(stats["deadLettered"])),
            ("expired", str(stats["expired"])),
            ("created", moment(queue["createdAtMs"])),
            ("changed", moment(queue["modifiedAtMs"])),
            *([("subscribed to", subscribed_topics(queue))] if queue.get("subscriptions") else []),
        ]
    )
    print(style("settings", "bold"))
    print_fields(shown_settings(queue))
    if queue["tags"]:
        print(style("tags", "bold"))
        print_fields(sorted(queue["tags"].items()))
    _warn(queue)
    return 0


def subscribed_topics(queue: dict[str, Any]) -> str:
    """`2 topics (orders, alerts)`."""
    names = queue["subscribedTopics"][:TOPICS_SHOWN]
    more = ", …" if queue["subscriptions"] > len(names) else ""
    return f"{plural(queue['subscriptions'], 'topic')} ({', '.join(names)}{more})"


def _visible_age(stats: dict[str, Any]) -> str:
    seconds = stats.get("oldestVisibleAgeSeconds") or 0
    return duration(seconds) if seconds else "-"


def _counters(server: Server, arguments: argparse.Namespace) -> int:
    found = server.get(queue_path(arguments.queue, "counters"))
    if arguments.json:
        print_json(found)
    else:
        show_counters(found)
    return 0


def _rates(stats: dict[str, Any]) -> str:
    names = (("sentPerSecond", "sent"), ("receivedPerSecond", "received"), ("deletedPerSecond", "acknowledged"))
    return ", ".join(f"{rate(stats.get(field))} {word}" for field, word in names) + " per second"


def _create(server: Server, arguments: argparse.Namespace) -> int:
    name = arguments.queue
    fifo = arguments.fifo or name.endswith(".fifo")
    spec = {"name": name, "mode": "FIFO" if fifo else "STANDARD", **given_settings(arguments)}
    try:
        server.post("/v1/queues", spec)
    except QueueExists as problem:
        raise QueueExists(_with_remedy(problem.message, arguments)) from None
    created = server.status == HTTPStatus.CREATED
    queue = server.get(queue_path(name))
    if arguments.json:
        print_json(queue)
    else:
        dead = queue.get("deadLetterQueue")
        more = f", with the dead-letter queue {dead} after {queue.get('maxReceiveCount')} receives" if dead else ""
        print(f"Queue {name} {'is created' if created else 'already exists, unchanged'}{more}.")
    _warn(queue)
    return 0


def _with_remedy(text: str, arguments: argparse.Namespace) -> str:
    """The error of the server about an existing queue, with the command that changes the queue, if there is one."""
    said, _, _ = in_words_of_flags(text).partition(". Update the existing queue,")
    start, _, different = said.rpartition(" ")
    flags, flag = flags_of(arguments), f"--{different.removeprefix('--')}"
    if flag not in flags:
        return text
    command = f"baton queue set {shlex.join([arguments.queue, *flags])}"
    return f"{start} {flag}. Change it with `{command}`, or choose another name."


def _set(server: Server, arguments: argparse.Namespace) -> int:
    name = arguments.queue
    changes = given_settings(arguments)
    for each in arguments.unset:
        *outer, last = field_of(each).keys if each != "tags" else ("tags",)
        if outer:
            raise WrongUsage(f"--unset {each} cannot be reset on its own; use --unset {outer[0]}.")
        if last in changes:
            raise WrongUsage(f"{each} is both set and unset.")
        changes[last] = None
    if not changes:
        raise WrongUsage(f"Nothing to change in queue {name}. Give a setting, for example --visibility 60s.")
    if isinstance(changes.get("tags"), dict):
        changes["tags"] = {**server.get(queue_path(name))["tags"], **changes["tags"]}
    queue = server.call("PATCH", queue_path(name), changes)
    if arguments.json:
        print_json(queue)
    else:
        shown = dict(shown_settings(queue))
        names = [flag.removeprefix("--") for flag in flags_of(arguments)[::2]] + [
            each.removeprefix("--") for each in arguments.unset
        ]
        for setting in names:
            print(f"{setting}  {shown.get(setting, 'not set')}")
        if "tags" in changes:
            print(f"tags  {', '.join(f'{key}={value}' for key, value in sorted(queue['tags'].items())) or 'none'}")
    _warn(queue)
    return 0


def _warn(queue: dict[str, Any]) -> None:
    """Print what is wrong with the queue's settings, where a script that reads the output does not see it."""
    for text in queue.get("warnings", ()):
        note(f"warning: {printable(text)}")


def _delete(server: Server, arguments: argparse.Namespace) -> int:
    name = arguments.queue
    stats = server.get(queue_path(name, "stats"))
    queue = server.get(queue_path(name))
    warning = ""
    if queue.get("subscriptions"):
        topics = subscribed_topics(queue)
        warning = f" It is subscribed to {topics}: copies for it will be refused. Unsubscribe it first."
    confirm(f"This deletes queue {name} at {server.url} with {contents(stats)}.{warning}", yes=arguments.yes)
    server.call("DELETE", queue_path(name))
    _report(arguments, {"queue": name, "deleted": True, "messages": total(stats)}, f"Queue {name} is deleted.")
    return 0


def _purge(server: Server, arguments: argparse.Namespace) -> int:
    name = arguments.queue
    stats = server.get(queue_path(name, "stats"))
    confirm(f"This deletes {contents(stats)} of queue {name} at {server.url}.", yes=arguments.yes)
    server.post(queue_path(name) + ":purge")
    text = f"Queue {name} is purged: {plural(total(stats), 'message')} deleted."
    _report(arguments, {"queue": name, "purged": True, "messages": total(stats)}, text)
    return 0


def total(stats: dict[str, Any]) -> int:
    return int(sum(stats[name] for name in ("visible", "inFlight", "delayed", "owed", "dead")))


def contents(stats: dict[str, Any]) -> str:
    """`12 messages (10 visible, 2 in flight)`."""
    names = (("visible", "visible"), ("inFlight", "in flight"), ("delayed", "delayed"), ("dead", "dead"))
    parts = [f"{stats[field]:,} {word}" for field, word in names if stats[field]]
    return plural(total(stats), "message") + (f" ({', '.join(parts)})" if parts else "")


def _report(arguments: argparse.Namespace, value: dict[str, Any], text: str) -> None:
    if arguments.json:
        print_json(value)
    else:
        print(text)


def _consumers(server: Server, arguments: argparse.Namespace) -> int:
    found = server.get(queue_path(arguments.queue, "consumers"))
    if arguments.json:
        print_json(found)
        return 0
    if not found["pollers"] and not found["holders"]:
        note(f"Nobody receives from queue {arguments.queue}, and nobody holds its messages.")
        return 0
    if found["pollers"]:
        rows = [
            (
                each["holder"],
                each["address"],
                str(each["waiting"]),
                moment(each["lastPollAtMs"]),
                rate(each["receivedPerMinute"]),
                rate(each["emptyPerMinute"]),
                each.get("agent", ""),
            )
            for each in found["pollers"]
        ]
        head = ("CONSUMER", "ADDRESS", "WAITING", "LAST RECEIVE", "MESSAGES/MIN", "EMPTY/MIN", "PROGRAM")
        print_table(head, rows, right=("WAITING", "MESSAGES/MIN", "EMPTY/MIN"))
    if found["holders"]:
        print_table(
            ("HOLDER", "IN FLIGHT", "OLDEST LEASE", "NEXT DEADLINE"),
            [
                (
                    each["holder"],
                    str(each["inFlight"]),
                    moment(each["oldestLeaseAtMs"]),
                    moment(each["nextDeadlineAtMs"]),
                )
                for each in found["holders"]
            ],
            right=("IN FLIGHT",),
        )
    return 0


def _series(server: Server, arguments: argparse.Namespace) -> int:
    path = queue_path(arguments.queue, "series") if arguments.queue else "/v1/series"
    found = server.get(path, range=arguments.range)
    if arguments.json:
        print_json(found)
        return 0
    what = f"queue {arguments.queue}" if arguments.queue else "the server"
    first, last = moment(found["startAtMs"]), moment(found["endAtMs"])
    print(style(f"{what} from {first} to {last} UTC, one value per {duration(found['stepSeconds'])}", "bold"))
    rows = [row for name, values in found["values"].items() if (row := _series_row(name, values)) is not None]
    if rows:
        print_table(("MEASURE", "NOW", "MEAN", "MAX", "OVER TIME"), rows, right=("NOW", "MEAN", "MAX"))
    else:
        note("Nothing happened in this time.")
    for mark in found["marks"]:
        print(f"{moment(mark['atMs'])}  {printable(mark['text'])}")
    return 0


def _series_row(name: str, values: list[float | None]) -> tuple[str, ...] | None:
    """Current, mean and largest value, and a line of bars. None if nothing but 0 was measured."""
    known = [value for value in values if value is not None]
    if not any(known):
        return None
    shown = [rate(number) for number in (known[-1], sum(known) / len(known), max(known))]
    return (name, *shown, spark(condensed(values, SPARK_WIDTH)))
