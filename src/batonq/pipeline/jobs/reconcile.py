"""`baton pipeline reconcile`: compares the histories of several regions or clusters by business key."""

from __future__ import annotations

import argparse
import re
from functools import reduce
from typing import TYPE_CHECKING

from batonq.errors import InvalidInput
from batonq.pipeline.jobs.context import Context, Outcome
from batonq.pipeline.jobs.problems import sentence

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from batonq.pipeline.lake import Lake

HELP = "compare the histories of several regions or clusters, by business key"
OWN_HISTORY = True  # this job has its own --history, which can be repeated
KINDS = ("duplicate", "missing", "repeated", "order")
SHOWN_MAX = 20
_BODY = re.compile(r"\bbody\b")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--history",
        action="append",
        default=[],
        metavar="NAME=URL",
        help="a name and a node, data directory, archive or lake; at least two",
    )
    parser.add_argument(
        "--key",
        required=True,
        metavar="SQL",
        help=(
            "expression for the business key, over attributes, dedup_key, body (text), queue_name, group, …: "
            "\"attributes['order']\" or \"get_json_object(body, '$.order')\""
        ),
    )
    parser.add_argument(
        "--version",
        metavar="SQL",
        help="expression for the version, which increases with each change of a key; it becomes part of the key",
    )
    parser.add_argument("--queue", action="append", default=[], metavar="NAME", help="only these queues")
    parser.add_argument("--since", metavar="TIME", help="only messages sent at or after this time (ISO 8601)")
    parser.add_argument("--until", metavar="TIME", help="only messages sent before this time")
    parser.add_argument(
        "--kinds", default=",".join(KINDS), metavar="LIST", help=f"kinds of differences (default {','.join(KINDS)})"
    )


def run(context: Context) -> Outcome:
    from batonq.pipeline.tables import reconcile

    options = context.options
    places = named_places(options.history)
    kinds = _kinds(options.kinds)
    context.progress("reading histories")
    since = context.lake.content(reconcile.TABLE.name)
    both = reduce(
        lambda one, other: one.unionByName(other),
        (reconcile.originals(_events(context, name, url), name) for name, url in places.items()),
    )
    keyed = _keyed(both, options.key, options.version).cache()
    found = reconcile.reconciliation(keyed, list(places), versions=bool(options.version), kinds=kinds)
    context.progress("comparing")
    try:
        context.lake.replace(found, reconcile.TABLE.name, since=since)
        return _told(keyed, context.lake.read(context.spark, reconcile.TABLE.name), list(places))
    finally:
        keyed.unpersist()


def named_places(given: list[str]) -> dict[str, str]:
    """The --history NAME=URL options."""
    places: dict[str, str] = {}
    for one in given:
        name, equals, url = one.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) or not url:
            raise InvalidInput(f"--history must be NAME=URL, for example east=http://east:9324, not {one!r}.")
        if name in places:
            raise InvalidInput(f"The name {name} is used for two histories.")
        places[name] = url
    if len(places) < 2:
        raise InvalidInput("At least two histories are needed. Use --history NAME=URL at least twice.")
    return places


def _kinds(text: str) -> list[str]:
    kinds = [kind.strip() for kind in text.split(",")]
    unknown = sorted(set(kinds) - set(KINDS))
    if unknown:
        raise InvalidInput(f"--kinds has an unknown kind {unknown[0]!r}; the kinds are {', '.join(KINDS)}.")
    return kinds


def needs_bodies(key: str, version: str | None, kinds: list[str]) -> bool:
    """Whether bodies are needed: by an expression, or because there is no version to determine the order."""
    asked = bool(_BODY.search(key) or _BODY.search(version or ""))
    return asked or (not version and "order" in kinds)


