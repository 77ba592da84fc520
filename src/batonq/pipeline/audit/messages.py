"""The rules of one message: its events in order, each beside the one before it, in one pass.

What an event leaves behind can be told from the event alone (words.STATE), so that a rule needs the event before it, the
last epoch and receive count (a `settled` has none), and when the message expires. Rules:

- The first event is a beginning. Nothing follows an end, and a purge is an end for all but what is owed.
- A lease needs a visible message: sent or returned with its delay over, not in flight, not owed, not dead, not expired.
  Its epoch and receive count are one higher than before. A return with UNCHARGED takes one receive back.
- Acknowledgements, extensions, nacks and releases need a running lease; `expired` returns one that ran out. A deadline
  is what the last `leased`, `extended` or `carried` said, and the grace that owners gave since.
- A late delete has the epoch of the last lease, which is over. FIFO and strict queues have none.
- All else is as core/shard/lifecycle.py's table of transitions says; a delay's end has no event.
- `carried` repeats what is known. A living message lies behind the first frame that the last `base` keeps.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from batonq.core.records import Flag, Reason, State, Type
from batonq.core.shard.columns import COUNT_MAX
from batonq.core.shard.lifecycle import TRANSITIONS
from batonq.pipeline.audit import known
from batonq.pipeline.audit.words import (
    DOOMED,
    EVENT,
    MESSAGE,
    REASON,
    SEQUENCES,
    STATE,
    event_name,
    query,
    state_name,
    told,
)

# What goes into the shuffle.
_FACTS = f"""
SELECT {MESSAGE} AS message, logical_time AS lt, {EVENT} AS event, flags, {REASON} AS reason, {STATE} AS state,
  queue, time, coalesce(deadline, visible_at) AS until, expires_at AS expires, owner_epoch AS owner,
  CASE WHEN event IN ('sent', 'arrived') THEN 0 ELSE lease_epoch END AS epoch,
  CASE WHEN event = 'sent' THEN 0 ELSE receive_count END AS count
FROM {{events}} WHERE sequence IS NOT NULL
"""
_BEHIND = (Type.SENT, Type.ARRIVED, Type.CARRIED, Type.EDITED)
_PAYLOAD = f"event IN ({', '.join(str(int(kind)) for kind in _BEHIND)})"
_COUNT_AFTER = (
    f"CASE WHEN event = {Type.RETURNED:d} AND flags & {Flag.UNCHARGED:d} <> 0 THEN greatest(count - 1, 0) "
    f"ELSE least(count, {COUNT_MAX}) END"
)
_PAIRS = f"""
SELECT *,
  lag(lt) OVER life AS p_lt, lag(event) OVER life AS p_event, lag(state) OVER life AS p_state,
  lag(queue) OVER life AS p_queue, lag(time) OVER life AS p_time, lag(until) OVER life AS p_until,
  lag(owner) OVER life AS p_owner, lead(lt) OVER life AS n_lt,
  last(epoch, true) OVER past AS p_epoch,
  last({_COUNT_AFTER}, true) OVER past AS p_count,
  last(expires, true) OVER past AS p_expires,
  max(CASE WHEN {_PAYLOAD} THEN lt END) OVER past AS p_payload
