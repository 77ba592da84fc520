"""message_lifecycle in Polars: the same rows, without the same parts, as in lifecycle_duckdb.py."""

from __future__ import annotations

from typing import Any

from bench.parquet.lifecycle_duckdb import OUTCOMES


def make(events: list[str], queues: list[str], target: str) -> None:
    import polars as pl

    key = ["source", "shard", "sequence"]
    every = pl.scan_parquet(events, hive_partitioning=False)
    found = _grouped(pl, every).collect(engine="streaming")
    clocks = every.group_by("source", "shard").agg(as_of=pl.col("time").max())
    names = (
        pl.scan_parquet(queues, hive_partitioning=False)
        .filter(pl.col("name").is_not_null())
        .group_by("source", "queue")
        .agg(queue_name=pl.col("name").max(), tenant=pl.col("tenant").max())
    )
    graces = every.filter((pl.col("event") == "epoch") & (pl.col("grace_ms") > 0))
    graces = graces.select("source", "shard", pl.col("logical_time"), "grace_ms")
    held = found.lazy().filter(pl.col("code") == 2).select(*key, "last_at").join(graces, on=["source", "shard"])
    given = held.filter(pl.col("logical_time") > pl.col("last_at")).group_by(key).agg(grace=pl.col("grace_ms").sum())
    told = _told(pl, found, _moves(pl, every).collect())
    joined = (
        found.lazy()
        .join(clocks, on=["source", "shard"], how="left")
        .join(names, on=["source", "queue"], how="left")
        .join(told.lazy(), on=key, how="left")
        .join(given, on=key, how="left")
    )
    _finished(pl, joined).sink_parquet(target, compression="zstd")


def _grouped(pl: Any, every: Any) -> Any:
    event, reason, at, time = pl.col("event"), pl.col("reason"), pl.col("logical_time"), pl.col("time")
    there = pl.when(pl.col("visible_at").is_null()).then(4).otherwise(1)
    ends = {"ack": 6, "late_ack": 7, "retention": 8, "purged": 9}
    code = (
        pl.when(event.is_in(["sent", "arrived"]))
        .then(1)
        .when(event.is_in(["leased", "extended"]))
        .then(2)
        .when(event == "owed")
        .then(3)
        .when(event == "returned")
        .then(there)
        .when(event == "settled")
        .then(pl.when(reason == "accepted").then(5).otherwise(there))
        .when(event == "deleted")
        .then(reason.replace_strict(ends, default=0, return_dtype=pl.Int32))
        .otherwise(0)
    )
    returned = event == "returned"
    untried = returned & (pl.col("flags") & 16 != 0)
    noted = pl.col("error_class").is_not_null() | pl.col("error_text").is_not_null()
    failed = returned & reason.is_in(["nack", "expired"]) & noted
    rows = every.filter(pl.col("sequence").is_not_null()).with_columns(
        code=code,
        until=pl.coalesce("deadline", "visible_at"),
        seen=pl.when(event == "arrived").then(time).otherwise(pl.col("visible_at")),
        charged=pl.col("receive_count") - (untried & (pl.col("receive_count") > 0)).cast(pl.Int64),
    )

    def last(name: str, where: Any) -> Any:
        chosen = pl.col(name).filter(where)
        return chosen.get(at.filter(where).arg_max(), null_on_oob=True)

    payload = pl.col("body_bytes").is_not_null()
    born = event.is_in(["sent", "arrived"])
    telling = event.is_in(["sent", "arrived", "carried", "edited"])
    return rows.group_by("source", "shard", "sequence").agg(
        pl.col("message_id").first(),
        pl.col("queue", "priority", "sent_at", "expires_at", "lease_epoch").max(),
        receives=last("charged", pl.col("receive_count").is_not_null()),
        body_bytes=last("body_bytes", payload),
        attributes_bytes=last("attributes_bytes", payload),
        group=last("group", payload),
        lineage=last("lineage", payload),
        code=pl.col("code").get(at.arg_max()),
        last_at=at.max(),
        until=pl.col("until").get(at.arg_max()),
        visible_at=pl.col("seen").filter(telling).get(at.filter(telling).arg_min(), null_on_oob=True),
        opened=born.not_().all(),
        last_error_class=last("error_class", failed),
        last_error_text=last("error_text", failed),
        bound=last("reason", event == "owed"),
        arrived_at=time.filter(event == "arrived").max(),
        first_receive_at=time.filter((event == "leased") & (pl.col("lease_epoch") == 1)).min(),
        last_receive_at=time.filter(event == "leased").max(),
        ended_at=time.filter(pl.col("code") >= 5).max(),
        first_at=time.min(),
        nacks=(returned & (reason == "nack")).sum(),
        expiries=(returned & (reason == "expired")).sum(),
        releases=(returned & (reason == "released")).sum(),
        untried=untried.sum(),
        extensions=(event == "extended").sum(),
    )


