"""The line of a message: its predecessors and successors through moves.

A move is an `owed` event in one shard and an `arrived` event in another, or directly after it in the same shard. Moves
form paths of messages without branches. If there are few, their beginnings are found on the driver, in a dictionary,
because a round of Spark takes longer. If there are many, they are found by doubling: every round looks twice as far
back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Window
from pyspark.sql import functions as f

from batonq.core.records import ArrivedFlag
from batonq.pipeline.spark.local import frame_of
from batonq.pipeline.tables.ids import id_of

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

Place = tuple[str, int, int]  # source, shard, sequence
KEY = ["source", "shard", "sequence"]
_INHERITED = ("body_bytes", "attributes_bytes", "group")
_ADDED = ("first_id", "previous_id", "next_id", "line_deaths", "line_redrives")
_OWN = ("source", "to_shard", "to_sequence", "to_id", "from_id", "reason")
_ROUNDS_MAX = 20  # rounds; a line of 2**40 moves does not exist
SMALL = 200_000  # moves that the driver can process, and send to every worker
_PLACED = pa.schema(
    [
        ("source", pa.string()),
        ("shard", pa.int32()),
        ("sequence", pa.int64()),
        ("own_id", pa.string()),
        ("previous_id", pa.string()),
        ("reason", pa.string()),
        ("depth", pa.int32()),
        ("root_shard", pa.int32()),
        ("root_sequence", pa.int64()),
    ]
)


def joined(found: DataFrame, moved: DataFrame | None, events: DataFrame, *, small: bool) -> DataFrame:
    """`found`, one row per message, with the columns of its line; and the payload that a moved message kept."""
    if moved is None:
        return found.withColumns(dict.fromkeys(_ADDED, f.lit(None)))
    told = members(moved if small else moved.cache(), events, small=small)
    told = told.withColumnsRenamed({name: f"line_{name}" for name in _INHERITED})
    return found.join(told, KEY, "left").withColumns(
        {name: f.coalesce(f.col(f"`{name}`"), f.col(f"line_{name}")) for name in _INHERITED}
    )


def moves(rare: DataFrame) -> DataFrame:
    """One row per move that arrived: the message before (`from_…`) and after it (`to_…`), and why."""
    shard, other, at = f.col("shard"), f.col("other_shard"), f.col("logical_time")
    left = f.col("event") == "owed"
    overlay = f.col("flags").bitwiseAND(int(ArrivedFlag.OVERLAY)) != 0
    within = f.when(left & (shard == other), at + 1).when(~left & overlay, at)
    met = (
        rare.where("event in ('owed', 'arrived') and sequence is not null")
        .groupBy(
            "source",
            f.when(left, shard).otherwise(other).alias("from_shard"),
            f.when(left, other).otherwise(shard).alias("to_shard"),
            f.coalesce(within, "channel_number").alias("entry"),
        )
        .agg(
            f.max(f.when(left, f.col("sequence"))).alias("from_sequence"),
            f.max(f.when(left, f.col("reason"))).alias("reason"),
            f.max(f.when(~left, f.col("sequence"))).alias("to_sequence"),
        )
    )
    met = met.where("from_sequence is not null and to_sequence is not null").drop("entry")
    return met.withColumns({f"{end}_id": f.expr(id_of(f"{end}_shard", f"{end}_sequence")) for end in ("from", "to")})


def members(steps: DataFrame, events: DataFrame, *, small: bool) -> DataFrame:
    """One row for each message that was moved or created by a move: its line, and the payload that it has from it."""
    every = _placed_here(steps) if small else _placed(steps)
    wanted = every.select(*KEY)
    own = _payloads(events, f.broadcast(wanted) if small else wanted)
    told = every.join(own, KEY, "left")
    line = Window.partitionBy("source", "root_shard", "root_sequence")
    path = line.orderBy("depth")
    so_far = path.rowsBetween(Window.unboundedPreceding, 0)
    begun = f.first("line_first_id").over(path)
    return told.select(
        *KEY,
        f.coalesce(begun, f.first("own_id").over(path)).alias("first_id"),
        "previous_id",
        f.lead("own_id").over(path).alias("next_id"),
        f.count_if(_dead(f.col("reason"))).over(line).alias("line_deaths"),
        f.count_if(f.col("reason") == "redrive").over(line).alias("line_redrives"),
        *(f.last(name, ignorenulls=True).over(so_far).alias(name) for name in _INHERITED),
    )


def _dead(reason: Expression) -> Expression:
    return reason.isin("dead_letter", "expiry_dead_letter")


def _placed_here(steps: DataFrame) -> DataFrame:
    """`_placed`, on the driver."""
    rows = steps.select(*_OWN, "from_shard", "from_sequence").toArrow().to_pylist()
    before = {
        (row["source"], row["to_shard"], row["to_sequence"]): (row["source"], row["from_shard"], row["from_sequence"])
        for row in rows
    }
    begins: dict[Place, tuple[Place, int]] = {}
    for place in before:
        _follow(place, before, begins)
    placed = []
    for row in rows:
        after = row["source"], row["to_shard"], row["to_sequence"]
        (_, *root), depth = begins[after]
        placed.append((*after, row["to_id"], row["from_id"], row["reason"], depth, *root))
        if (first := before[after]) not in before:
            placed.append((*first, row["from_id"], None, None, 0, *first[1:]))
    return frame_of(steps.sparkSession, placed, _PLACED)


def _follow(place: Place, before: Mapping[Place, Place], begins: dict[Place, tuple[Place, int]]) -> None:
    """Record where the line of a place begins, and how many moves ago, for it and for all places on the way."""
    way: list[Place] = []
    met = set()
    while place in before and place not in begins and place not in met:
        met.add(place)
        way.append(place)
        place = before[place]
    root, depth = begins.get(place, (place, 0))
    for at in reversed(way):
        depth += 1
        begins[at] = root, depth


def _placed(steps: DataFrame) -> DataFrame:
    """Every message of a line: its ids, the move that created it, where its line begins and how many moves ago."""
    later = _beginnings(steps).select(
        "source",
        f.col("to_shard").alias("shard"),
        f.col("to_sequence").alias("sequence"),
        f.col("to_id").alias("own_id"),
        f.col("from_id").alias("previous_id"),
        "reason",
        "depth",
        "root_shard",
        "root_sequence",
    )
    known = later.select(*KEY)
    first = (
        steps.select(
            "source",
            f.col("from_shard").alias("shard"),
            f.col("from_sequence").alias("sequence"),
            f.col("from_id").alias("own_id"),
        )
        .join(known, KEY, "left_anti")
        .select(
            *KEY,
            "own_id",
            f.lit(None).cast("string").alias("previous_id"),
            f.lit(None).cast("string").alias("reason"),
            f.lit(0).alias("depth"),
            f.col("shard").alias("root_shard"),
            f.col("sequence").alias("root_sequence"),
        )
    )
    return first.unionByName(later)


def _beginnings(steps: DataFrame) -> DataFrame:
    """For each message created by a move: where its line begins, and how many moves ago."""
    back = steps.select(
        *_OWN,
        f.col("from_shard").alias("root_shard"),
        f.col("from_sequence").alias("root_sequence"),
        f.lit(1).alias("depth"),
    )
    for _ in range(_ROUNDS_MAX):
        back = _further(_further(back)).cache()
        ends = back.select("source", f.col("to_shard").alias("root_shard"), f.col("to_sequence").alias("root_sequence"))
        if back.join(ends, ["source", "root_shard", "root_sequence"], "left_semi").isEmpty():
            break
    return back


def _further(back: DataFrame) -> DataFrame:
    """One round: go back twice as far, if there is that much."""
    beyond = back.select(
        "source",
        f.col("to_shard").alias("root_shard"),
        f.col("to_sequence").alias("root_sequence"),
        f.col("root_shard").alias("further_shard"),
        f.col("root_sequence").alias("further_sequence"),
        f.col("depth").alias("further_depth"),
    )
    met = back.join(beyond, ["source", "root_shard", "root_sequence"], "left")
    return met.select(
        *_OWN,
        f.coalesce("further_shard", "root_shard").alias("root_shard"),
        f.coalesce("further_sequence", "root_sequence").alias("root_sequence"),
        (f.col("depth") + f.coalesce("further_depth", f.lit(0))).alias("depth"),
    )


def _payloads(events: DataFrame, wanted: DataFrame) -> DataFrame:
    """The last payload in a message's own events, and the beginning of its line in them."""
    rows = events.where("body_bytes is not null and sequence is not null").select(
        *KEY, "logical_time", *(f.col(f"`{name}`") for name in _INHERITED), told_first_id().alias("line_first_id")
    )
    names = (*_INHERITED, "line_first_id")
    met = rows.join(wanted, KEY, "left_semi").groupBy(*KEY)
    return met.agg(*(f.max_by(f"`{name}`", "logical_time").alias(name) for name in names))


def told_first_id() -> Expression:
    """The beginning of a payload's line, if it was moved before: a complete lineage contains it."""
    return f.get_json_object("lineage", "$.first_id")
