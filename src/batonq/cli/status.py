"""`baton status`: a verdict in one sentence, and the main figures of the server."""

from __future__ import annotations

import argparse
from typing import Any

from batonq.cli.connection import add_connection_arguments, connect
from batonq.cli.exit_codes import DONE, PROBLEMS_FOUND
from batonq.cli.output import duration, moment, print_fields, print_json, printable, rate, size, style

COLOURS = {"ok": "green", "warning": "yellow", "critical": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    server = connect(arguments)
    status = server.get("/v1/status")
    if arguments.json:
        print_json(status)
    else:
        print_status(status, f"{server.url} ({server.target.origin})")
    return DONE if status["verdict"]["level"] == "ok" else PROBLEMS_FOUND


def print_status(status: dict[str, Any], server: str) -> None:
    verdict = status["verdict"]
    print(style(printable(verdict["sentence"]), COLOURS.get(verdict["level"], "bold")))
    for problem in verdict["problems"]:
        print(f"  {style(problem['level'], COLOURS.get(problem['level'], 'bold'))}: {printable(problem['text'])}")
    alarms = status.get("alarms", {})
    rates = (
        f"{rate(status['sentPerSecond'])} sent, {rate(status['receivedPerSecond'])} received, "
        f"{rate(status['ackedPerSecond'])} acknowledged, {rate(status.get('retriedPerSecond'))} retried per second"
    )
    messages = (
        f"{status['visible']:,} visible, {status['inFlight']:,} in flight, {status['delayed']:,} delayed, "
        f"{size(status['bytes'])}"
    )
    print_fields(
        [
            ("server", server),
            ("version", f"{status['version']}, {status['profile']}{', read-only' if status.get('readOnly') else ''}"),
            ("started", f"{moment(status['startedAtMs'])} UTC"),
            ("queues", f"{status['queues']:,}"),
            ("messages", messages),
            ("dead letters", f"{status['deadLetters']:,}"),
            ("oldest", _oldest(status)),
            ("rates", rates),
            ("connections", f"{status['connections']:,}, {status['waitingReceives']:,} receives waiting"),
            ("shards", _shards(status["shards"])),
            ("nodes", _nodes(status["nodes"])),
            ("disk", _disk(status.get("disk", {}))),
            ("memory", size(status.get("memory", {}).get("residentBytes", 0))),
            ("alarms", f"{alarms.get('active', 0)} active, {alarms.get('unacknowledged', 0)} not acknowledged"),
        ]
    )


def _oldest(status: dict[str, Any]) -> str:
    seconds = status.get("oldestAgeSeconds") or 0
    where = f" in {status['oldestQueue']}" if status.get("oldestQueue") else ""
    return f"{duration(seconds)}{where}" if seconds else "-"


def _shards(shards: list[dict[str, Any]]) -> str:
    bad = [f"{shard['number']} {shard['state']}" for shard in shards if shard["state"] not in ("serving", "elsewhere")]
    return f"{len(shards)}" + (f", not serving: {', '.join(bad)}" if bad else "")


def _nodes(nodes: list[dict[str, Any]]) -> str:
    return ", ".join(node["name"] + (f" ({node['problem']})" if node.get("problem") else "") for node in nodes)


def _disk(disk: dict[str, Any]) -> str:
    total = disk.get("totalBytes") or 0
    if not total:
        return "-"
    free = disk["freeBytes"]
    return (
        f"{size(free)} free of {size(total)} ({free / total:.0%}), {size(disk.get('usedBytes', 0))} used by the server"
    )
