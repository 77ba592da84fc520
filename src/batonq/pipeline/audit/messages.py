"""The rules of one message: each event in order, compared with the previous one, in one pass. Plain messages are not
included: plain.py has checked them.

The state after an event follows from the event alone (words.STATE), so a rule needs only the previous event, the last
epoch and receive count (`settled` has none), and the expiry time. The rules:

- The first event is a beginning. Nothing follows an end, and a purge ends all messages except owed ones.
- A lease needs a visible message: sent or returned with its delay over, not in flight, owed, dead, or expired.
  Its epoch and receive count are one higher than before. A return with UNCHARGED takes one receive back.
- Acknowledgements, extensions, nacks and releases need a current lease; `expired` ends one at its deadline. The
  deadline is that of the last `leased`, `extended` or `carried`, plus the grace periods since.
- An operator deletes and retries only messages that no consumer holds.
- A late delete has the epoch of the last lease, which has ended. FIFO and strict queues have none.
- A message that a consumer holds is not moved, unless it expires. What a consumer does, and a dead letter, needs a
  lease in the message's history.
- A message is leased as often as its own maximum or that of its queue allows, counted since it came to this shard and
  without uncharged returns.
- Everything else follows the table in lifecycle.py; the end of a delay has no event.
- `carried` repeats what is known. An existing message is after the first frame that the last `base` keeps.
"""

from __future__ import annotations

from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql.functions import broadcast

from batonq.core.records import ArrivedFlag, DeletedFlag, Reason, ReturnedFlag, State, Type
from batonq.pipeline.audit import known
from batonq.pipeline.audit.lifecycle import MOVES, REASONED
from batonq.pipeline.audit.steps import Steps
from batonq.pipeline.audit.words import (
    CODED,
    MESSAGE,
    REFUSED,
    SEQUENCES,
    STATE,
    event_name,
    event_number,
    place,
    query,
    reason_name,
    reason_number,
    state_name,
    state_number,
    told,
)

COUNT_MAX = 65_535  # the receive count of a message does not rise further

# The columns of the shuffle: event, state, reason, flags and mark are combined in one number, `what`.
_HELD, _RAN_OUT, _RETIRED, _LEASE, _LOOK, _FAILED = range(1, 7)  # marks: which checks an event needs
_MARK = f"""CASE code
  WHEN {Type.LEASED:d} THEN {_LEASE} WHEN {Type.EXTENDED:d} THEN {_HELD} WHEN {Type.CARRIED:d} THEN {_LOOK}
  WHEN {Type.DELETED:d} THEN CASE WHEN flags & {DeletedFlag.LATE:d} <> 0 OR why = {Reason.LATE_ACK:d} THEN {_LOOK}
    WHEN why = {Reason.ACK:d} THEN {_HELD} WHEN why = {Reason.RETENTION:d} THEN {_RETIRED} ELSE 0 END
  WHEN {Type.RETURNED:d} THEN CASE WHEN why = {Reason.EXPIRED:d} THEN {_RAN_OUT}
    WHEN why IN ({Reason.NACK:d}, {Reason.RELEASED:d}) THEN {_HELD} ELSE 0 END
  WHEN {Type.OWED:d} THEN CASE why WHEN {Reason.EXPIRY_DEAD_LETTER:d} THEN {_RETIRED}
    WHEN {Reason.DEAD_LETTER:d} THEN {_FAILED} ELSE 0 END
  ELSE 0 END"""
_REASONED = ", ".join(str(event_number(event)) for event in REASONED)
_FACTS = f"""
SELECT {MESSAGE} AS message, logical_time AS lt,
  CAST(code AS BIGINT) + 256 * {STATE} + 65536 * CASE WHEN code IN ({_REASONED}) THEN coalesce(why, 0) ELSE 0 END
    + 16777216 * CAST(flags AS BIGINT)
    + 4294967296 * {_MARK} AS what,
  queue, time, coalesce(deadline, visible_at) AS until, expires_at AS expires, owner_epoch AS owner,
  CASE WHEN code IN ({Type.SENT:d}, {Type.ARRIVED:d}) THEN 0 ELSE lease_epoch END AS epoch,
  CASE WHEN code = {Type.SENT:d} THEN 0 ELSE receive_count END AS count, %s AS own
FROM {CODED} WHERE other
"""
# The message's own maximum of receives, if the event says it; 0: it has none. A dead letter brings its maximum along
# without using it. A message that is redriven or copied may have one that history does not show: -1.
_BRINGS = ArrivedFlag.NOTED | ArrivedFlag.OVERLAY
_OWN = f"""CASE WHEN code IN ({Type.SENT:d}, {Type.EDITED:d}, {Type.CARRIED:d}) THEN coalesce(receives_max, 0)
  WHEN code = {Type.ARRIVED:d} THEN CASE WHEN flags & {_BRINGS:d} = 0
    OR why IN ({Reason.DEAD_LETTER:d}, {Reason.EXPIRY_DEAD_LETTER:d}) THEN 0 ELSE %d END END"""
