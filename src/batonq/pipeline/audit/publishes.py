"""The rule of topics: a published message has as many copies as its record says.

A request's `published` events are followed in the same frame by the `sent` events of their copies, subscription by
subscription. The messages of a request, and of requests that were written together, are compared as a whole.

- There are as many copies as the `published` events say. Dropped copies are not counted there.
- A subscription gets at most one copy of each message.
"""

from __future__ import annotations

from pyspark.sql import DataFrame

from batonq.core.records import SentFlag
from batonq.pipeline.audit.words import place, query

COPY = f"event = 'sent' AND flags & {SentFlag.FANNED:d} <> 0"
_REQUESTS = f"""
SELECT *, count(CASE WHEN event = 'published' AND NOT before <=> 'published' THEN 1 END) OVER past AS request
FROM (
  SELECT shard, frame, queue, event, logical_time, messages, subscription, lag(event) OVER in_order AS before
  FROM {{events}} WHERE event = 'published' OR {COPY}
  WINDOW in_order AS (PARTITION BY shard, frame ORDER BY logical_time)
)
WINDOW past AS (PARTITION BY shard, frame ORDER BY logical_time ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
"""
_COUNTED = """
SELECT shard, frame, request, sum(published) AS published, sum(copies) AS copies, sum(written) AS written,
  max(written) AS most, min(first) AS first, max(last) AS last, min(topic) AS topic
FROM (
  SELECT shard, frame, request, subscription, count(CASE WHEN event = 'published' THEN 1 END) AS published,
    coalesce(sum(CASE WHEN event = 'published' THEN messages END), 0) AS copies,
    count(CASE WHEN event = 'sent' THEN 1 END) AS written, min(logical_time) AS first, max(logical_time) AS last,
    min(CASE WHEN event = 'published' THEN queue END) AS topic
  FROM {requests} GROUP BY shard, frame, request, subscription
) GROUP BY shard, frame, request
"""
_VIOLATIONS = f"""
SELECT 'copies' AS kind, shard, topic AS queue, CAST(NULL AS BIGINT) AS sequence,
  array_distinct(array(first, last)) AS logical_times,
  transform(array_distinct(array(first, last)), one -> {place("one")}) AS events,
  concat(published, ' published with ', copies, ' copies, ', written, ' written, at most ', most,
    ' for one subscription') AS detail
FROM {{counted}} WHERE written <> copies OR most > published
"""


def violations(events: DataFrame) -> DataFrame:
    return query(_VIOLATIONS, counted=query(_COUNTED, requests=query(_REQUESTS, events=events)))
