"""The cluster: nodes, shards with their owners and followers, and recent moves. A single server is a cluster of one."""

from __future__ import annotations

from typing import Any

from batonq.api.ui import formats
from batonq.api.ui.backend import Problem, path_of
from batonq.api.ui.routes import Route
from batonq.api.ui.view import Level, Page, View

GOOD_NODE = "up"
GOOD_SHARD = "serving"
ROOM = {"plenty": "free", "reserve": "low: no new messages", "none": "full"}
SHARDS_SHOWN = 256
MOVES_SHOWN = 50


async def show(view: View) -> Page:
    cluster = await view.backend.get(path_of("cluster"))
    status = await view.optional(path_of("status"))
    sentence, level = cluster_sentence(cluster)
    return Page(
        "Cluster",
        "cluster.html",
        sentence,
        level,
        {
            "cluster": cluster,
            "shards": cluster["shards"][:SHARDS_SHOWN],
            "moves": cluster.get("moves", [])[:MOVES_SHOWN],
            "status": None if isinstance(status, Problem) else status,
            "bad_node": bad_node,
            "bad_shard": bad_shard,
            "room": ROOM,
        },
    )


def bad_node(node: dict[str, Any]) -> bool:
    return bool(node.get("problem")) or node["state"] != GOOD_NODE


def bad_shard(shard: dict[str, Any]) -> bool:
    return bool(shard["state"] != GOOD_SHARD or shard.get("room", "plenty") != "plenty")


def cluster_sentence(cluster: dict[str, Any]) -> tuple[str, Level]:
    nodes, shards = cluster["nodes"], cluster["shards"]
    down, stuck = [node for node in nodes if bad_node(node)], [shard for shard in shards if bad_shard(shard)]
    said = f"{formats.plural(len(nodes), 'node')}, {formats.plural(len(shards), 'shard')}"
    problems = []
    if down:
        problems.append(f"{down[0]['name']} has a problem: {down[0].get('problem') or down[0]['state']}")
    if stuck:
        first = stuck[0]
        why = first.get("why") or (first["state"] if first["state"] != GOOD_SHARD else "its disk is full")
        problems.append(
            f"{len(stuck)} of {formats.plural(len(shards), 'shard')} cannot be used; {first['number']}: {why}"
        )
    if problems:
        return "; ".join(problems) + ".", "critical" if stuck else "warning"
    return f"All well: {said}, all served.", "ok"


ROUTES = (Route("/ui/cluster", show, tab="cluster"),)
