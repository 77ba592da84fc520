"""Plain messages: sent, leased once, acknowledged. They are most of a history, and can be checked without sorting.

Each event adds a number for its kind, and for each pair of events that must be in order the difference of their times
is summed: with exactly one event of each kind, a sum is the time between two of them. Messages whose sums are different
are left to messages.py, which checks every event, and so are messages that a purge may have removed.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast, lit

from batonq.core.records import DeletedFlag
from batonq.pipeline.audit.steps import Steps
from batonq.pipeline.audit.words import MESSAGE, query

OTHERS_MAX = 1_000_000  # messages that every worker can know; if more are not plain, all messages are checked in full
_SENT, _LEASED, _ACKED, _OTHER = 1, 1 << 20, 1 << 40, 1 << 41  # the number of each event
_FACTS = f"""
SELECT {MESSAGE} AS message, queue, logical_time AS lt, unix_millis(time) AS time, unix_millis(deadline) AS deadline,
  unix_millis(visible_at) AS visible, unix_millis(expires_at) AS expires,
  CASE WHEN event = 'sent' AND visible_at IS NOT NULL AND expires_at IS NOT NULL THEN {_SENT}
    WHEN event = 'leased' AND lease_epoch = 1 AND receive_count = 1 AND deadline IS NOT NULL THEN {_LEASED}
    WHEN event = 'deleted' AND reason = 'ack' AND lease_epoch = 1 AND receive_count = 1
      AND flags & {DeletedFlag.LATE:d} = 0 THEN {_ACKED}
    ELSE {_OTHER} END AS what
FROM {{events}} WHERE sequence IS NOT NULL
"""
_OTHERS = f"""
SELECT DISTINCT message FROM (
  SELECT message, sum(what) AS whats,
    sum(CASE what WHEN {_SENT} THEN -lt WHEN {_LEASED} THEN lt ELSE 0 END) AS to_lease,
    sum(CASE what WHEN {_LEASED} THEN -lt WHEN {_ACKED} THEN lt ELSE 0 END) AS to_end,
    sum(CASE what WHEN {_SENT} THEN -visible WHEN {_LEASED} THEN time ELSE 0 END) AS waited,
    sum(CASE what WHEN {_SENT} THEN expires WHEN {_LEASED} THEN -time ELSE 0 END) AS unexpired,
    sum(CASE what WHEN {_LEASED} THEN deadline WHEN {_ACKED} THEN -time ELSE 0 END) AS in_time
  FROM {{facts}} GROUP BY message, queue
)
WHERE NOT (whats = {_SENT + _LEASED + _ACKED} AND to_lease > 0 AND to_end > 0 AND waited >= 0 AND unexpired > 0
  AND in_time > 0)
"""
_REACHED = f"""
SELECT message FROM (SELECT {MESSAGE} AS message, shard, queue, sequence, logical_time FROM {{events}}) AS events
JOIN {{purges}} AS purges ON purges.shard = events.shard AND purges.queue = events.queue
WHERE logical_time > purged_first AND sequence < purged_below
"""
# The events that the other rules need: of the other messages, of FIFO queues, with keys, of channels, and of shards.
_REST = f"""
SELECT events.*, others.message IS NOT NULL AS other
FROM (SELECT *, {MESSAGE} AS message FROM {{events}}) AS events
LEFT JOIN {{others}} AS others ON others.message = events.message
LEFT JOIN {{policies}} AS policies ON policies.shard = events.shard AND policies.queue = events.queue
WHERE others.message IS NOT NULL OR policies.fifo OR event = 'sent' AND dedup_key IS NOT NULL
  OR event IN ('owed', 'arrived', 'settled')
"""


def others(events: DataFrame, purges: DataFrame) -> DataFrame:
    """The messages that must be checked event by event: `message`."""
    found = query(_OTHERS, facts=query(_FACTS, events=events))
    if not purges.isEmpty():
        found = found.union(query(_REACHED, events=events, purges=broadcast(purges))).distinct()
    return found


def without(events: DataFrame, policies: DataFrame, purges: DataFrame, steps: Steps) -> DataFrame:
    """The events that another rule needs; `other` is true if the message is not plain."""
    left = steps.keep(others(events, purges))
    if left.count() > OTHERS_MAX:
        return events.withColumn("other", lit(True))
    fifo = policies.select("shard", "queue", "fifo")
    return steps.keep(query(_REST, events=events, others=broadcast(left), policies=broadcast(fifo)))
