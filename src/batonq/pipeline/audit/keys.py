"""The rule of deduplication keys: no second message with a remembered key.

Two consecutive messages with the same key in the same queue (and group, if the queue's policy says so) are compared:

- The key of the first is remembered for its policy's window, in whole seconds: from the second of its time up to the
  next whole second after the window.
- With DEDUP_LIVES it is instead remembered exactly as long as the first message exists and is not dead.
- A purge of the queue forgets its keys. A redriven message neither adds a key nor is blocked by one, and neither is a
  copy of a published message, whose key its topic remembers.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast

from batonq.core.records import SentFlag, State
from batonq.pipeline.audit.known import versions
from batonq.pipeline.audit.steps import Steps
from batonq.pipeline.audit.words import CODED, MESSAGE, SEQUENCES, STATE, query, told

_TAKEN = """
SELECT taken.*, versions.window_ms, CASE WHEN versions.per_group THEN `group` ELSE '' END AS scope
FROM (
  SELECT shard, queue, dedup_key, `group`, sequence, logical_time AS lt, time, flags
  FROM {events} WHERE event = 'sent' AND dedup_key IS NOT NULL AND flags & COPY = 0
) AS taken
LEFT JOIN {versions} AS versions ON versions.shard = taken.shard AND versions.queue = taken.queue
  AND versions.since < taken.lt AND taken.lt < versions.till
"""
_TAKEN = _TAKEN.replace("COPY", f"{SentFlag.FANNED:d}")
_PAIRS = """
SELECT shard, queue, dedup_key, sequence, lt, time, lag(sequence) OVER same AS p_sequence, lag(lt) OVER same AS p_lt,
  lag(time) OVER same AS p_time, lag(window_ms) OVER same AS p_window_ms, lag(flags) OVER same AS p_flags
FROM {taken} WINDOW same AS (PARTITION BY shard, queue, dedup_key, scope ORDER BY lt)
"""
_LIVES = f"p_flags & {SentFlag.DEDUP_LIVES:d} <> 0"
_IN_WINDOW = f"(NOT {_LIVES} AND unix_millis(time) div 1000 < (unix_millis(p_time) + p_window_ms + 999) div 1000)"
_SUSPECTS = f"""
SELECT pairs.*, coalesce({_IN_WINDOW}, false) AS in_window, purges FROM {{pairs}} AS pairs
LEFT JOIN {{purges}} AS purges ON purges.shard = pairs.shard AND purges.queue = pairs.queue
WHERE p_lt IS NOT NULL AND ({_IN_WINDOW} OR {_LIVES})
  AND NOT coalesce(exists(purges, one -> one.purged > p_lt AND one.purged < lt), false)
"""
# Of those that existed: the state after the first message's last event before the second.
_LIVING = f"""
SELECT any_value(struct(suspects.*)) AS one
FROM (SELECT {MESSAGE} AS message, logical_time AS lt, {STATE} AS state FROM {CODED}) AS facts
JOIN {{suspects}} AS suspects ON suspects.shard * {SEQUENCES} + suspects.p_sequence = message AND facts.lt < suspects.lt
WHERE NOT in_window GROUP BY suspects.shard, suspects.lt
HAVING max_by(state, facts.lt) NOT IN ({State.DELETED:d}, {State.DEAD:d})
"""
_VIOLATIONS = f"""
SELECT 'duplicate' AS kind, shard, queue, sequence, array(p_lt, lt) AS logical_times,
  array({told("'sent'", "p_lt", "p_time")}, {told("'sent'", "lt", "time")}) AS events,
  concat('key ', dedup_key, ' of message ', p_sequence, CASE WHEN in_window THEN ' within its window'
    ELSE ', which is still there' END) AS detail
FROM {{suspects}}
"""


def violations(events: DataFrame, keyed: DataFrame, policies: DataFrame, purges: DataFrame, steps: Steps) -> DataFrame:
    """`keyed`: the events, at least those with a key."""
    taken = query(_TAKEN, events=keyed, versions=broadcast(versions(policies)))
    suspects = steps.keep(query(_SUSPECTS, pairs=query(_PAIRS, taken=taken), purges=broadcast(purges)))
    guilty = suspects.where("in_window")
    if not suspects.where("NOT in_window").isEmpty():
        living = query(_LIVING, events=events, suspects=broadcast(suspects))
        guilty = guilty.unionByName(living.select("one.*"))
    return query(_VIOLATIONS, suspects=guilty)
