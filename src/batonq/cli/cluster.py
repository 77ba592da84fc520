"""`baton cluster`: run a local cluster, show a cluster's status, drain a node, move a shard."""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys
from typing import Any

from batonq.cli.actions import add_action
from batonq.cli.connection import URL_VARIABLE, Server, add_operator_arguments, connect, resolve
from batonq.cli.exit_codes import DONE, PROBLEMS_FOUND, Unreachable
from batonq.cli.output import print_json
from batonq.errors import BatonError, InvalidInput
from batonq.node.clock import duration
from batonq.quantities import plural

TIMEOUT_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="action", required=True)
    up = add_action(actions, "up", "start a cluster on this machine for experiments; Ctrl-C stops it")
    up.add_argument("--nodes", type=int, default=3, help="number of nodes (default 3)")
    up.add_argument(
        "--servers",
        type=int,
        default=0,
        help="number of NATS servers (default 3, or 1 for one node); durability class 5 needs 5",
    )
    up.add_argument("--data", default="baton-cluster", help="directory for all files (default baton-cluster)")
    up.add_argument(
        "--port",
        type=int,
        default=9324,
        help="port of the first node; the other nodes use the following ports (default 9324)",
    )
    up.add_argument("--shards", type=int, default=6, help="number of shards (default 6)")
    up.add_argument("--other-shards", default="", help="additional shards with other than three replicas: 1:2,5:2")
    status = add_action(actions, "status", "show nodes, shards, owners, epochs, and how far each replica is behind")
    status.epilog = "The exit code is 6 if a node is missing, a shard has no owner, or a member is refused."
    status.add_argument("--json", action="store_true", help="print the full status of every node as JSON")
    drain = add_action(actions, "drain", "hand over all shards of a node, so that it can be stopped")
    drain.add_argument("node", metavar="NODE", help="name of the node")
    drain.add_argument("--undo", action="store_true", help="allow the node to own shards again")
    move = add_action(actions, "move", "hand over a shard to another node")
    move.add_argument("shard", metavar="SHARD", help="number of the shard, or catalog")
    move.add_argument("--to", required=True, metavar="NODE", help="name of the new owner")
    forget = add_action(actions, "forget", "no longer expect a node that will not come back")
    forget.add_argument("node", metavar="NODE", help="name of the node, which must not be running")
    for action in (status, drain, move, forget):
        add_operator_arguments(action)
        action.add_argument(
            "--cluster-secret-file", default="", help="file that contains the cluster secret, if there is one"
        )
        action.add_argument("--peer-ca", default="", help="file that contains the CA certificate of the nodes")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action == "up":
        from batonq.cli.localcluster import LocalCluster

        return LocalCluster(
            arguments.data,
            arguments.nodes,
            arguments.port,
            arguments.shards,
            arguments.other_shards,
            arguments.servers,
        ).run()
    if arguments.action == "status":
        arguments.ca_file = arguments.ca_file or arguments.peer_ca
        alone = _server_alone(connect(arguments))
        if alone is not None:
            return _show_alone(arguments, alone)
    return asyncio.run(_ask(arguments))


async def _ask(arguments: argparse.Namespace) -> int:
    from batonq.certificates import client_context
    from batonq.log.layout import CATALOG_SHARD
    from batonq.node.cluster.node import read_secret
    from batonq.node.settings import Settings

    secret = read_secret(Settings(cluster_secret_file=arguments.cluster_secret_file))
    asked = Asked(secret, client_context(arguments.peer_ca))
    try:
        status = await _first(asked, resolve(arguments).url)
        if arguments.action == "status":
            return await _show(asked, status, arguments.json)
        if arguments.action == "drain":
            address = _address(status, arguments.node)
            await asked.node("undrain" if arguments.undo else "drain", address)
            print(f"Node {arguments.node} {'can own shards again' if arguments.undo else 'no longer owns any shards'}.")
            return 0
        if arguments.action == "forget":
            await asked.node("forget", resolve(arguments).url, arguments.node)
            print(f"Node {arguments.node} is no longer expected.")
            return 0
        number = CATALOG_SHARD if arguments.shard == "catalog" else _number(arguments.shard)
        owner = _owner(status, arguments.shard)
        await asked.node("move", _address(status, owner), (number, arguments.to))
        print(f"Shard {arguments.shard} was handed over from {owner} to {arguments.to}.")
        return 0
    finally:
        asked.close()