_NO_OWN = "CAST(NULL AS INT)"
_EVENT = "(what & 255)"
_BEHIND = ", ".join(str(int(kind)) for kind in (Type.SENT, Type.ARRIVED, Type.CARRIED, Type.EDITED))
_UNCHARGED = f"what & {255 + (ReturnedFlag.UNCHARGED << 24)} = {Type.RETURNED + (ReturnedFlag.UNCHARGED << 24)}"
# Only a log whose front was dropped can have lost an existing message; others are not checked.
_KEPT = f"lead(lt) OVER life AS n_lt, max(CASE WHEN {_EVENT} IN ({_BEHIND}) THEN lt END) OVER past AS p_payload"
_ALL_KEPT = "CAST(NULL AS BIGINT) AS n_lt, CAST(NULL AS BIGINT) AS p_payload"
# Only a queue or message with a maximum of receives can exceed it.
_LIMITED = "first(count, true) OVER past AS first_count, last(own, true) OVER past AS p_own"
_UNLIMITED = "CAST(NULL AS BIGINT) AS first_count, CAST(NULL AS INT) AS p_own"
_PAIRS = f"""
SELECT *,
  lag(lt) OVER life AS p_lt, lag(what) OVER life AS p_what, lag(queue) OVER life AS p_queue,
  lag(until) OVER life AS p_until, lag(owner) OVER life AS p_owner,
  last(epoch, true) OVER past AS p_epoch,
  last(CASE WHEN count IS NULL THEN NULL WHEN {_UNCHARGED} THEN greatest(count - 1, 0) ELSE least(count, {COUNT_MAX})
    END, true) OVER past AS p_count,
  last(expires, true) OVER past AS p_expires,
  %s, %s
FROM {{facts}}
WINDOW life AS (PARTITION BY message ORDER BY lt),
  past AS (PARTITION BY message ORDER BY lt ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
"""

# First, short conditions that nearly all events pass. The remaining suspects are then checked in full.
_P_STATE = "(shiftright(p_what, 8) & 255)"
_DELAY_OVER = f"{_P_STATE} = {State.DELAYED:d} AND p_until <= time"
_STEPS = ", ".join(
    str(
        (state_number(move.before) << 24)
        + (reason_number(move.reason) << 16)
        + (state_number(move.after) << 8)
        + event_number(move.event)
    )
    for move in sorted(MOVES, key=str)
)
_STEP = (
    f"CAST((CASE WHEN {_DELAY_OVER} THEN {State.VISIBLE:d} ELSE {_P_STATE} END) * 16777216 + (what & 16777215) AS INT)"
)
_OPENS = f"{_EVENT} IN ({Type.SENT:d}, {Type.ARRIVED:d})"
_MARKED = "shiftright(what, 32)"
_SUSPECT = f"""CASE WHEN p_lt IS NULL THEN NOT {_OPENS} ELSE {_STEP} NOT IN ({_STEPS}) END
  OR epoch - CASE WHEN {_EVENT} = {Type.LEASED:d} THEN 1 ELSE 0 END <> p_epoch
  OR count - CASE WHEN {_EVENT} = {Type.LEASED:d} THEN 1 ELSE 0 END <> p_count
  OR CASE {_MARKED} WHEN 0 THEN false WHEN {_LEASE} THEN time >= p_expires OR count - 1 - first_count >= %d
    WHEN {_HELD} THEN time >= p_until OR {_P_STATE} <> {State.IN_FLIGHT:d}
    WHEN {_RAN_OUT} THEN time < p_until OR owner <> p_owner WHEN {_RETIRED} THEN time < p_expires
    WHEN {_FAILED} THEN p_epoch = 0 ELSE true END
  OR pairs.queue <> p_queue"""
_SUSPECT_LOST = f"""
  OR n_lt IS NULL AND what & 65280 <> {State.DELETED << 8} AND greatest(lt * CASE WHEN {_EVENT} IN ({_BEHIND}) THEN 1
    ELSE 0 END, coalesce(p_payload, 0)) < kept_from"""
_SUSPECT_PURGED = f"""
  OR lt > purged_first AND (message & {SEQUENCES - 1}) < purged_below"""
