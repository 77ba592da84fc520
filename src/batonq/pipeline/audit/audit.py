"""All rules together: `audit(events, queues)` returns one row per violation, and none for a valid history."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast

from batonq.pipeline.audit import channels, counters, firings, groups, keys, known, messages, plain, publishes, shards
from batonq.pipeline.audit.kinds import KINDS
from batonq.pipeline.audit.steps import Steps, result
from batonq.pipeline.audit.table import TABLE
from batonq.pipeline.audit.words import query, text
from batonq.pipeline.tables.ids import id_of
from batonq.pipeline.tables.schema import shaped

# See `needed`.
COLUMNS = (
    *(
        "shard",
        "frame",
        "row",
        "logical_time",
        "owner_epoch",
        "time",
        "event",
        "flags",
        "queue",
        "queue_name",
        "tenant",
    ),
    *("sequence", "slot", "group", "lease_epoch", "receive_count", "deadline", "visible_at", "expires_at", "state"),
    *("reason", "other_shard", "other_queue", "channel_number", "source_slot", "dedup_key", "number", "grace_ms"),
    *("first_frame", "detail", "messages", "receives_max"),
)
_FOUND = " ".join(f"WHEN '{name}' THEN {text(kind.found)}" for name, kind in KINDS.items())
_TOLD = f"""
SELECT kind, found.shard, found.queue, queue_name, {id_of("found.shard", "sequence")} AS message_id, sequence,
  logical_times, events, concat(CASE kind {_FOUND} END, coalesce(concat(': ', detail), '')) AS detail
FROM {{found}} AS found
LEFT JOIN {{policies}} AS policies ON policies.shard = found.shard AND policies.queue = found.queue
"""


def audit(events: DataFrame, queues: DataFrame, ends: Mapping[int, int] | None = None) -> DataFrame:
    """The violations in one cluster's history: all of its `events`, and its `queues`. The columns of the table.

    `ends` has the last frame of each shard, from a source that knows it: a history that ends earlier is incomplete.
    The violations are computed and cached: unpersist them when they are no longer needed.
    """
    with Steps() as steps:
        found = reduce(DataFrame.unionByName, _each_family(needed(events), queues, ends or {}, steps))
        policies = known.gathered(known.policies(queues))
        return result(shaped(query(_TOLD, found=found, policies=broadcast(policies)), TABLE))


def _each_family(events: DataFrame, queues: DataFrame, ends: Mapping[int, int], steps: Steps) -> list[DataFrame]:
    pieces = steps.keep(shards.pieces(events))
    few = known.gathered(known.few(events))
    of_shards = known.gathered(known.shards(few, pieces))
    policies = known.gathered(known.policies(queues))
    purges = known.gathered(known.purges(few))
    has = shards.summary(pieces)
    rest = plain.without(events, policies, purges, steps)
    found = [
        messages.violations(rest, of_shards, policies, purges, _limits(has, of_shards, policies), steps),
        shards.violations(pieces, of_shards),
        shards.missing(of_shards, ends),
        channels.violations(rest, of_shards, steps),
        groups.violations(rest, of_shards, policies, purges, steps),
        keys.violations(events, rest, policies, purges, steps),
        counters.purge_violations(rest, of_shards, purges),
    ]
    counted = counters.violations(events, queues, of_shards, steps)
    if counted is not None:
        found.append(counted)
    if has.published:
        found.append(publishes.violations(events))
    if has.scheduled:
        found.append(firings.violations(events, of_shards, steps))
    return found


def needed(events: DataFrame) -> DataFrame:
    """The columns that the rules need."""
    # A lake that an earlier release filled has no subscriptions, and no topics either.
    subscription = "subscription" if "subscription" in events.columns else "CAST(NULL AS BIGINT) AS subscription"
    return events.selectExpr(*(f"`{name}`" for name in COLUMNS), subscription)


def _limits(has: shards.Summary, of_shards: DataFrame, policies: DataFrame) -> messages.Limits:
    """The maximums of receives. A message may have brought one along from a front that was dropped."""
    of_queues = (
        policies.selectExpr("explode(policies.max_receives) AS one").where("one > 0").selectExpr("min(one)").first()
    )
    least = [one for one in (has.least_receives, of_queues[0] if of_queues else None) if one is not None]
    own = has.least_receives is not None or not of_shards.where("known_from > 0").isEmpty()
    return messages.Limits(min(least, default=None), own)