async def _first(asked: Asked, url: str) -> Any:
    """The status of the node at this URL, which knows all others."""
    from batonq.node.cluster.peers import NotSent

    try:
        return await asked.node("status", url)
    except NotSent as problem:
        if "cannot be reached" in problem.message:
            raise Unreachable(f"{problem.message}. Check --url, {URL_VARIABLE} or the context.") from None
        raise
    except BatonError as problem:
        if "unknown error" not in problem.message:
            raise
        raise InvalidInput(
            f"The server at {url} is not a node of a cluster: it runs alone, or it is not a Baton server."
        ) from None


def _server_alone(server: Server) -> dict[str, Any] | None:
    """What a server says about itself that is not part of a cluster and has one process. None for any other server,
    and if these credentials may not ask.
    """
    try:
        found: dict[str, Any] = server.get("/v1/cluster")
    except Unreachable:
        raise
    except BatonError:
        return None
    return None if found["clustered"] or len(found["nodes"]) > 1 else found


def _show_alone(arguments: argparse.Namespace, found: dict[str, Any]) -> int:
    if arguments.json:
        print_json(found)
        return 0
    names = ", ".join(node["name"] for node in found["nodes"])
    waiting = [str(shard["number"]) for shard in found["shards"] if shard["state"] != "serving"]
    state = f"not serving: {', '.join(waiting)}" if waiting else "all serving"
    print(f"The server at {resolve(arguments).url} runs alone: it is not a node of a cluster.")
    print(f"{names} owns {plural(len(found['shards']), 'shard')}, {state}. `baton status` shows more.")
    return 0


class Asked:
    """Requests to the nodes of a cluster."""

    def __init__(self, secret: bytes, context: ssl.SSLContext) -> None:
        from batonq.node.cluster.peers import Peers

        self._peers = Peers(secret, context)

    async def node(self, what: str, address: str, body: Any = None) -> Any:
        import msgspec

        from batonq.node.cluster.peers import PREFIX

        data = msgspec.msgpack.encode(body)
        return msgspec.msgpack.decode(await self._peers.ask(address, f"{PREFIX}node/{what}", "", data, TIMEOUT_S))

    def close(self) -> None:
        self._peers.close()


def _number(text: str) -> int:
    if not text.isdigit():
        raise InvalidInput(f"--shard must be a number or catalog, not {text!r}.")
    return int(text)


def _address(status: dict[str, Any], node: str) -> str:
    address = status["addresses"].get(node)
    if address is None:
        raise InvalidInput(f"Node {node!r} does not exist. Nodes: {', '.join(sorted(status['addresses']))}.")
    return str(address)


def _owner(status: dict[str, Any], shard: str) -> str:
    for each in status["shards"]:
        if str(each["shard"]) == shard:
            if not each["owner"]:
                raise InvalidInput(f"No node owns shard {shard} right now. Retry.")
            return str(each["owner"])
    raise InvalidInput(f"Shard {shard} does not exist.")


