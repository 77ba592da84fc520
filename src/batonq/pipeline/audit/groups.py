"""The rules of FIFO groups: messages are leased in order, and a group is locked while its first message is not visible.

A group's messages queue up by sequence number, from their arrival until they are deleted, moved, purged or dead; none
ever returns to the queue. One receive takes as many messages as it may from the front, so messages after a leased one
are leased with it or not at all:

- When a message is leased, every earlier one of its group has left or was leased in the same receive.
- A message that is returned while later ones of its receive are in flight is leased again before them, because they
  were leased after it. No later message is leased to anyone else meanwhile.

If the front of the log was dropped, the rules apply from the base record on. History has no group for a message that
was moved within its shard: it has the group of its predecessor, if that is known. A message that was moved again before
it was carried is not checked.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast

from batonq.core.records import ArrivedFlag, State, Type
from batonq.pipeline.audit.known import purged_at
from batonq.pipeline.audit.steps import Steps
from batonq.pipeline.audit.words import CODED, MESSAGE, SEQUENCES, STATE, event_name, nothing, query, told

_NEVER = 9223372036854775807
_SEQUENCE = f"(message & {SEQUENCES - 1})"
_FACTS = f"""
SELECT {MESSAGE} AS message, shard, queue, logical_time AS lt, code AS event, {STATE} AS state, time, deadline,
  code = {Type.ARRIVED:d} AND flags & {ArrivedFlag.OVERLAY:d} <> 0 AS moved,
  CASE WHEN code IN ({Type.SENT:d}, {Type.EDITED:d}, {Type.CARRIED:d})
    OR code = {Type.ARRIVED:d} AND flags & {ArrivedFlag.OVERLAY:d} = 0 THEN coalesce(`group`, '') END AS line
FROM {CODED} AS facts
LEFT SEMI JOIN {{policies}} AS policies
ON policies.shard = facts.shard AND policies.queue = facts.queue AND policies.fifo
"""
# Consecutive leases of one queue with the same time and deadline are one receive: `received` is its first.
_LEASES = f"""
SELECT message, shard, queue, lt, time, deadline,
  max(CASE WHEN begins THEN lt END) OVER (PARTITION BY shard, frame ORDER BY lt) AS received
FROM (
  SELECT *, NOT coalesce(lag(lt) OVER log = lt - 1 AND lag(queue) OVER log = queue AND lag(time) OVER log = time
    AND lag(deadline) OVER log = deadline, false) AS begins
  FROM (SELECT *, shiftright(lt, 16) AS frame FROM {{facts}} WHERE event = {Type.LEASED:d})
  WINDOW log AS (PARTITION BY shard, frame ORDER BY lt)
)
"""
# One row per message: its group, and when it leaves the group.
_LIVES = f"""
SELECT message, lives.shard, lives.queue, line, coalesce(CASE WHEN owed_before THEN began END, gone,
  CASE WHEN last_state <> {State.OWED:d} THEN {purged_at(_SEQUENCE, "last_lt")} END, {_NEVER}) AS leaves
