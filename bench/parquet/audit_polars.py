"""The audit in Polars: the same rules, without the same parts, as in audit_duckdb.py."""

from __future__ import annotations

from typing import Any

from batonq.core.records import ArrivedFlag, DeletedFlag, ReturnedFlag
from batonq.pipeline.events.schema import EVENTS
from bench.parquet.rules import ALLOWED, DEAD, DELAYED, DELETED, HELD, OWED, VISIBLE


def make(events: list[str], queues: list[str], target: str) -> None:
    import polars as pl

    every = pl.scan_parquet(events, hive_partitioning=False)
    policies = (
        pl.scan_parquet(queues, hive_partitioning=False)
        .filter(pl.col("policy").is_not_null())
        .group_by("shard", "queue")
        .agg(
            pl.col("fifo").first(),
            window_ms=pl.col("policy").first().str.json_path_match("$.dedup_window_ms").cast(pl.Int64),
            max_receives=pl.col("policy").first().str.json_path_match("$.max_receives").cast(pl.Int64),
        )
    )
    found = [
        _messages(pl, every, policies),
        _shards(pl, every),
        _channels(pl, every),
        _groups(pl, every, policies),
        _keys(pl, every, policies),
    ]
    columns = ["kind", pl.col("shard").cast(pl.Int32), pl.col("sequence").cast(pl.Int64)]
    pl.concat([one.select(columns) for one in found]).sink_parquet(target, compression="zstd")


def _first_of(pl: Any, kinds: list[tuple[str | None, Any]]) -> Any:
    """The first kind whose condition holds."""
    chosen = pl
    for kind, condition in kinds:
        chosen = chosen.when(condition).then(pl.lit(kind, dtype=pl.String))
    return chosen.otherwise(pl.lit(None, dtype=pl.String))


def _each(pl: Any, rows: Any, kinds: list[Any]) -> Any:
    """One row for each kind of a row."""
    names = [f"k{number}" for number in range(len(kinds))]
    marked = rows.with_columns(**dict(zip(names, kinds, strict=True)))
    marked = marked.filter(pl.any_horizontal([pl.col(name).is_not_null() for name in names]))
    return marked.select("shard", "sequence", pl.concat_list(names).alias("kind")).explode("kind").drop_nulls("kind")


def _state(pl: Any) -> Any:
    event, time, visible = pl.col("event"), pl.col("time"), pl.col("visible_at")
    back = pl.when(visible.is_null()).then(DEAD).when(visible <= time).then(VISIBLE).otherwise(DELAYED)
    return (
        pl.when(event == "sent")
        .then(pl.when(visible > time).then(DELAYED).otherwise(VISIBLE))
        .when(event == "arrived")
        .then(VISIBLE)
        .when(event.is_in(["leased", "extended"]))
        .then(HELD)
        .when(event == "deleted")
        .then(DELETED)
        .when(event == "returned")
        .then(back)
        .when(event == "owed")
        .then(OWED)
        .otherwise(pl.when(pl.col("reason") == "accepted").then(DELETED).otherwise(DELAYED))
    )