async def _show(asked: Asked, first: dict[str, Any], as_json: bool) -> int:
    """Ask every node for its status, and report nodes that do not answer."""
    told: dict[str, dict[str, Any]] = {}
    missing = []
    for name, address in sorted(first["addresses"].items()):
        try:
            told[name] = await asked.node("status", address)
        except Exception as problem:
            missing.append((name, address, str(problem)))
    dead = _dead(told, first)
    refused = {name: why for status in told.values() for name, why in status.get("refused", {}).items()}
    unowned = [str(each["shard"]) for each in first["shards"] if not each["owner"]]
    code = PROBLEMS_FOUND if missing or dead or refused or unowned else DONE
    if as_json:
        lists = {"missing": [list(each) for each in missing], "expected": first.get("expected", [])}
        print(json.dumps({"nodes": told, **lists, "dead_ms": dead, "refused": refused}, indent=2))
        return code
    for line in report(told, first):
        print(line)
    for line in _missing(first, dead):
        print(line)
    for name, address, text in missing:
        print(f"node {name} at {address} does not answer: {text}", file=sys.stderr)
    for name, why in refused.items():
        print(f"node {name} is ignored: {why}", file=sys.stderr)
    if unowned:
        print(f"no node owns {', '.join(unowned)}", file=sys.stderr)
    return code


def _dead(told: dict[str, dict[str, Any]], first: dict[str, Any]) -> dict[str, int | None]:
    """The nodes that should be there and are not, and for how long, in milliseconds. None: since before any node that
    answers was started.
    """
    gone: dict[str, int] = {}
    for status in told.values():
        for name, ms in status.get("left_ms", {}).items():
            gone[name] = max(ms, gone.get(name, 0))
    absent = {*first.get("expected", ())} - {*first["addresses"]}
    return {name: gone.get(name) for name in sorted(absent)}


def _missing(first: dict[str, Any], dead: dict[str, int | None]) -> list[str]:
    expected = len(first.get("expected", ()))
    lines = ["", f"{expected - len(dead)} of {plural(expected, 'node')} present."] if dead else []
    for name, ms in dead.items():
        since = "before the other nodes were started" if ms is None else f"{duration(ms)} ago"
        lines.append(f"{name:<12} is not running: it left {since}. If it will not return: baton cluster forget {name}")
    return lines


def report(told: dict[str, dict[str, Any]], first: dict[str, Any]) -> list[str]:
    """The status as text: nodes; shards with owner, epoch, last frame and the lag of each other node; queues on several
    shards.
    """
    lines = []
    for name, status in told.items():
        owned = [str(each["shard"]) for each in status["shards"] if each["state"] == "serving"]
        note = " (draining)" if status["draining"] else ""
        lines.append(f"{name:<12} {status['address']:<32} owns {', '.join(owned) or 'nothing'}{note}")
    lines.append("")
    lines.append(f"{'SHARD':<8} {'REPLICAS':>8} {'OWNER':<12} {'EPOCH':>6} {'FRAME':>10}  BEHIND")
    for each in first["shards"]:
        known = {
            name: other
            for name, status in told.items()
            for other in status["shards"]
            if other["shard"] == each["shard"] and other["state"] != "elsewhere"
        }
        frames = {name: other["next_frame"] for name, other in known.items()}
        epoch = max((other["epoch"] for other in known.values()), default=each["epoch"])
        last = max(frames.values(), default=0)
        behind = ", ".join(f"{name} {last - frame}" for name, frame in frames.items() if name != each["owner"])
        owner = each["owner"] or "nobody"
        kind = each.get("replicas", "")  # nodes of the previous release do not send it
        lines.append(f"{each['shard']!s:<8} {kind:>8} {owner:<12} {epoch:>6} {max(0, last - 1):>10}  {behind}")
    return lines + _spread(first["queues"])


def _spread(queues: list[dict[str, Any]]) -> list[str]:
    """The queues on several shards."""
    wide = [queue for queue in queues if len(queue.get("shards", ())) > 1]
    lines = ["", f"{'QUEUE':<32} {'SPREAD':>6}  SHARDS"] if wide else []
    for queue in sorted(wide, key=lambda queue: (queue["account"], queue["name"])):
        shards = ", ".join(map(str, queue["shards"])) + (" (growing)" if queue["growing"] else "")
        lines.append(f"{queue['account'] + '/' + queue['name']:<32} {queue['spread']:>6}  {shards}")
    return lines