FROM {{facts}}
WINDOW life AS (PARTITION BY message ORDER BY lt),
  past AS (PARTITION BY message ORDER BY lt ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""

# The state before an event: a delay that is over has made the message visible.
_WAS = f"(CASE WHEN p_state = {State.DELAYED:d} AND p_until <= time THEN {State.VISIBLE:d} ELSE p_state END)"
_STATES_MAX, _TYPES_MAX = 10, 100


def _step(before: str, event: str, after: str) -> str:
    return f"({before} * {_STATES_MAX * _TYPES_MAX} + {event} * {_STATES_MAX} + {after})"


def _as_delayed(state: str) -> str:
    return f"(CASE WHEN {state} = {DOOMED} THEN {State.DELAYED:d} ELSE {state} END)"


_STEPS = ", ".join(
    str(state * _STATES_MAX * _TYPES_MAX + record * _STATES_MAX + after)
    for (state, record), afters in TRANSITIONS.items()
    for after in afters
)
_ALLOWED = f"{_step(_as_delayed(_WAS), 'event', _as_delayed('state'))} IN ({_STEPS})"
_BY_HOLDER = (
    f"(event = {Type.EXTENDED:d} OR event = {Type.DELETED:d} AND reason = {Reason.ACK:d} "
    f"OR event = {Type.RETURNED:d} AND reason IN ({Reason.NACK:d}, {Reason.RELEASED:d}))"
)
_LATE = f"(event = {Type.DELETED:d} AND (reason <=> {Reason.LATE_ACK:d} OR flags & {Flag.LATE:d} <> 0))"
_COPIED = (
    f"{_as_delayed('state')} <> {_as_delayed('p_state')} AND {_as_delayed('state')} <> {_WAS} OR epoch <> p_epoch "
    f"OR count <> p_count OR state IN ({State.IN_FLIGHT:d}, {State.DELAYED:d}) AND state = p_state AND until <> p_until"
)

# What an event does to the state, as one kind: the first of these that is true.
_STATE_KIND = f"""CASE
  WHEN p_lt IS NULL THEN CASE WHEN event NOT IN ({Type.SENT:d}, {Type.ARRIVED:d}) THEN 'never_sent' END
  WHEN event IN ({Type.SENT:d}, {Type.ARRIVED:d}) THEN 'sent_twice'
  WHEN p_state = {State.DELETED:d} THEN 'after_end'
  WHEN event = {Type.LEASED:d} THEN CASE {_WAS} WHEN {State.VISIBLE:d} THEN NULL WHEN {State.IN_FLIGHT:d}
    THEN 'two_holders' WHEN {State.DELAYED:d} THEN 'early' ELSE 'not_ready' END
  WHEN event = {Type.CARRIED:d} THEN CASE WHEN {_COPIED} THEN 'carried' END
  WHEN {_BY_HOLDER} AND ({_WAS} <> {State.IN_FLIGHT:d} OR time >= p_until) THEN 'not_held'
  WHEN NOT {_ALLOWED} THEN 'transition'
END"""
_KNOWN = f"p_lt IS NOT NULL AND p_state <> {State.DELETED:d}"
# Other kinds, each with what makes an event suspect of it; _SURE says what must be looked at more closely.
_OTHERS = {
    "lease_epoch": f"event = {Type.LEASED:d} AND epoch <> p_epoch + 1 AND {_KNOWN}",
    "receive_count": f"event <> {Type.CARRIED:d} AND {_KNOWN} AND "
    f"count <> p_count + CASE WHEN event = {Type.LEASED:d} THEN 1 ELSE 0 END",
    "stale_epoch": f"event NOT IN ({Type.LEASED:d}, {Type.CARRIED:d}) AND epoch <> p_epoch AND {_KNOWN}",
    "lease_after_expiry": f"event = {Type.LEASED:d} AND time >= p_expires",
    "late_delete": _LATE,
    "lease_cut_short": f"event = {Type.RETURNED:d} AND reason = {Reason.EXPIRED:d} AND p_state = {State.IN_FLIGHT:d} "
    "AND (time < p_until OR owner <> p_owner)",
    "expired_early": f"(event = {Type.DELETED:d} AND reason = {Reason.RETENTION:d} "
    f"OR event = {Type.OWED:d} AND reason = {Reason.EXPIRY_DEAD_LETTER:d}) AND time < p_expires",
    "wrong_queue": "queue <> p_queue",
    "purged": f"lt > purged_first AND sequence < purged_below AND p_state NOT IN ({State.OWED:d}, {State.DELETED:d}) "
    f"AND event NOT IN ({Type.SENT:d}, {Type.ARRIVED:d})",
    "lost": f"n_lt IS NULL AND state <> {State.DELETED:d} "
    f"AND coalesce(CASE WHEN {_PAYLOAD} THEN lt END, p_payload, 0) < kept_from",
}
_DEADLINE = f"timestampadd(MILLISECOND, {known.grace('p_owner', 'owner')}, p_until)"
_SURE = {
    "never_sent": "lt >= known_from",
    "not_held": f"p_state <> {State.IN_FLIGHT:d} OR time >= {_DEADLINE}",
    "carried": f"NOT (state <=> {State.IN_FLIGHT:d} AND p_state = state AND epoch = p_epoch AND count = p_count "
    f"AND until = {_DEADLINE})",
    "late_delete": f"NOT reason <=> {Reason.LATE_ACK:d} OR flags & {Flag.LATE:d} = 0 OR coalesce(fifo, false) "
    f"OR coalesce({known.policy('strict', 'lt')}, false) OR p_state = {State.IN_FLIGHT:d} AND time < {_DEADLINE}",
    "lease_cut_short": f"time < {_DEADLINE}",
    "purged": known.purged("sequence", "p_lt", "lt"),
    "lost": f"state = {State.OWED:d} OR NOT {known.purged('sequence', 'lt', '9223372036854775807')}",
}
_SUSPECTS = f"""
SELECT *, {_STATE_KIND} AS state_kind FROM (
  SELECT pairs.*, in_shard AS shard, known_from, kept_from, graces, purged_first, purged_below, purges
  FROM (SELECT *, CAST(shiftright(message, 48) AS INT) AS in_shard, message & {SEQUENCES - 1} AS sequence
        FROM {{pairs}}) AS pairs
  LEFT JOIN {{shards}} AS shards ON shards.shard = in_shard
  LEFT JOIN {{purges}} AS purges ON purges.shard = in_shard AND purges.queue = pairs.queue
)
WHERE {_STATE_KIND} IS NOT NULL OR {" OR ".join(f"({condition})" for condition in _OTHERS.values())}
"""


def _kind(name: str, condition: str) -> str:
    sure = f"({condition}) AND ({_SURE[name]})" if name in _SURE else condition
    return f"CASE WHEN {sure} THEN '{_CALLED.get(name, name)}' END"


_CALLED = {"purged": "after_end"}
_REFINED = (
    "CASE state_kind "
    + " ".join(f"WHEN '{n}' THEN CASE WHEN {_SURE[n]} THEN '{n}' END" for n in ("never_sent", "not_held", "carried"))
    + " ELSE state_kind END"
)
_KINDS = ", ".join([_REFINED, *(_kind(name, condition) for name, condition in _OTHERS.items())])
_BEFORE = told(event_name("p_event"), "p_lt", "p_time", ("epoch", "p_epoch"), ("until", "p_until"))
_THIS = told(event_name("event"), "lt", "time", ("epoch", "epoch"), ("until", "until"))
_VIOLATIONS = f"""
SELECT kind, shard, queue, sequence, array_compact(array(p_lt, lt)) AS logical_times,
  array_compact(array({_BEFORE}, {_THIS})) AS events,
  CASE
    WHEN kind IN ('lease_epoch', 'stale_epoch') THEN concat('epoch ', epoch, ' follows ', p_epoch)
    WHEN kind = 'receive_count' THEN concat('receive count ', count, ' follows ', p_count)
    WHEN kind = 'wrong_queue' THEN concat('queue ', queue, ' follows ', p_queue)
    WHEN kind = 'transition' THEN concat({event_name("event")}, ' cannot happen to a message that is ',
      {state_name(_WAS)})
  END AS detail
FROM (
  SELECT *, explode(filter(array({_KINDS}), one -> one IS NOT NULL)) AS kind
  FROM (
    SELECT suspects.*, policies.fifo, policies.policies FROM {{suspects}} AS suspects
    LEFT JOIN {{policies}} AS policies ON policies.shard = suspects.shard AND policies.queue = suspects.queue
  )
)
"""


def violations(events: DataFrame, shards: DataFrame, policies: DataFrame, purges: DataFrame) -> DataFrame:
    pairs = query(_PAIRS, facts=query(_FACTS, events=events))
    suspects = query(_SUSPECTS, pairs=pairs, shards=F.broadcast(shards), purges=F.broadcast(purges))
    return query(_VIOLATIONS, suspects=suspects, policies=F.broadcast(policies))
