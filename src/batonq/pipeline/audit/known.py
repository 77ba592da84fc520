"""Facts that the rules need in addition to the events: about each shard, and about each queue on a shard.

About a shard: where its history begins, and from where on every message in it is known. In a log whose front was
dropped, the existing messages are `carried`, followed by a `base`; before that base there are records of messages
without their beginning. And the grace period that each new owner gave to leases, which extends deadlines.

About a queue: its policies with the logical time from which each applies, and its purges.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from batonq.pipeline.audit.words import query

UNKNOWN = 9223372036854775807  # no base tells which messages existed before the history begins
_FEW = """
SELECT shard, queue, event, logical_time, number, grace_ms, first_frame AS kept, messages
FROM {events} WHERE event IN ('base', 'epoch', 'queue_purged')
"""

_SHARDS = """
WITH spans AS (
  SELECT shard, min(frame) AS first_frame, max(frame) AS last_frame, max(time) AS last_time FROM {pieces} GROUP BY shard
), facts AS (
  SELECT few.shard,
    min(CASE WHEN event = 'base' AND kept >= spans.first_frame THEN logical_time END) AS opened,
    max(CASE WHEN event = 'base' THEN kept * 65536 END) AS kept_from,
    collect_list(CASE WHEN event = 'epoch' AND grace_ms > 0 THEN struct(logical_time AS given, grace_ms AS grace) END)
      AS graces
  FROM {few} AS few JOIN spans ON few.shard = spans.shard WHERE event <> 'queue_purged' GROUP BY few.shard
)
SELECT spans.shard, spans.first_frame, last_frame, last_time, kept_from, graces,
  CASE WHEN spans.first_frame <= 1 THEN CAST(0 AS BIGINT) ELSE coalesce(opened, UNKNOWN) END AS known_from
FROM spans LEFT JOIN facts ON spans.shard = facts.shard
"""
_SHARDS = _SHARDS.replace("UNKNOWN", str(UNKNOWN))

_POLICIES = """
SELECT shard, queue, max(name) AS queue_name, max(fifo) AS fifo,
  sort_array(collect_list(struct(
    logical_time AS since,
    coalesce(get_json_object(policy, '$.strict_receipts') = 'true', false) AS strict,
    coalesce(get_json_object(policy, '$.dedup_per_group') = 'true', false) AS per_group,
    CAST(get_json_object(policy, '$.dedup_window_ms') AS BIGINT) AS window_ms,
    CAST(get_json_object(policy, '$.max_receives') AS BIGINT) AS max_receives
  ))) AS policies
FROM {queues} WHERE policy IS NOT NULL GROUP BY shard, queue
"""

_VERSIONS = """
SELECT shard, queue, since, lead(since, 1, 9223372036854775807) OVER (PARTITION BY shard, queue ORDER BY since) AS till,
  per_group, window_ms
FROM (SELECT shard, queue, inline(policies) FROM {policies})
"""

_PURGES = """
SELECT shard, queue, min(logical_time) AS purged_first, max(number) AS purged_below, max(logical_time) AS purged_last,
  sum(messages) AS purged_messages,
  collect_list(struct(logical_time AS purged, number AS below)) AS purges
FROM {few} WHERE event = 'queue_purged' GROUP BY shard, queue
"""


def gathered(frame: DataFrame) -> DataFrame:
    """The same rows, computed now: they are few, and every rule needs them."""
    return frame.sparkSession.createDataFrame(frame.toArrow())


def few(events: DataFrame) -> DataFrame:
    """Events about shards and queues, not about messages: owners, bases, purges."""
    return query(_FEW, events=events)


def shards(few: DataFrame, pieces: DataFrame) -> DataFrame:
    """shard, first_frame, last_frame, last_time, kept_from, graces, known_from (0: from the beginning, UNKNOWN: the
    front is missing).
    """
    return query(_SHARDS, few=few, pieces=pieces)


def policies(queues: DataFrame) -> DataFrame:
    """shard, queue, queue_name, fifo, policies (in order)."""
    return query(_POLICIES, queues=queues)


def versions(policies: DataFrame) -> DataFrame:
    """shard, queue, since, till, per_group, window_ms: one row per policy of a queue."""
    return query(_VERSIONS, policies=policies)


def purges(few: DataFrame) -> DataFrame:
    """shard, queue, purged_first, purged_below, purged_last, purged_messages, purges."""
    return query(_PURGES, few=few)


def grace(after: str, before: str) -> str:
    """SQL: the milliseconds of grace between two logical times."""
    between = f"filter(graces, one -> one.given > {after} AND one.given < {before})"
    return f"aggregate({between}, CAST(0 AS BIGINT), (sum, one) -> sum + one.grace)"


def policy(field: str, at: str) -> str:
    """SQL: a field of the policy that applied at a logical time."""
    return f"try_element_at(filter(policies, one -> one.since < {at}), -1).{field}"


def purged(sequence: str, after: str, before: str) -> str:
    """SQL: whether a purge between two logical times removed the message."""
    inside = f"one.purged > {after} AND one.purged < {before} AND one.below > {sequence}"
    return f"coalesce(exists(purges, one -> {inside}), false)"


def purged_at(sequence: str, after: str) -> str:
    """SQL: the logical time of the first purge after another that removed the message; null if there was none."""
    inside = f"filter(purges, one -> one.purged > {after} AND one.below > {sequence})"
    return f"array_min(transform({inside}, one -> one.purged))"