def _messages(pl: Any, every: Any, policies: Any) -> Any:
    event, reason, flags, time = pl.col("event"), pl.col("reason"), pl.col("flags"), pl.col("time")
    born = event.is_in(["sent", "arrived"])
    count = pl.when(event == "sent").then(0).otherwise(pl.col("receive_count"))
    uncharged = (event == "returned") & (flags & int(ReturnedFlag.UNCHARGED) != 0)
    rows = (
        every.filter(pl.col("sequence").is_not_null())
        .select(
            "shard",
            "sequence",
            "event",
            "flags",
            "reason",
            "queue",
            "time",
            lt="logical_time",
            state=_state(pl),
            until=pl.coalesce("deadline", "visible_at"),
            expires="expires_at",
            owner="owner_epoch",
            epoch=pl.when(born).then(0).otherwise(pl.col("lease_epoch")),
            count=count,
            after=pl.when(uncharged).then(pl.max_horizontal(count - 1, 0)).otherwise(count),
        )
        .sort("shard", "sequence", "lt")
    )
    same = (pl.col("shard") == pl.col("shard").shift(1)) & (pl.col("sequence") == pl.col("sequence").shift(1))

    def before(name: str) -> Any:
        return pl.when(same).then(pl.col(name).shift(1)).alias(f"p_{name}")

    def known(name: str, nothing: Any) -> Any:
        """The last known value; `nothing` separates the values of different messages."""
        told = pl.when(pl.col(name).is_null() & ~same.fill_null(False)).then(nothing).otherwise(pl.col(name))
        return pl.when(same).then(told.forward_fill().shift(1)).alias(f"p_{name}")

    far = pl.col("time").max() + pl.duration(days=36500)
    paired = rows.with_columns(
        *(before(name) for name in ("lt", "state", "queue", "until", "owner")),
        known("epoch", None),
        known("after", None),
        known("expires", far),
        first_count=pl.when(~same.fill_null(False)).then(pl.col("count")).forward_fill(),
    )
    given = every.filter(event == "epoch").select("shard", "grace_ms", epoch="number")
    spans = (
        given.select("shard", p_owner="epoch")
        .join(given.select("shard", owner="epoch"), on="shard")
        .join(given, on="shard")
        .filter((pl.col("epoch") > pl.col("p_owner")) & (pl.col("epoch") <= pl.col("owner")))
        .group_by("shard", "p_owner", "owner")
        .agg(pl.col("grace_ms").sum())
    )
    p_state, p_until, p_expires = pl.col("p_state"), pl.col("p_until"), pl.col("p_expires")
    asked = (
        paired.join(spans, on=["shard", "p_owner", "owner"], how="left")
        .join(policies.select("shard", "queue", "fifo", "max_receives"), on=["shard", "queue"], how="left")
        .with_columns(
            was=pl.when((p_state == DELAYED) & (p_until <= time)).then(VISIBLE).otherwise(p_state),
            ends=p_until + pl.duration(milliseconds=pl.col("grace_ms").fill_null(0)),
        )
    )
    was, ends, leased, deleted = pl.col("was"), pl.col("ends"), event == "leased", event == "deleted"
    by_holder = (event == "extended") | (deleted & (reason == "ack"))
    by_holder |= (event == "returned") & reason.is_in(["nack", "released"])
    code = {name: number for number, name in EVENTS.items()}
    steps = [state * 1000 + code[name] * 10 + after for state, name, after in ALLOWED]
    step = was * 1000 + event.replace_strict(code, default=0, return_dtype=pl.Int32) * 10 + pl.col("state")
    over = by_holder & ((was != HELD) | (time >= p_until))
    living = p_state != DELETED
    late = deleted & ((reason == "late_ack") | (flags & int(DeletedFlag.LATE) != 0))
    unlawful = (reason != "late_ack") | (flags & int(DeletedFlag.LATE) == 0) | pl.col("fifo").fill_null(False)
    unlawful |= (p_state == HELD) & (time < ends)
    aged = (deleted & (reason == "retention")) | ((event == "owed") & (reason == "expiry_dead_letter"))
    dead_letter = (event == "owed") & (reason == "dead_letter")
    attempts, maximum = pl.col("p_after") - pl.col("first_count"), pl.col("max_receives")
    first = pl.col("p_lt").is_null()
    kinds = [
        _first_of(
            pl,
            [
                ("never_sent", first & ~born),
                (None, first),
                ("sent_twice", born),
                ("after_end", p_state == DELETED),
                (None, leased & (was == VISIBLE)),
                ("two_holders", leased & (was == HELD)),
                ("early", leased & (was == DELAYED)),
                ("not_ready", leased),
                ("never_leased", (by_holder | late | dead_letter) & (pl.col("p_epoch") == 0)),
                ("not_held", over & ((p_state != HELD) | (time >= ends))),
                (None, over),
                ("moved_while_held", (event == "owed") & (p_state == HELD) & (reason != "expiry_dead_letter")),
                ("transition", ~step.is_in(steps)),
            ],
        ),
        _first_of(pl, [("lease_epoch", leased & (pl.col("epoch") != pl.col("p_epoch") + 1) & living)]),
        _first_of(pl, [("receive_count", living & (pl.col("count") != pl.col("p_after") + leased.cast(pl.Int64)))]),
        _first_of(pl, [("stale_epoch", ~leased & (pl.col("epoch") != pl.col("p_epoch")) & living)]),
        _first_of(pl, [("lease_after_expiry", leased & (time >= p_expires))]),
        _first_of(pl, [("late_delete", late & unlawful)]),
        _first_of(
            pl,
            [
                (
                    "lease_cut_short",
                    (event == "returned") & (reason == "expired") & (p_state == HELD) & (time < ends),
                )
            ],
        ),
        _first_of(pl, [("expired_early", aged & (time < p_expires) & (p_expires < far))]),
        _first_of(pl, [("wrong_queue", pl.col("queue") != pl.col("p_queue"))]),
        _first_of(pl, [("received_too_often", leased & living & (maximum > 0) & (attempts >= maximum))]),
    ]
    return _each(pl, asked, kinds)


