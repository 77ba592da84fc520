"""`baton pipeline backfill`: sends a data set (Parquet, CSV or JSON lines) to a queue.

The producer of a row is derived from its file and from the part of the file that one task reads; its number is its
position there. Files are always split at the same places, so a second run, or one after a crash, sends nothing twice. A
file that was rewritten counts as a new file.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from batonq.errors import InvalidInput
from batonq.pipeline.jobs import sending
from batonq.pipeline.jobs.context import Context, Outcome, settings_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

HELP = "send the rows of Parquet, CSV or JSON files to a queue"
OWN_HISTORY = True  # it does not read the lake
_CAUSE = re.compile(r"^Caused by: [\w.$]+: (.+)$", re.MULTILINE)  # in a Java stack trace
FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json"}
READ = {"parquet": {}, "csv": {"header": "true", "mode": "FAILFAST"}, "json": {"mode": "FAILFAST"}}
# Files are split every 128 MB, independent of other files and of the number of cores, so a part always has the same
# rows.
CUTS = {"spark.sql.files.maxPartitionBytes": "134217728", "spark.sql.files.minPartitionNum": "1"}
# option: column of the sink
MAPPED = {
    "group": "group",
    "dedup_key": "dedup_key",
    "priority": "priority",
    "delay_seconds": "delay_seconds",
    "ttl_seconds": "ttl_seconds",
    "trace": "trace",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILES", help="files, directories or patterns, as for Spark")
    parser.add_argument("--format", choices=sorted(READ), help="file format (default: from the file extension)")
    parser.add_argument(
        "--read-option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="option of Spark's reader, for example sep=;",
    )
    parser.add_argument("--body", metavar="SQL", help="the body: a column or expression (default: the row as JSON)")
    parser.add_argument("--content", choices=("text", "json", "bytes"), help="content of a string or binary body")
    for option, column in MAPPED.items():
        flag = "--" + option.replace("_", "-")
        parser.add_argument(flag, metavar="SQL", help=f"the message's {column}: a column or expression")
    parser.add_argument(
        "--attribute",
        action="append",
        default=[],
        metavar="NAME=SQL",
        help="an attribute of the message; can be repeated",
    )
    parser.add_argument("--url", help="URL of the node (default: the one on this machine)")
    sending.add_arguments(parser)


def run(context: Context) -> Outcome:
    from batonq.client.blocking.baton import DEFAULT_URL
    from batonq.pipeline.spark import sink

    options = context.options
    url = options.url or DEFAULT_URL
    producer = sending.producer_name(context, "backfill", _selection(options))
    with _settings(context.spark, CUTS):
        rows = sending.chosen(read(context.spark, options), options.where)
        frame = messages(rows, options, producer)
        tasks = max(1, min(frame.rdd.getNumPartitions(), context.spark.sparkContext.defaultParallelism))
        checked = sink.Settings.of(sending.sink_options(context, url, tasks=tasks))
        checked.check(frame.schema, overwrite=False)
        if not options.yes:
            total, sample = sending.preview(frame)
            what = f"{sending.counted(total, 'row')} would be sent to {options.to} at {url}."
            return sending.only_shown(total, sample, what, producer)
        return sending.send(context, frame.coalesce(tasks), url, producer, tasks=tasks)


def _selection(options: argparse.Namespace) -> dict[str, Any]:
    names = ("format", "read_option", "body", "content", "attribute", *MAPPED)
    return {name: getattr(options, name) for name in names}


def read(spark: SparkSession, options: argparse.Namespace) -> DataFrame:
    """Raises InvalidInput if there are no files, or they cannot be read."""
    from batonq.pipeline.jobs.problems import is_spark, sentence

    kind = options.format or _format(options.files)
    reader = spark.read.options(**READ[kind]).options(**settings_of(options.read_option))
    try:
        return reader.format(kind).load(options.files)
    except Exception as problem:
        if not is_spark(problem):
            raise
        named = ", ".join(options.files)
        if "PATH_NOT_FOUND" in str(problem):
            raise InvalidInput(f"No files were found at {named}.") from None
        causes = _CAUSE.findall(str(problem))
        reason = causes[-1] if causes else sentence(problem).removeprefix("Spark failed: ")
        raise InvalidInput(f"{named} cannot be read as {kind}: {reason}") from None


def _format(files: list[str]) -> str:
    found = {kind for name in files for ending, kind in FORMATS.items() if ending in name.lower().rpartition("/")[2]}
    if len(found) != 1:
        raise InvalidInput(f"The format of {', '.join(files)} is unknown. Set --format to {', '.join(sorted(READ))}.")
    return found.pop()


def messages(rows: DataFrame, options: argparse.Namespace, producer: str) -> DataFrame:
    """The rows in the format of the sink, each with its producer."""
    from pyspark.sql import functions as f

    row = f.struct(*(f.col(f"`{name}`") for name in rows.columns))
    columns = [(_expression(rows, options.body, "--body") if options.body else row).alias("body")]
    if options.content:
        columns.append(f.lit(options.content).alias("content"))
    for option, column in MAPPED.items():
        if given := getattr(options, option):
            found = _expression(rows, given, "--" + option.replace("_", "-"))
            columns.append(_typed(found, column).alias(column))
    if options.attribute:
        pairs: list[Column] = []
        for one in options.attribute:
            name, equals, given = one.partition("=")
            if not name or not equals:
                raise InvalidInput(f"--attribute must be NAME=COLUMN, not {one!r}.")
            pairs += [f.lit(name), _expression(rows, given, "--attribute").cast("string")]
        columns.append(f.create_map(*pairs).alias("attributes"))
    meta = ("file_path", "file_size", "file_modification_time", "file_block_start")
    part = f.sha2(f.concat_ws(" ", *(f.col(f"_metadata.{name}").cast("string") for name in meta)), 256)
    return rows.select(*columns, f.concat(f.lit(producer + "."), f.substring(part, 1, 24)).alias("producer"))


def _typed(found: Column, column: str) -> Column:
    """CSV contains only strings; a value that cannot be converted is an error, as in ANSI SQL."""
    if column == "priority":
        return found.cast("int")
    return found.cast("double") if column in ("delay_seconds", "ttl_seconds") else found.cast("string")


def _expression(rows: DataFrame, given: str, option: str) -> Column:
    from pyspark.errors import AnalysisException, ParseException
    from pyspark.sql import functions as f

    from batonq.pipeline.jobs.problems import sentence

    found = f.col(f"`{given}`") if given in rows.columns else f.expr(given)
    try:
        rows.select(found)
    except (AnalysisException, ParseException) as problem:
        raise InvalidInput(f"{option} cannot be read: {sentence(problem).removeprefix('Spark failed: ')}") from None
    return found


@contextmanager
def _settings(spark: SparkSession, settings: dict[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            spark.conf.unset(name) if old is None else spark.conf.set(name, old)