FROM (
  SELECT message, shard, queue, max(line) AS line, min(lt) AS began, max(lt) AS last_lt,
    max_by(state, lt) AS last_state, min(CASE WHEN state IN ({State.DELETED:d}, {State.DEAD:d}) THEN lt END) AS gone,
    min_by(event = {Type.CARRIED:d} AND state = {State.OWED:d}, lt) AS owed_before
  FROM {{facts}} GROUP BY message, shard, queue
) AS lives
LEFT JOIN {{purges}} AS purges ON purges.shard = lives.shard AND purges.queue = lives.queue
"""
_MOVED = f"""
SELECT new.message, lives.line
FROM {{facts}} AS new JOIN {{facts}} AS old ON old.shard = new.shard AND old.lt = new.lt - 1
JOIN {{lives}} AS lives ON lives.message = old.message AND lives.queue = old.queue
WHERE new.moved AND old.event = {Type.OWED:d}
"""
_WITH_MOVED = """
SELECT lives.message, shard, queue, coalesce(lives.line, moved.line) AS line, leaves
FROM {lives} AS lives LEFT JOIN {moved} AS moved ON moved.message = lives.message
"""
_IN_LINE = """
SELECT *, row_number() OVER waits AS place, max(struct(leaves, message)) OVER before AS ahead
FROM {lives} WHERE line IS NOT NULL
WINDOW waits AS (PARTITION BY shard, queue, line ORDER BY message),
  before AS (PARTITION BY shard, queue, line ORDER BY message ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""
# Within one receive, each message of a group directly follows the previous one: those need no further check.
_SUSPECTS = """
SELECT suspects.*, CASE WHEN p_received = received AND place > p_place THEN p_place END AS after
FROM (
  SELECT leases.*, line, place, ahead, lag(received) OVER taken AS p_received, lag(place) OVER taken AS p_place
  FROM {leases} AS leases
  JOIN {in_line} AS in_line ON in_line.message = leases.message AND in_line.queue = leases.queue
  WINDOW taken AS (PARTITION BY leases.shard, leases.queue, line ORDER BY lt)
) AS suspects
JOIN {shards} AS shards ON shards.shard = suspects.shard
WHERE ahead.leaves > lt AND lt >= known_from AND NOT coalesce(p_received = received AND p_place = place - 1, false)
"""
# After another message of the same receive, only messages between the two can block.
_BLOCKED = """
SELECT message, shard, queue, lt, time, deadline, blocker FROM (
  SELECT one.message, one.shard, one.queue, one.lt, any_value(one.time) AS time, any_value(one.deadline) AS deadline,
    CASE WHEN any_value(one.after) IS NULL THEN any_value(one.ahead).message
      ELSE max(struct(other.leaves, other.message)).message END AS blocker
  FROM {suspects} AS one LEFT JOIN {in_line} AS other
  ON other.shard = one.shard AND other.queue = one.queue AND other.line = one.line
    AND other.place > one.after AND other.place < one.place AND other.leaves > one.lt
  GROUP BY one.message, one.shard, one.queue, one.lt
) WHERE blocker IS NOT NULL
"""
_EARLIER = told(event_name("earlier.event"), "earlier.lt", "earlier.time")
_THIS = told("'leased'", "lt", "time", ("until", "deadline"))
_VIOLATIONS = f"""
SELECT CASE WHEN earlier.state = {State.IN_FLIGHT:d} THEN 'group_exclusion' ELSE 'group_order' END AS kind,
  shard, queue, {_SEQUENCE} AS sequence, array(earlier.lt, lt) AS logical_times,
  array(concat('of the earlier message: ', {_EARLIER}), {_THIS}) AS events,
  concat('message ', blocker & {SEQUENCES - 1}, ' of the group is before it') AS detail
FROM (
  SELECT blocked.message, blocked.shard, blocked.queue, blocked.lt, any_value(blocked.time) AS time,
    any_value(blocked.deadline) AS deadline, any_value(blocker) AS blocker,
    max(struct(facts.lt, facts.state, facts.event, facts.time)) AS earlier
  FROM {{facts}} AS facts JOIN {{blocked}} AS blocked ON facts.message = blocker AND facts.lt < blocked.lt
  GROUP BY blocked.message, blocked.shard, blocked.queue, blocked.lt
)
"""


def violations(events: DataFrame, shards: DataFrame, policies: DataFrame, purges: DataFrame, steps: Steps) -> DataFrame:
    """The results of each step are cached: few events belong to FIFO queues, and fewer are suspects."""
    if policies.where("fifo").isEmpty():
        return nothing(events)
    facts = steps.keep(query(_FACTS, events=events, policies=broadcast(policies)))
    lives = query(_LIVES, facts=facts, purges=broadcast(purges))
    if not facts.where("moved").isEmpty():
        lives = query(_WITH_MOVED, lives=lives, moved=query(_MOVED, facts=facts, lives=lives))
    in_line = steps.keep(query(_IN_LINE, lives=lives))
    leases = query(_LEASES, facts=facts)
    suspects = steps.keep(query(_SUSPECTS, leases=leases, in_line=in_line, shards=broadcast(shards)))
    if suspects.isEmpty():
        return nothing(events)
    blocked = query(_BLOCKED, suspects=suspects, in_line=in_line)
    return query(_VIOLATIONS, facts=facts, blocked=broadcast(blocked))
