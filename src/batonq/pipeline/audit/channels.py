"""The rules between shards: owed, arrived and settled belong to one entry of a channel, with one number.

An entry within one shard is three consecutive rows, `owed`, `arrived`, `settled`; an accepted arrival there has no
number, so those are joined by their position in the log. The histories of shards do not end at the same moment, so a
statement of one shard about another is checked only if the other's history continues for a while after it.

The entries of a channel are checked in parts of PART_ENTRIES numbers, or of PART_FRAMES frames within one shard. Tasks
check them independently: each part also gets what is before it.

- The numbers that a shard owes another, and those that arrive from it, are consecutive and in log order.
- What arrives was owed to that queue. What is settled has arrived, and both say the same: accepted, or refused.
- A history whose front was dropped begins with some number; entries below it were owed before.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast

from batonq.core.records import ArrivedFlag
from batonq.pipeline.audit.steps import Steps
from batonq.pipeline.audit.words import place, query

BEHIND_S = 60  # a history that ends this long before an event elsewhere says nothing about it
_ENTRIES = f"""
SELECT source, destination, entry, any_value(inside) AS inside,
  count(CASE WHEN event = 'owed' THEN 1 END) AS owed, count(CASE WHEN event = 'arrived' THEN 1 END) AS arrived,
  count(CASE WHEN event = 'settled' THEN 1 END) AS settled,
  max(CASE WHEN event = 'owed' THEN channel_number END) AS owed_number,
  max(CASE WHEN event = 'settled' THEN channel_number END) AS settled_number,
  max(CASE WHEN event = 'owed' THEN logical_time END) AS owed_lt,
  max(CASE WHEN event = 'arrived' THEN logical_time END) AS arrived_lt,
  max(CASE WHEN event = 'settled' THEN logical_time END) AS settled_lt,
  max(CASE WHEN event = 'owed' THEN other_queue END) AS owed_to,
  max(CASE WHEN event = 'arrived' THEN queue END) AS arrived_in,
  max(CASE WHEN event = 'owed' THEN slot END) AS owed_slot, max(source_slot) AS arrived_slot,
  max(CASE WHEN event = 'arrived' THEN flags & {ArrivedFlag.REFUSED:d} = 0 END) AS taken,
  max(CASE WHEN event = 'settled' THEN reason = 'accepted' END) AS said,
  max(CASE WHEN event = 'arrived' THEN time END) AS arrived_at,
  max(CASE WHEN event = 'settled' THEN time END) AS settled_at,
  max(CASE WHEN event <> 'arrived' THEN queue END) AS queue,
  max(CASE WHEN event <> 'arrived' THEN sequence END) AS sequence
FROM (
  SELECT *, shard = other_shard AS inside,
    CASE WHEN event = 'arrived' THEN other_shard ELSE shard END AS source,
    CASE WHEN event = 'arrived' THEN shard ELSE other_shard END AS destination,
    CASE WHEN shard <> other_shard THEN channel_number
      ELSE logical_time - CASE event WHEN 'owed' THEN 0 WHEN 'arrived' THEN 1 ELSE 2 END END AS entry
  FROM {{events}} WHERE event IN ('owed', 'arrived', 'settled')
) GROUP BY source, destination, entry
"""
PART_ENTRIES = 65_536
PART_FRAMES = 4_096
_SEAMS = """
SELECT source, destination, part,
  last(owed, true) OVER earlier AS p_owed, last(owed_lt, true) OVER earlier AS p_owed_lt,
  last(arrived, true) OVER earlier AS p_arrived, last(arrived_lt, true) OVER earlier AS p_arrived_lt,
  min(first_owed) OVER channel AS first_owed, min(first_arrived) OVER channel AS first_arrived
