"""message_lifecycle: one row per message, from its events alone.

A message here is one incarnation, `(source, shard, sequence)`. A move (dead letter, redrive) ends one and begins
another; `lines.py` connects them. The row is created by one grouping of the events, over numbers and times only, so
that Spark keeps its buffers in place; texts are joined afterwards, from the events that have some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from batonq.core.records import ReturnedFlag
from batonq.pipeline.events.schema import Column
from batonq.pipeline.tables import lines
from batonq.pipeline.tables.ids import id_of
from batonq.pipeline.tables.purges import purged
from batonq.pipeline.tables.schema import SOURCE, Table, shaped

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

KEY = ("source", "shard", "sequence")
OUTCOMES = (
    "acked, late_acked, expired, dead_lettered, redriven, moved, purged, queue_deleted, deleted (by an operator); or, "
    "while it is "
    "there: waiting, in_flight, delayed, dead, owed; unknown"
)
TABLE = Table(
    "message_lifecycle",
    "One row per message: when it was sent, received and ended, how many attempts there were, and its "
    "outcome. A message that was moved (to a dead-letter queue, or back) has one row for each queue that it "
    "was in.",
    (
        SOURCE,
        Column("shard", "int32", "Shard of the message."),
        Column("sequence", "int64", "Sequence number in the shard. (source, shard, sequence) identifies the row."),
        Column("message_id", "text", "Id of the message."),
        Column("first_id", "text", "Id of the first message of its line: its own, unless it was moved."),
        Column("previous_id", "text", "Id of the message before its last move."),
        Column("next_id", "text", "Id of the message after it was moved on."),
        Column("queue", "int64", "Number of the queue."),
        Column("queue_name", "name", "Name of the queue."),
        Column("tenant", "name", "Account of the queue."),
        Column("group", "name", "Message group."),
        Column("priority", "int16", "Priority."),
        Column("body_bytes", "int64", "Last size of the body."),
        Column(
            "sent_at",
            "time",
            "Time when it was sent; a dead letter keeps that time, a redriven message gets a new one.",
        ),
        Column("visible_at", "time", "Time when it first became visible."),
        Column("arrived_at", "time", "Time when it arrived by a move."),
        Column("first_receive_at", "time", "Time of its first receive, if that is in history."),
        Column("last_receive_at", "time", "Time of its last receive."),
        Column("ended_at", "time", "Time when it was acknowledged, moved on, or removed."),
        Column("receives", "int64", "Receive count, as shown by the broker: a dead letter keeps its own."),
        Column("leases", "int64", "Number of leases in this queue."),
        Column("nacks", "int64", "Number of recorded nacks."),
        Column("expiries", "int64", "Number of recorded lease expirations."),
        Column("extensions", "int64", "Number of recorded lease extensions."),
        Column("dwell_ms", "int64", "From `visible_at` to `first_receive_at`."),
        Column("handling_ms", "int64", "From `last_receive_at` to the acknowledgement."),
        Column("end_to_end_ms", "int64", "From `sent_at` to the acknowledgement."),
        Column("outcome", "name", f"Outcome: {OUTCOMES}."),
        Column("last_error_class", "name", "Class of the last reported error."),
        Column("last_error_text", "text", "Text of the last reported error."),
        Column("line_deaths", "int64", "Number of recorded dead-letterings in its line."),
        Column("line_redrives", "int64", "Number of recorded redrives in its line."),
        Column("opened", "bool", "Whether it existed before history began (an opening balance)."),
        Column("releases", "int64", "Number of recorded returns by a visibility timeout of zero."),
        Column("untried", "int64", "Number of recorded returns without an attempt."),
        Column("attributes_bytes", "int64", "Size of its attributes."),
        Column("expires_at", "time", "Time when it expires."),
        Column(
            "deadline",
            "time",
            "If it is in flight, or a purge removed it while it was in flight: end of its lease, including "
            "the grace period of restarts.",
        ),
        Column(
            "as_of", "time", "Time of the last event of its shard: the `outcome` of an existing message is as of then."
        ),
        Column("date", "date", "Day of `sent_at`, in UTC; if that is before history, of the first known event."),
    ),
    by=("date",),
)

# The state after a message's last event; a code has five bits next to its logical time.
_BITS = 5
_UNKNOWN, _THERE, _HELD, _OWED, _DEAD, _MOVED = range(6)
_ENDS = {"ack": 6, "late_ack": 7, "retention": 8, "purged": 9, "operator": 10}
_ENDED = ("acked", "late_acked", "expired", "purged", "deleted")
_TO_DEAD_LETTERS, _REDRIVE, _ELSEWHERE = 1, 2, 3
_SIZE_BITS = 32  # a frame's variable part, and so a size, has fewer bits
_RARE = ("epoch", "queue_purged", "queue_closed", "owed", "arrived")
_RARE_COLUMNS = (
    *("source", "shard", "sequence", "logical_time", "time", "event", "reason", "flags", "queue", "number"),
    *("grace_ms", "other_shard", "channel_number"),
)


def lifecycle(events: DataFrame, queues: DataFrame) -> DataFrame:
    """message_lifecycle from the events and queues tables.

    Rare cases (moves, purges, restarts) are computed first, so that a history without them costs nothing extra.
    """
    events = with_source(events)
    rare = events.where(f.col("event").isin(*_RARE)).select(*_RARE_COLUMNS).cache()
    there = {row[0]: row[1] for row in rare.groupBy("event").count().collect()}
    found = _messages(events)
    found = found.join(f.broadcast(_shards(events, rare)), ["source", "shard"], "left")
    found = found.join(f.broadcast(names(queues)), ["source", "queue"], "left")
    found = purged(found, rare, f.col("code").isin(_THERE, _HELD, _DEAD), any_steps="queue_purged" in there)
    found = found.join(_texts(events), [*KEY], "left")
    moved = lines.moves(rare) if {"owed", "arrived"} <= there.keys() else None
    found = lines.joined(found, moved, events, small=there.get("arrived", 0) <= lines.SMALL)
    return shaped(_finished(found), TABLE)


def with_source(frame: DataFrame) -> DataFrame:
    return frame if "source" in frame.columns else frame.withColumn("source", f.lit(""))


def names(queues: DataFrame) -> DataFrame:
    """Name and account of each queue: they never change."""
    known = with_source(queues).where("name is not null")
    return known.groupBy("source", "queue").agg(f.max("name").alias("queue_name"), f.max("tenant").alias("tenant"))


# --- one grouping -----------------------------------------------------------------------------------


def _messages(events: DataFrame) -> DataFrame:
    event, reason, state = f.col("event"), f.col("reason"), f.col("state")
    never = f.col("visible_at").isNull()
    there = f.when(never, _DEAD).otherwise(_THERE)
    ends = f.lit(_UNKNOWN)
    for name, number in _ENDS.items():
        ends = f.when(reason == name, number).otherwise(ends)
    code = (
        f.when(event == "sent", _THERE)
        .when(event == "leased", _HELD)
        .when(event == "deleted", ends)
        .when(event == "returned", there)
        .when(event == "extended", _HELD)
        .when(event == "owed", _OWED)
        .when(event == "settled", f.when(reason == "accepted", _MOVED).otherwise(there))
        .when(event == "arrived", _THERE)
        .when(state.isin("visible", "delayed"), _THERE)
        .when(state == "in_flight", _HELD)
        .when(state == "owed", _OWED)
        .when(state == "dead", _DEAD)
        .otherwise(_UNKNOWN)
    )
    bound = f.when(reason.isin("dead_letter", "expiry_dead_letter"), _TO_DEAD_LETTERS)
    bound = bound.when(reason == "redrive", _REDRIVE).otherwise(_ELSEWHERE)
    at, time = f.col("logical_time"), f.col("time")
    uncharged = f.col("flags").bitwiseAND(int(ReturnedFlag.UNCHARGED)) != 0
    returned, leased, arrived = event == "returned", event == "leased", event == "arrived"
    has_payload = f.col("body_bytes").isNotNull()
    columns = events.where("sequence is not null").select(
        *KEY,
        "queue",
        "priority",
        "sent_at",
        "expires_at",
        "lease_epoch",
        "receive_count",
        time,
        at,
        (f.shiftleft(at, _BITS) + code).alias("last"),
        f.coalesce("deadline", "visible_at").alias("until"),
        f.when(arrived & never, time).otherwise(f.col("visible_at")).alias("seen"),
        f.when(event.isin("sent", "arrived", "carried", "edited"), at).alias("told"),
        f.when(event.isin("sent", "arrived"), at).alias("born"),
        f.when(has_payload, at).alias("payload"),
        (f.shiftleft(f.col("body_bytes"), _SIZE_BITS) + f.col("attributes_bytes")).alias("sizes"),
        f.when(f.col("receive_count").isNotNull(), at).alias("counted"),
        f.when(event == "owed", f.shiftleft(at, _BITS) + bound).alias("owed"),
        leased.alias("leased"),
        arrived.alias("arrived"),
        (event == "extended").alias("extended"),
        (returned & (reason == "nack")).alias("nacked"),
        (returned & (reason == "expired")).alias("lapsed"),
        (returned & (reason == "released")).alias("released"),
        (returned & uncharged).alias("untried"),
    )
    last = f.col("last")
    charged = f.col("receive_count") - f.when(f.col("untried") & (f.col("receive_count") > 0), 1).otherwise(0)
    return (
        columns.groupBy(*KEY)
        .agg(
            f.max("queue").alias("queue"),
            f.max("priority").alias("priority"),
            f.max("sent_at").alias("sent_at"),
            f.max("expires_at").alias("expires_at"),
            f.max("lease_epoch").alias("lease_epoch"),
            f.max_by(charged, "counted").alias("receives"),
            f.max_by("sizes", "payload").alias("sizes"),
            f.max("last").alias("last"),
            f.max_by("until", "last").alias("until"),
            f.min_by("seen", "told").alias("visible_at"),
            f.max("born").alias("born"),
            f.max("owed").alias("owed"),
            f.max(f.when(f.col("arrived"), time)).alias("arrived_at"),
            f.min(f.when(f.col("leased") & (f.col("lease_epoch") == 1), time)).alias("first_receive_at"),
            f.max(f.when(f.col("leased"), time)).alias("last_receive_at"),
            f.max(f.when(_code(last) >= _MOVED, time)).alias("ended_at"),
            f.min("time").alias("first_at"),
            f.count_if("nacked").alias("nacks"),
            f.count_if("lapsed").alias("expiries"),
            f.count_if("released").alias("releases"),
            f.count_if("untried").alias("untried"),
            f.count_if("extended").alias("extensions"),
        )
        .withColumns(
            {
                "code": _code(last),
                "last_at": f.shiftright(last, _BITS),
                "body_bytes": f.shiftright("sizes", _SIZE_BITS),
                "attributes_bytes": f.col("sizes").bitwiseAND((1 << _SIZE_BITS) - 1),
            }
        )
    )


def _code(last: Expression) -> Expression:
    return last.bitwiseAND((1 << _BITS) - 1)


# --- what is known of a shard -----------------------------------------------------------------------


def _shards(events: DataFrame, rare: DataFrame) -> DataFrame:
    """Per shard: its last time, and the grace periods of its restarts."""
    clocks = events.groupBy("source", "shard").agg(f.max("time").alias("as_of"))
    graces = (
        rare.where("event = 'epoch' and grace_ms > 0")
        .groupBy("source", "shard")
        .agg(f.collect_list(f.struct("logical_time", "grace_ms")).alias("graces"))
    )
    return clocks.join(f.broadcast(graces), ["source", "shard"], "left")


# --- texts ------------------------------------------------------------------------------------------


def _texts(events: DataFrame) -> DataFrame:
    """Group, beginning of the line and last error of the messages that have one."""
    payload = f.col("body_bytes").isNotNull() & (f.col("group").isNotNull() | f.col("lineage").isNotNull())
    failed = (f.col("event") == "returned") & f.col("reason").isin("nack", "expired")
    error = failed & (f.col("error_class").isNotNull() | f.col("error_text").isNotNull())
    told_at, failed_at = f.when(payload, f.col("logical_time")), f.when(error, f.col("logical_time"))
    return (
        events.where(f.col("sequence").isNotNull() & (payload | error))
        .groupBy(*KEY)
        .agg(
            f.max_by("group", told_at).alias("group"),
            f.max_by(lines.told_first_id(), told_at).alias("told_first_id"),
            f.max_by("error_class", failed_at).alias("last_error_class"),
            f.max_by("error_text", failed_at).alias("last_error_text"),
        )
    )


# --- the row ----------------------------------------------------------------------------------------


def _finished(found: DataFrame) -> DataFrame:
    code, until, as_of = f.col("code"), f.col("until"), f.col("as_of")
    delayed = (code == _THERE) & (until > as_of)
    bound = _code(f.col("owed"))
    moved = f.when(bound == _TO_DEAD_LETTERS, "dead_lettered").when(bound == _REDRIVE, "redriven").otherwise("moved")
    outcome = (
        f.when(f.col("purged_at").isNotNull(), f.when(f.col("queue_closed"), "queue_deleted").otherwise("purged"))
        .when(code == _MOVED, moved)
        .when(code == _HELD, "in_flight")
        .when(delayed, "delayed")
        .when(code == _THERE, "waiting")
        .when(code == _OWED, "owed")
        .when(code == _DEAD, "dead")
    )
    for name, number in zip(_ENDED, _ENDS.values(), strict=True):
        outcome = outcome.when(code == number, name)
    acked = code.isin(_ENDS["ack"], _ENDS["late_ack"])
    ended_at = f.coalesce("ended_at", "purged_at")
    grace = f.aggregate(
        f.filter(
            "graces",
            lambda one: (
                (one["logical_time"] > f.col("last_at"))
                & (one["logical_time"] < f.coalesce("purged_by", one["logical_time"] + 1))
            ),
        ),
        f.lit(0).cast("bigint"),
        lambda total, one: total + one["grace_ms"],
    )
    deadline = f.timestamp_millis(f.unix_millis(until) + f.coalesce(grace, f.lit(0)))
    own_id = f.expr(id_of("shard", "sequence"))
    return found.withColumns(
        {
            "message_id": own_id,
            "first_id": f.coalesce("first_id", "told_first_id", own_id),
            "leases": f.coalesce("lease_epoch", f.lit(0)),
            "receives": f.coalesce("receives", f.lit(0)),
            "ended_at": ended_at,
            "outcome": outcome.otherwise("unknown"),
            "dwell_ms": _between("visible_at", "first_receive_at"),
            "handling_ms": f.when(acked, _between("last_receive_at", "ended_at")),
            "end_to_end_ms": f.when(acked, _between("sent_at", "ended_at")),
            "deadline": f.when(code == _HELD, deadline),
            "opened": f.col("born").isNull(),
            "line_deaths": f.coalesce("line_deaths", f.lit(0)),
            "line_redrives": f.coalesce("line_redrives", f.lit(0)),
            "date": f.to_date(f.coalesce("sent_at", "first_at")),
        }
    )


def _between(start: str, stop: str) -> Expression:
    return f.unix_millis(stop) - f.unix_millis(start)