_SUSPECTS = f"""
SELECT pairs.*, CAST(shiftright(message, 48) AS INT) AS shard, message & {SEQUENCES - 1} AS sequence,
  known_from, kept_from, graces, purges, purged_first, purged_below
FROM {{pairs}} AS pairs
LEFT JOIN {{shards}} AS shards ON shards.shard = CAST(shiftright(message, 48) AS INT)
LEFT JOIN {{purges}} AS purges ON purges.shard = CAST(shiftright(message, 48) AS INT) AND purges.queue = pairs.queue
WHERE """
_UNPACKED = """
SELECT *, CAST(what & 255 AS INT) AS event, CAST(shiftright(what, 8) & 255 AS INT) AS state,
  CAST(shiftright(what, 16) & 255 AS INT) AS reason, CAST(shiftright(what, 24) & 255 AS INT) AS flags,
  CAST(p_what & 255 AS INT) AS p_event, CAST(shiftright(p_what, 8) & 255 AS INT) AS p_state
FROM {suspects}
"""

# The state before an event: a delay that is over has made the message visible.
_WAS = f"(CASE WHEN p_state = {State.DELAYED:d} AND p_until <= time THEN {State.VISIBLE:d} ELSE p_state END)"
_ALLOWED = f"({_WAS} * 16777216 + reason * 65536 + state * 256 + event) IN ({_STEPS})"


def _as_delayed(state: str) -> str:
    return f"(CASE WHEN {state} = {REFUSED} THEN {State.DELAYED:d} ELSE {state} END)"


_BY_HOLDER = (
    f"(event = {Type.EXTENDED:d} OR event = {Type.DELETED:d} AND reason = {Reason.ACK:d} "
    f"OR event = {Type.RETURNED:d} AND reason IN ({Reason.NACK:d}, {Reason.RELEASED:d}))"
)
_LATE = f"(event = {Type.DELETED:d} AND (reason <=> {Reason.LATE_ACK:d} OR flags & {DeletedFlag.LATE:d} <> 0))"
_COPIED = (
    f"{_as_delayed('state')} <> {_as_delayed('p_state')} AND {_as_delayed('state')} <> {_WAS} OR epoch <> p_epoch "
    f"OR count <> p_count OR state IN ({State.IN_FLIGHT:d}, {State.DELAYED:d}) AND state = p_state AND until <> p_until"
)