def _shards(pl: Any, every: Any) -> Any:
    col = pl.col
    opened = col("event").is_in(["sent", "arrived"]) & col("sequence").is_not_null()
    taken = col("sequence").filter(opened)
    place = col("row").filter(opened)
    pieces = (
        every.group_by("shard", "frame", "time", owner="owner_epoch")
        .agg(
            first_row=col("row").min(),
            last_row=col("row").max(),
            rows=pl.len().cast(pl.Int64),
            opened=opened.sum().cast(pl.Int64),
            lowest=taken.min(),
            highest=taken.max(),
            total=taken.sum(),
            first_sequence=taken.get(place.arg_min(), null_on_oob=True),
            last_sequence=taken.get(place.arg_max(), null_on_oob=True),
            named=col("number").filter(col("event") == "epoch").max(),
        )
        .sort("shard", "frame", "first_row")
        .with_columns(end=col("frame") * 65536 + col("last_row"))
    )
    furthest = col("end") == col("end").cum_max().over("shard")

    def before(name: str) -> Any:
        """The value of the piece with the highest position among those before."""
        return pl.when(furthest).then(col(name)).forward_fill().shift(1).over("shard").alias(f"p_{name}")

    paired = pieces.with_columns(
        *(before(name) for name in ("frame", "last_row", "time", "owner")),
        p_sequence=col("last_sequence").forward_fill().shift(1).over("shard").fill_null(0),
        rows_in=col("rows").sum().over("shard", "frame"),
        last_in=col("last_row").max().over("shard", "frame"),
        sequence=pl.lit(None, dtype=pl.Int64),
    )
    frame, p_frame, owner, p_owner, named = (col(one) for one in ("frame", "p_frame", "owner", "p_owner", "named"))
    holes = (col("first_row") != 0) | (col("rows_in") != col("last_in") + 1) | (frame != p_frame + 1).fill_null(False)
    among = (frame == p_frame) & (col("first_row") <= col("p_last_row")) & (col("time") != col("p_time"))
    wrong_owner = (owner < p_owner) | ((owner > p_owner) & ~named.eq_missing(owner)) | (named != owner)
    skipped = (col("highest") - col("lowest") + 1 != col("opened")) | (col("first_sequence") != col("p_sequence") + 1)
    skipped |= 2 * col("total") != col("opened") * (col("lowest") + col("highest"))
    kinds = [
        _first_of(pl, [("frame_gap", (p_frame.is_null() | (frame != p_frame)) & holes)]),
        _first_of(pl, [("time_back", (col("time") < col("p_time")) | among)]),
        _first_of(pl, [("owner_epoch", wrong_owner | (named <= p_owner))]),
        _first_of(pl, [("sequence_gap", (col("opened") > 0) & skipped)]),
    ]
    return _each(pl, paired, kinds)


def _channels(pl: Any, every: Any) -> Any:
    col, event = pl.col, pl.col("event")
    back = pl.when(event == "owed").then(0).when(event == "arrived").then(1).otherwise(2)
    inside = col("logical_time") - back
    came = event == "arrived"
    entries = (
        every.filter(event.is_in(["owed", "arrived", "settled"]))
        .with_columns(
            origin=pl.when(came).then(col("other_shard")).otherwise(col("shard")),
            destination=pl.when(came).then(col("shard")).otherwise(col("other_shard")),
            entry=pl.when(col("shard") != col("other_shard")).then(col("channel_number")).otherwise(inside),
        )
        .group_by("origin", "destination", "entry")
        .agg(
            owed=(event == "owed").sum(),
            arrived=came.sum(),
            settled=(event == "settled").sum(),
            owed_number=col("channel_number").filter(event == "owed").max(),
            settled_number=col("channel_number").filter(event == "settled").max(),
            owed_lt=col("logical_time").filter(event == "owed").max(),
            owed_to=col("other_queue").filter(event == "owed").max(),
            arrived_in=col("queue").filter(came).max(),
            owed_slot=col("slot").filter(event == "owed").max(),
            arrived_slot=col("source_slot").max(),
            taken=(col("flags") & int(ArrivedFlag.REFUSED) == 0).filter(came).any(),
            said=(col("reason") == "accepted").filter(event == "settled").any(),
            sequence=col("sequence").filter(~came).max(),
        )
        .sort("origin", "destination", "entry")
    )
    way = ["origin", "destination"]
    paired = entries.with_columns(
        p_owed=col("owed_number").forward_fill().shift(1).over(way).fill_null(0),
        p_owed_lt=col("owed_lt").forward_fill().shift(1).over(way),
        shard=pl.when(col("owed") + col("settled") > 0).then(col("origin")).otherwise(col("destination")),
    )
    twice = (col("owed") > 1) | (col("arrived") > 1) | (col("settled") > 1)
    gap = twice | (col("settled_number") != col("owed_number")).fill_null(False)
    gap |= (col("owed_number") != col("p_owed") + 1).fill_null(False)
    gap |= (col("owed_lt") < col("p_owed_lt")).fill_null(False)
    strange = (col("owed_to") != col("arrived_in")).fill_null(False) | (col("owed") == 0)
    strange |= (col("owed_slot") != col("arrived_slot")).fill_null(False)
    answered = (col("arrived") > 0) & (col("settled") > 0)
    kinds = [
        _first_of(pl, [("channel_gap", gap)]),
        _first_of(pl, [("never_owed", (col("arrived") > 0) & strange)]),
        _first_of(pl, [("never_arrived", (col("settled") > 0) & (col("arrived") == 0))]),
        _first_of(pl, [("settled_otherwise", answered & (col("taken") != col("said")))]),
    ]
    return _each(pl, paired, kinds)