def _moves(pl: Any, every: Any) -> Any:
    within = pl.col("shard") == pl.col("other_shard")
    overlay = pl.col("flags") & 64 != 0
    at, number = pl.col("logical_time"), pl.col("channel_number")
    owed = every.filter(pl.col("event") == "owed").select(
        "source",
        "reason",
        pl.when(within).then(at + 1).otherwise(number).alias("entry"),
        from_shard="shard",
        to_shard="other_shard",
        from_sequence="sequence",
    )
    came = every.filter((pl.col("event") == "arrived") & pl.col("sequence").is_not_null()).select(
        "source",
        pl.when(overlay).then(at).otherwise(number).alias("entry"),
        from_shard="other_shard",
        to_shard="shard",
        to_sequence="sequence",
    )
    return owed.join(came, on=["source", "from_shard", "to_shard", "entry"])


def _told(pl: Any, found: Any, moves: Any) -> Any:
    """The columns of each moved message's line, followed from its beginning."""
    later = moves.select("source", from_shard="to_shard", from_sequence="to_sequence")
    here = (
        moves.join(later, on=["source", "from_shard", "from_sequence"], how="anti")
        .select("source", shard="from_shard", sequence="from_sequence")
        .unique()
        .with_columns(
            root_shard="shard", root_sequence="sequence", depth=pl.lit(0), reason=pl.lit(None, dtype=pl.String)
        )
    )
    parts = []
    while len(here):
        parts.append(here)
        here = (
            here.drop("reason")
            .join(moves, left_on=["source", "shard", "sequence"], right_on=["source", "from_shard", "from_sequence"])
            .select("source", "root_shard", "root_sequence", pl.col("depth") + 1, "to_shard", "to_sequence", "reason")
            .rename({"to_shard": "shard", "to_sequence": "sequence"})
            .select(parts[0].columns)
        )
    line = pl.concat(parts) if parts else here
    wanted = found.select(
        "source", "shard", "sequence", "message_id", "body_bytes", "attributes_bytes", "group", "lineage"
    )
    root = ["source", "root_shard", "root_sequence"]
    told = pl.col("lineage").str.json_path_match("$.first_id")
    members = line.join(wanted, on=["source", "shard", "sequence"]).sort(*root, "depth")
    return members.select(
        "source",
        "shard",
        "sequence",
        first_id=pl.coalesce(told.first().over(root), pl.col("message_id").first().over(root)),
        previous_id=pl.col("message_id").shift(1).over(root),
        next_id=pl.col("message_id").shift(-1).over(root),
        line_deaths=pl.col("reason").is_in(["dead_letter", "expiry_dead_letter"]).sum().over(root),
        line_redrives=(pl.col("reason") == "redrive").sum().over(root),
        line_body_bytes=pl.col("body_bytes").forward_fill().over(root),
        line_attributes_bytes=pl.col("attributes_bytes").forward_fill().over(root),
        line_group=pl.col("group").forward_fill().over(root),
    )


def _finished(pl: Any, joined: Any) -> Any:
    code, bound = pl.col("code"), pl.col("bound")
    moved = pl.when(bound.is_in(["dead_letter", "expiry_dead_letter"])).then(pl.lit("dead_lettered"))
    moved = moved.when(bound == "redrive").then(pl.lit("redriven")).otherwise(pl.lit("moved"))
    delayed = (pl.col("until") > pl.col("as_of")).fill_null(False)
    there = pl.when(delayed).then(pl.lit("delayed")).otherwise(pl.lit("waiting"))
    ended = code.replace_strict(OUTCOMES, default="unknown", return_dtype=pl.String)
    acked = code.is_in([6, 7])

    def ms(start: str, stop: str) -> Any:
        return pl.col(stop).dt.epoch("ms") - pl.col(start).dt.epoch("ms")

    return joined.select(
        "source",
        "shard",
        "sequence",
        "message_id",
        pl.coalesce("first_id", pl.col("lineage").str.json_path_match("$.first_id"), "message_id").alias("first_id"),
        "previous_id",
        "next_id",
        "queue",
        "queue_name",
        "tenant",
        pl.coalesce("group", "line_group").alias("group"),
        "priority",
        pl.coalesce("body_bytes", "line_body_bytes").alias("body_bytes"),
        "sent_at",
        "visible_at",
        "arrived_at",
        "first_receive_at",
        "last_receive_at",
        "ended_at",
        pl.col("receives").fill_null(0),
        pl.col("lease_epoch").fill_null(0).alias("leases"),
        "nacks",
        "expiries",
        "extensions",
        ms("visible_at", "first_receive_at").alias("dwell_ms"),
        pl.when(acked).then(ms("last_receive_at", "ended_at")).alias("handling_ms"),
        pl.when(acked).then(ms("sent_at", "ended_at")).alias("end_to_end_ms"),
        pl.when(code == 5).then(moved).when(code == 1).then(there).otherwise(ended).alias("outcome"),
        "last_error_class",
        "last_error_text",
        pl.col("line_deaths", "line_redrives").fill_null(0),
        "opened",
        "releases",
        "untried",
        pl.coalesce("attributes_bytes", "line_attributes_bytes").alias("attributes_bytes"),
        "expires_at",
        pl.when(code == 2)
        .then(pl.col("until") + pl.duration(milliseconds=pl.col("grace").fill_null(0)))
        .alias("deadline"),
        "as_of",
        pl.coalesce("sent_at", "first_at").dt.date().alias("date"),
    )