def _events(context: Context, name: str, url: str) -> DataFrame:
    """The events with a payload of a history or a lake."""
    from pyspark.sql import functions as f

    from batonq.pipeline.lake import Lake

    options = context.options
    wanted = {"queues": ",".join(options.queue), "since": options.since or "", "until": options.until or ""}
    if is_lake(url):
        return _of_lake(context, name, Lake(url))
    reader = context.spark.read.format("baton").options(
        url=url, accessKey=context.keys.access, secretKey=context.keys.secret, events="sent,carried,edited,arrived"
    )
    reader = reader.options(**{key: value for key, value in wanted.items() if value})
    if needs_bodies(options.key, options.version, _kinds(options.kinds)):
        reader = reader.option("bodies", "true")
    return reader.load().where(f.col("sequence").isNotNull())


def is_lake(url: str) -> bool:
    """An archive in an object store is one too, unless it has the table."""
    from batonq.pipeline.lake import Lake

    return not url.startswith(("http://", "https://")) and Lake(url).has("events")


def _of_lake(context: Context, name: str, lake: Lake) -> DataFrame:
    """The events of a lake: of the cluster with this name if it has several, otherwise all."""
    from pyspark.sql import functions as f

    from batonq.pipeline.tables.lifecycle import with_source

    options = context.options
    events = with_source(lake.read(context.spark, "events"))
    asked = _BODY.search(options.key) or _BODY.search(options.version or "")
    if asked and "body" not in events.columns:
        raise InvalidInput(
            f"The lake {lake.path} has no bodies. Use the history of {name} itself, or ingest with --bodies."
        )
    if not events.where(f.col("source") == name).isEmpty():
        events = events.where(f.col("source") == name)
    if options.queue:
        events = events.where(f.col("queue_name").isin(*options.queue))
    if options.since:
        events = events.where(f.col("time") >= f.lit(options.since).cast("timestamp"))
    if options.until:
        events = events.where(f.col("time") < f.lit(options.until).cast("timestamp"))
    return events


def _keyed(messages: DataFrame, key: str, version: str | None) -> DataFrame:
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    found = messages
    for option, name, text in (("--key", "key", key), ("--version", "version", version)):
        if text is None:
            continue
        try:
            made = f.expr(text).cast("string") if name == "key" else f.expr(text)
            found = found.withColumn(name, made)
            found.schema  # noqa: B018 - names that there are not show here
        except (AnalysisException, ParseException) as problem:
            raise InvalidInput(f"{option} cannot be read: {sentence(problem).removeprefix('Spark failed: ')}") from None
    return found.drop("body")


def _told(keyed: DataFrame, found: DataFrame, sources: list[str]) -> Outcome:
    from pyspark.sql import functions as f

    counts = {
        row["source"]: row.asDict()
        for row in keyed.groupBy("source")
        .agg(f.count("*").alias("messages"), f.count_if(f.col("key").isNull()).alias("withoutKey"))
        .collect()
    }
    kinds = {row["kind"]: row["count"] for row in found.groupBy("kind").count().collect()}
    first = [row.asDict() for row in found.orderBy("kind", "key", "version").limit(SHOWN_MAX).collect()]
    nothing = {"messages": 0, "withoutKey": 0}
    told = {name: {key: counts.get(name, nothing)[key] for key in nothing} for name in sources}
    summary = {"sources": told, "differences": kinds, "first": first}
    lines = [
        f"{name}: {one['messages']:,} messages"
        + (f", {one['withoutKey']:,} without a key" if one["withoutKey"] else "")
        for name, one in told.items()
    ]
    lines += [f"{count:>9,}  {kind}" for kind, count in sorted(kinds.items())] or ["There are no differences."]
    lines += [f"  {row['kind']} {row['key']}{_version(row)}: {row['detail']}" for row in first]
    total = sum(kinds.values())
    if total > len(first):
        lines.append(f"… and {total - len(first):,} more: see the table reconciliation.")
    return Outcome(1 if kinds else 0, summary, "\n".join(lines))


def _version(row: dict[str, object]) -> str:
    return f" ({row['version']})" if row["version"] is not None else ""
