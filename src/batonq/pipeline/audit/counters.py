"""The rules of a queue's counters: what a `base` says was counted is what the events before it did.

A base has the counters of every queue. The first base from which on the history is complete is the opening balance; a
history from its beginning opens with zeros. The last base is compared with the opening and the events between the two.
A base that an earlier release wrote has no counters and is skipped.

- In every base, sent + arrived = deleted + expired + moved + present.
- A queue's purges removed as many messages as they say, if the shard's history is complete.
- Between opening and last base, each counter rose by the number of its events. A purge has one event, which says how
  many messages it removed.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast

from batonq.core.records import ArrivedFlag, State
from batonq.pipeline.audit.known import purged_at
from batonq.pipeline.audit.steps import Steps
from batonq.pipeline.audit.words import CODED, STATE, nothing, place, query

_COUNTERS = ("sent", "arrived", "deleted", "expired", "moved", "present")
_TOLD = "SELECT shard, queue, logical_time AS lt, " + ", ".join(
    f"CAST(get_json_object(policy, '$.counters.{name}') AS BIGINT) AS {name}" for name in _COUNTERS
)
_BASES = f"""
SELECT told.*, known_from FROM (
  {_TOLD} FROM {{queues}} WHERE policy LIKE '%"counters":%'
) AS told JOIN {{shards}} AS shards ON shards.shard = told.shard WHERE lt >= known_from AND sent IS NOT NULL
"""
_BALANCE = "sent + arrived - deleted - expired - moved - present"
_SPANS = f"""
SELECT shard, queue,
  CASE WHEN any_value(known_from) = 0 THEN CAST(0 AS BIGINT) ELSE min(lt) END AS opened, max(lt) AS closed,
  {
    ", ".join(
        f"max_by({name}, lt) - CASE WHEN any_value(known_from) = 0 THEN 0 ELSE min_by({name}, lt) END AS {name}"
        for name in _COUNTERS
    )
}
FROM {{bases}} GROUP BY shard, queue
"""
_COUNTED = f"""
SELECT events.shard, events.queue,
  count(CASE WHEN event = 'sent' THEN 1 END) AS sent,
  count(CASE WHEN event = 'arrived' AND flags & {ArrivedFlag.REFUSED:d} = 0 THEN 1 END) AS arrived,
  coalesce(sum(CASE WHEN event = 'queue_purged' THEN messages WHEN event = 'deleted' AND NOT reason <=> 'retention'
    THEN 1 END), 0) AS deleted,
  count(CASE WHEN event = 'deleted' AND reason = 'retention' THEN 1 END) AS expired,
  count(CASE WHEN event = 'settled' AND reason = 'accepted' THEN 1 END) AS moved
FROM {{events}} AS events JOIN {{spans}} AS spans
  ON spans.shard = events.shard AND spans.queue = events.queue AND logical_time > opened AND logical_time < closed
WHERE event IN ('sent', 'arrived', 'deleted', 'settled', 'queue_purged')
GROUP BY events.shard, events.queue
"""
_RISES = f"""
SELECT spans.shard, spans.queue, opened, closed,
  {", ".join(f"spans.{name}, coalesce(counted.{name}, 0) AS {name}_events" for name in _COUNTERS[:-1])}
FROM {{spans}} AS spans LEFT JOIN {{counted}} AS counted
  ON counted.shard = spans.shard AND counted.queue = spans.queue
"""
_EXACT = [f"{name} <> {name}_events" for name in _COUNTERS[:-1]]
_SAID = (
    "concat_ws(', ', "
    + ", ".join(
        f"CASE WHEN {name} <> {name}_events THEN concat({name}_events, ' {name}, counted ', {name}) END"
        for name in _COUNTERS[:-1]
    )
    + ")"
)
_VIOLATIONS = f"""
SELECT 'conservation' AS kind, shard, queue, CAST(NULL AS BIGINT) AS sequence, logical_times,
  transform(logical_times, one -> concat('base at ', {place("one")})) AS events, detail
FROM (
  SELECT shard, queue, array(lt) AS logical_times,
    concat(sent, ' sent + ', arrived, ' arrived, ', deleted, ' deleted + ', expired, ' expired + ', moved,
      ' moved + ', present, ' present') AS detail
  FROM {{bases}} WHERE {_BALANCE} <> 0
  UNION ALL
  SELECT shard, queue, array(closed) AS logical_times, {_SAID} AS detail
  FROM {{rises}} WHERE {" OR ".join(_EXACT)}
)
"""

_PURGED = f"""
SELECT purges.shard, purges.queue, any_value(purged_last) AS purged_last, any_value(purged_messages) AS told,
  count(CASE WHEN {purged_at("sequence", "last_lt")} IS NOT NULL THEN 1 END) AS removed
FROM {{purges}} AS purges JOIN {{shards}} AS shards ON shards.shard = purges.shard
LEFT JOIN (
  SELECT shard, queue, sequence, max(logical_time) AS last_lt FROM (
    SELECT facts.shard, facts.queue, sequence, logical_time, {STATE} AS after FROM {CODED} AS facts
    LEFT SEMI JOIN {{purges}} AS purges ON purges.shard = facts.shard AND purges.queue = facts.queue WHERE other
  ) GROUP BY shard, queue, sequence HAVING max_by(after, logical_time) NOT IN ({State.OWED:d}, {State.DELETED:d})
) AS lives ON lives.shard = purges.shard AND lives.queue = purges.queue
WHERE known_from = 0 GROUP BY purges.shard, purges.queue
"""
_NOT_PURGED = f"""
SELECT 'conservation' AS kind, shard, queue, CAST(NULL AS BIGINT) AS sequence, array(purged_last) AS logical_times,
  array(concat('queue_purged at ', {place("purged_last")})) AS events,
  concat('purges removed ', told, ' messages as they say, ', removed, ' as the messages say') AS detail
FROM {{purged}} WHERE told <> removed
"""


def purge_violations(events: DataFrame, shards: DataFrame, purges: DataFrame) -> DataFrame:
    """`events`: at least those of messages that are not plain, which includes all that a purge removed."""
    if purges.isEmpty():
        return nothing(events)
    purged = query(_PURGED, events=events, shards=broadcast(shards), purges=broadcast(purges))
    return query(_NOT_PURGED, purged=purged)


def violations(events: DataFrame, queues: DataFrame, shards: DataFrame, steps: Steps) -> DataFrame | None:
    """None if the history has no counters."""
    bases = steps.keep(query(_BASES, queues=queues, shards=broadcast(shards)))
    if bases.isEmpty():
        return None
    spans = query(_SPANS, bases=bases)
    counted = query(_COUNTED, events=events, spans=broadcast(spans))
    return query(_VIOLATIONS, bases=bases, rises=query(_RISES, spans=spans, counted=counted))