def _groups(pl: Any, every: Any, policies: Any) -> Any:
    col, line = pl.col, ["shard", "queue", "line"]
    key = ["shard", "queue", "sequence"]
    ordered = policies.filter(col("fifo")).select("shard", "queue")
    facts = (
        every.filter(col("sequence").is_not_null())
        .join(ordered, on=["shard", "queue"])
        .select(*key, "event", "time", "deadline", "group", lt="logical_time", state=_state(pl))
        .collect()
        .lazy()
    )
    gone = col("lt").filter(col("state").is_in([DELETED, DEAD])).min().fill_null(2**63 - 1)
    ranked = (
        facts.group_by(key)
        .agg(line=col("group").max().fill_null(""), leaves=gone, sent=(col("event") == "sent").any())
        .filter(col("sent"))
        .sort(*line, "sequence")
        .with_columns(
            place=col("sequence").cum_count().over(line).cast(pl.Int64),
            ahead=col("leaves").cum_max().shift(1).over(line),
        )
    )
    leases = (
        facts.filter(col("event") == "leased")
        .select(*key, "lt", "time", "deadline")
        .join(ranked, on=key)
        .sort(*line, "lt")
        .with_columns(col(name).shift(1).over(line).alias(f"p_{name}") for name in ("lt", "time", "deadline", "place"))
    )
    together = (col("p_lt") == col("lt") - 1) & (col("p_time") == col("time"))
    together &= (col("p_deadline") == col("deadline")) & (col("place") > col("p_place"))
    suspects = leases.filter(col("ahead") > col("lt")).with_columns(
        after=pl.when(together).then(col("p_place")).otherwise(0)
    )
    between = (col("place_right") > col("after")) & (col("place_right") < col("place"))
    blocked = (
        suspects.join(ranked, on=line)
        .filter(between & (col("leaves_right") > col("lt")))
        .sort("leaves_right", "sequence_right")
        .group_by("shard", "queue", "sequence", "lt")
        .agg(blocker=col("sequence_right").last())
    )
    past = facts.select("shard", "queue", "state", blocker="sequence", at="lt")
    held = col("state").get(col("at").arg_max()) == HELD
    return (
        blocked.join(past, on=["shard", "queue", "blocker"])
        .filter(col("at") < col("lt"))
        .group_by("shard", "sequence", "lt")
        .agg(kind=pl.when(held).then(pl.lit("group_exclusion")).otherwise(pl.lit("group_order")))
    )


def _keys(pl: Any, every: Any, policies: Any) -> Any:
    col, same = pl.col, ["shard", "queue", "dedup_key"]
    ms, p_ms = col("time").dt.epoch("ms"), col("p_time").dt.epoch("ms")
    return (
        every.filter((col("event") == "sent") & col("dedup_key").is_not_null())
        .select(*same, "sequence", "logical_time", "time")
        .join(policies, on=["shard", "queue"])
        .sort(*same, "logical_time")
        .with_columns(p_time=col("time").shift(1).over(same))
        .filter(ms // 1000 < (p_ms + col("window_ms") + 999) // 1000)
        .with_columns(kind=pl.lit("duplicate"))
    )
