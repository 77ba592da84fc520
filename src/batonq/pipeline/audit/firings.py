"""The rules of schedules: a firing and its message are in one frame, and a due time is fired once.

A firing is a `schedule_set` with the sequence number of the message that it sent.

- Its frame has the `sent` event with that sequence, for the same queue, with the flag SCHEDULED; and each such `sent`
  has its firing. If the queue knows the message's key already, the firing names the earlier message instead.
- The due times of one schedule strictly rise. A schedule that is deleted and created again begins anew.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast

from batonq.core.records import SentFlag
from batonq.pipeline.audit.steps import Steps
from batonq.pipeline.audit.words import place, query

SCHEDULED = f"event = 'sent' AND flags & {SentFlag.SCHEDULED:d} <> 0"
_SET = """
SELECT shard, frame, queue, logical_time AS lt, number, get_json_object(detail, '$.name') AS name,
  CAST(get_json_object(detail, '$.last_due_ms') AS BIGINT) AS due,
  coalesce(get_json_object(detail, '$.gone') = 'true', false)
    OR coalesce(get_json_object(detail, '$.created_ms') IS NOT NULL AND get_json_object(detail, '$.fired') = '0', false)
    AS anew
FROM {events} WHERE event = 'schedule_set'
"""
_SENT = f"SELECT shard, frame, queue, sequence, logical_time AS lt FROM {{events}} WHERE {SCHEDULED}"
# One side of a pair is missing. `fired` is the logical time of the firing, if that is the side that is there.
_ALONE = """
SELECT coalesce(fired.shard, sent.shard) AS shard, coalesce(fired.queue, sent.queue) AS queue,
  coalesce(fired.number, sent.sequence) AS sequence, fired.lt AS fired, coalesce(fired.lt, sent.lt) AS lt
FROM (SELECT * FROM {set} WHERE number > 0) AS fired FULL OUTER JOIN {sent} AS sent
  ON sent.shard = fired.shard AND sent.frame = fired.frame AND sent.queue = fired.queue AND sent.sequence = fired.number
WHERE fired.lt IS NULL OR sent.lt IS NULL
"""
# A firing whose message was a duplicate. The earlier message may have been dropped with the front of the log.
_DUPLICATES = f"""
SELECT alone.shard, alone.lt FROM {{alone}} AS alone JOIN {{shards}} AS shards ON shards.shard = alone.shard
LEFT JOIN (
  SELECT shard, queue, sequence, logical_time FROM {{events}}
  WHERE event = 'sent' AND flags & {SentFlag.DEDUPLICATED:d} <> 0
) AS earlier ON earlier.shard = alone.shard AND earlier.queue = alone.queue AND earlier.sequence = alone.sequence
  AND earlier.logical_time < alone.lt
WHERE fired IS NOT NULL AND (earlier.sequence IS NOT NULL OR known_from > 0)
"""
_NOT_SENT = f"""
SELECT 'firing' AS kind, shard, queue, sequence, array(lt) AS logical_times,
  array(concat(CASE WHEN fired IS NULL THEN 'sent at ' ELSE 'schedule_set at ' END, {place("lt")})) AS events,
  CASE WHEN fired IS NULL THEN concat('message ', sequence, ' has no firing')
    ELSE concat('the firing has no message ', sequence) END AS detail
FROM {{alone}} AS alone LEFT ANTI JOIN {{duplicates}} AS known ON known.shard = alone.shard AND known.lt = alone.lt
"""
_TWICE = f"""
SELECT 'due_time' AS kind, shard, queue, number AS sequence, array(p_lt, lt) AS logical_times,
  array(concat('schedule_set at ', {place("p_lt")}), concat('schedule_set at ', {place("lt")})) AS events,
  concat('schedule ', name, ': due time ', due, ' follows ', p_due) AS detail
FROM (
  SELECT *, lag(due) OVER past AS p_due, lag(lt) OVER past AS p_lt
  FROM (
    SELECT *, count(CASE WHEN anew THEN 1 END) OVER (PARTITION BY shard, queue, name ORDER BY lt) AS life FROM {{set}}
  ) WHERE number > 0 AND due IS NOT NULL
  WINDOW past AS (PARTITION BY shard, queue, name, life ORDER BY lt)
) WHERE due <= p_due
"""


def violations(events: DataFrame, shards: DataFrame, steps: Steps) -> DataFrame:
    changes = steps.keep(query(_SET, events=events))
    alone = steps.keep(query(_ALONE, set=changes, sent=query(_SENT, events=events)))
    duplicates = query(_DUPLICATES, alone=broadcast(alone), shards=broadcast(shards), events=events)
    if alone.isEmpty():
        duplicates = alone.select("shard", "lt")
    return query(_NOT_SENT, alone=alone, duplicates=duplicates).unionByName(query(_TWICE, set=changes))