FROM (
  SELECT source, destination, part,
    max_by(owed_number, entry) FILTER (WHERE owed_number IS NOT NULL) AS owed,
    max_by(owed_lt, entry) FILTER (WHERE owed_lt IS NOT NULL) AS owed_lt,
    max(CASE WHEN arrived > 0 THEN entry END) AS arrived,
    max_by(arrived_lt, entry) FILTER (WHERE arrived_lt IS NOT NULL) AS arrived_lt,
    min(owed_number) AS first_owed, min(CASE WHEN arrived > 0 THEN entry END) AS first_arrived
  FROM {entries} GROUP BY source, destination, part
)
WINDOW channel AS (PARTITION BY source, destination),
  earlier AS (PARTITION BY source, destination ORDER BY part ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""
_IN_ORDER = """
SELECT entries.*,
  coalesce(last(owed_number, true) OVER past, seams.p_owed) AS p_owed,
  coalesce(last(owed_lt, true) OVER past, seams.p_owed_lt) AS p_owed_lt,
  coalesce(last(CASE WHEN arrived > 0 THEN entry END, true) OVER past, seams.p_arrived) AS p_arrived,
  coalesce(last(arrived_lt, true) OVER past, seams.p_arrived_lt) AS p_arrived_lt, first_owed, first_arrived
FROM {entries} AS entries JOIN {seams} AS seams
  ON seams.source = entries.source AND seams.destination = entries.destination AND seams.part = entries.part
WINDOW past AS (PARTITION BY entries.source, entries.destination, entries.part ORDER BY entry
  ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""
_RULES = {
    "channel_gap": "owed > 1 OR arrived > 1 OR settled > 1 OR settled_number <> owed_number "
    "OR owed_number <> coalesce(p_owed, CASE WHEN source_known = 0 THEN 0 ELSE owed_number - 1 END) + 1 "
    "OR owed_lt < p_owed_lt OR NOT inside AND arrived > 0 AND (arrived_lt < p_arrived_lt OR "
    "entry <> coalesce(p_arrived, CASE WHEN destination_known = 0 THEN 0 ELSE entry - 1 END) + 1)",
    "never_owed": "arrived > 0 AND (owed_to <> arrived_in OR owed_slot <> arrived_slot OR owed = 0 AND ("
    "inside OR (source_known = 0 OR entry >= first_owed) AND source_last > arrived_behind))",
    "never_arrived": "settled > 0 AND arrived = 0 AND (inside OR "
    "(destination_known = 0 OR entry >= first_arrived) AND destination_last > settled_behind)",
    "settled_otherwise": "taken <> said",
}
_KINDS = ", ".join(f"CASE WHEN {rule} THEN '{kind}' END" for kind, rule in _RULES.items())
_VIOLATIONS = f"""
SELECT kind, CASE WHEN owed + settled > 0 THEN source ELSE destination END AS shard,
  coalesce(queue, arrived_in) AS queue, sequence,
  array_compact(array(owed_lt, arrived_lt, settled_lt)) AS logical_times,
  array_compact(array(concat('owed at ', {place("owed_lt")}), concat('arrived at ', {place("arrived_lt")}),
    concat('settled at ', {place("settled_lt")}))) AS events,
  concat('entry ', CASE WHEN inside THEN coalesce(owed_number, settled_number) ELSE entry END, ' from shard ', source,
    ' to shard ', destination, ': owed ', owed, ', arrived ', arrived, ', settled ', settled) AS detail
FROM (
  SELECT *, explode(filter(array({_KINDS}), one -> one IS NOT NULL)) AS kind
  FROM (
    SELECT entries.*, one.known_from AS source_known, one.last_time AS source_last,
      other.known_from AS destination_known, other.last_time AS destination_last,
      timestampadd(SECOND, {BEHIND_S}, arrived_at) AS arrived_behind,
      timestampadd(SECOND, {BEHIND_S}, settled_at) AS settled_behind
    FROM {{entries}} AS entries
    LEFT JOIN {{shards}} AS one ON one.shard = entries.source
    LEFT JOIN {{shards}} AS other ON other.shard = entries.destination
  )
)
"""


def violations(events: DataFrame, shards: DataFrame, steps: Steps) -> DataFrame:
    size = f"CASE WHEN source = destination THEN {PART_FRAMES << 16} ELSE {PART_ENTRIES} END"
    entries = steps.keep(query(_ENTRIES, events=events).selectExpr("*", f"entry div {size} AS part"))
    seams = query(_SEAMS, entries=entries)
    in_order = query(_IN_ORDER, entries=entries, seams=broadcast(seams))
    return query(_VIOLATIONS, entries=in_order, shards=broadcast(shards))