# The violation by an event's effect on the state: the first of these that is true.
_STATE_KIND = f"""CASE
  WHEN p_lt IS NULL THEN CASE WHEN event NOT IN ({Type.SENT:d}, {Type.ARRIVED:d}) THEN 'never_sent' END
  WHEN event IN ({Type.SENT:d}, {Type.ARRIVED:d}) THEN 'sent_twice'
  WHEN p_state = {State.DELETED:d} THEN 'after_end'
  WHEN event = {Type.LEASED:d} THEN CASE {_WAS} WHEN {State.VISIBLE:d} THEN NULL WHEN {State.IN_FLIGHT:d}
    THEN 'two_holders' WHEN {State.DELAYED:d} THEN 'early' ELSE 'not_ready' END
  WHEN event = {Type.CARRIED:d} THEN CASE WHEN {_COPIED} THEN 'carried' END
  WHEN ({_BY_HOLDER} OR {_LATE} OR event = {Type.OWED:d} AND reason = {Reason.DEAD_LETTER:d}) AND p_epoch = 0
    THEN 'never_leased'
  WHEN {_BY_HOLDER} AND ({_WAS} <> {State.IN_FLIGHT:d} OR time >= p_until) THEN 'not_held'
  WHEN event = {Type.OWED:d} AND p_state = {State.IN_FLIGHT:d} AND reason <> {Reason.EXPIRY_DEAD_LETTER:d}
    THEN 'moved_while_held'
  WHEN event IN ({Type.DELETED:d}, {Type.RETURNED:d}) AND reason = {Reason.OPERATOR:d} AND p_state = {State.IN_FLIGHT:d}
    THEN 'taken_from_holder'
  WHEN NOT {_ALLOWED} THEN 'transition'
END"""
_KNOWN = f"p_lt IS NOT NULL AND p_state <> {State.DELETED:d}"
# Other kinds, each with its condition for suspects; _SURE has the full check.
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
    "received_too_often": f"event = {Type.LEASED:d} AND p_own >= 0 AND {_KNOWN}",
    "wrong_queue": "queue <> p_queue",
    "purged": f"lt > purged_first AND sequence < purged_below AND p_state NOT IN ({State.OWED:d}, {State.DELETED:d}) "
    f"AND event NOT IN ({Type.SENT:d}, {Type.ARRIVED:d})",
    "lost": f"n_lt IS NULL AND state <> {State.DELETED:d} "
    f"AND coalesce(CASE WHEN event IN ({_BEHIND}) THEN lt END, p_payload, 0) < kept_from",
}
_MAXIMUM = f"CASE WHEN p_own > 0 THEN p_own ELSE nullif({known.policy('max_receives', 'lt')}, 0) END"
_DEADLINE = f"timestampadd(MILLISECOND, {known.grace('p_lt', 'lt')}, p_until)"
_SURE = {
    "never_sent": "lt >= known_from",
    "not_held": f"p_state <> {State.IN_FLIGHT:d} OR time >= {_DEADLINE}",
    "carried": f"NOT (state <=> {State.IN_FLIGHT:d} AND p_state = state AND epoch = p_epoch AND count = p_count "
    f"AND until = {_DEADLINE})",
    "late_delete": f"NOT reason <=> {Reason.LATE_ACK:d} OR flags & {DeletedFlag.LATE:d} = 0 OR coalesce(fifo, false) "
    f"OR coalesce({known.policy('strict', 'lt')}, false) OR p_state = {State.IN_FLIGHT:d} AND time < {_DEADLINE}",
    "lease_cut_short": f"time < {_DEADLINE}",
    "received_too_often": f"p_count - first_count >= {_MAXIMUM}",
    "purged": known.purged("sequence", "p_lt", "lt"),
    "lost": f"state = {State.OWED:d} OR NOT {known.purged('sequence', 'lt', '9223372036854775807')}",
}


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
_BEFORE = f"concat({event_name('p_event')}, ' at ', {place('p_lt')}, coalesce(concat(', until ', p_until), ''))"
_THIS = told(event_name("event"), "lt", "time", ("epoch", "epoch"), ("until", "until"))
_VIOLATIONS = f"""
SELECT kind, shard, queue, sequence, array_compact(array(p_lt, lt)) AS logical_times,
  array_compact(array({_BEFORE}, {_THIS})) AS events,
  CASE
    WHEN kind IN ('lease_epoch', 'stale_epoch') THEN concat('epoch ', epoch, ' follows ', p_epoch)
    WHEN kind = 'receive_count' THEN concat('receive count ', count, ' follows ', p_count)
    WHEN kind = 'wrong_queue' THEN concat('queue ', queue, ' follows ', p_queue)
    WHEN kind = 'received_too_often' THEN concat('receive ', p_count - first_count + 1, ' of at most ', {_MAXIMUM})
    WHEN kind = 'moved_while_held' THEN concat('moved as ', coalesce({reason_name("reason")}, 'nothing'),
      ', the lease was until ', p_until)
    WHEN kind = 'transition' THEN concat({event_name("event")}, coalesce(concat(' as ', {reason_name("reason")}), ''),
      ' cannot happen to a message that is ', {state_name(_WAS)})
  END AS detail
FROM (
  SELECT *, explode(filter(array({_KINDS}), one -> one IS NOT NULL)) AS kind
  FROM (
    SELECT suspects.*, {_STATE_KIND} AS state_kind, policies.fifo, policies.policies FROM {{suspects}} AS suspects
    LEFT JOIN {{policies}} AS policies ON policies.shard = suspects.shard AND policies.queue = suspects.queue
  )
)
"""


class Limits(NamedTuple):
    """What a history says about maximums of receives."""

    least: int | None  # the smallest one, of a queue or a message
    own: bool  # whether a message may have its own


def violations(
    events: DataFrame, shards: DataFrame, policies: DataFrame, purges: DataFrame, limits: Limits, steps: Steps
) -> DataFrame:
    """Suspects are cached: they are few, and Spark compiles their selection separately from the full check."""
    dropped = not shards.where("kept_from IS NOT NULL").isEmpty()
    suspect = _SUSPECT % (limits.least or COUNT_MAX + 1)
    suspect += (_SUSPECT_LOST if dropped else "") + ("" if purges.isEmpty() else _SUSPECT_PURGED)
    own = _OWN % (-1 if limits.own else 0) if limits.least else _NO_OWN
    seen = (_KEPT if dropped else _ALL_KEPT, _LIMITED if limits.least else _UNLIMITED)
    pairs = query(_PAIRS % seen, facts=query(_FACTS % own, events=events))
    suspects = query(_SUSPECTS + suspect, pairs=pairs, shards=broadcast(shards), purges=broadcast(purges))
    unpacked = query(_UNPACKED, suspects=steps.keep(suspects))
    return query(_VIOLATIONS, suspects=unpacked, policies=broadcast(policies))
