"""The declaration of a table in the lake: its columns, their meaning, and the layout of its files.

A table is declared once, as `TABLE` in the module that creates it, and listed in `MODULES`. The Spark schema, the
reference page and the tests use the declaration. Columns are only added, at the end; older files without a column give
null.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from batonq.pipeline.events.schema import COLUMNS, Column

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType

SOURCE = Column("source", "name", "Cluster of the history, as in `ingest --cluster`; empty by default.")


@dataclass(slots=True, frozen=True)
class Table:
    """`by` names the columns whose values are directories of the table's files. A column's kind is one of those of the
    events table, or float64, bool, date, texts (a list of strings), int64s (a list of numbers).
    """

    name: str
    doc: str
    columns: tuple[Column, ...]
    by: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)


TABLE = Table(
    "events",
    "One row per record of a shard's log, as described in [the events table](events-table.md); `baton "
    "pipeline ingest` writes it.",
    (*COLUMNS, SOURCE, Column("date", "date", "Day of `time`, in UTC.")),
    by=("date",),
)

# The module of each table, imported on demand.
MODULES = {
    "events": "batonq.pipeline.tables.schema",
    "queues": "batonq.pipeline.tables.queues",
    "message_lifecycle": "batonq.pipeline.tables.lifecycle",
    "queue_minute": "batonq.pipeline.tables.minutes",
    "dead_letter_messages": "batonq.pipeline.tables.dead_letter_messages",
    "dead_letters": "batonq.pipeline.tables.dead_letters",
    "archived_messages": "batonq.pipeline.tables.archived",
    "reconciliation": "batonq.pipeline.tables.reconcile",
    "tenant_usage": "batonq.pipeline.tables.usage",
    "violations": "batonq.pipeline.audit.table",
}


def table(name: str) -> Table:
    """The declaration of a table."""
    found: Table = import_module(MODULES[name]).TABLE
    assert found.name == name, f"{MODULES[name]} declares {found.name}"
    return found


def tables() -> dict[str, Table]:
    return {name: table(name) for name in MODULES}


def spark_type(kind: str) -> DataType:
    from pyspark.sql import types

    texts = types.StringType()
    made: dict[str, DataType] = {
        "int16": types.ShortType(),
        "int32": types.IntegerType(),
        "int64": types.LongType(),
        "float64": types.DoubleType(),
        "bool": types.BooleanType(),
        "time": types.TimestampType(),
        "date": types.DateType(),
        "text": texts,
        "name": texts,
        "map": types.MapType(texts, texts),
        "texts": types.ArrayType(texts),
        "int64s": types.ArrayType(types.LongType()),
        "bytes": types.BinaryType(),
    }
    return made[kind]


def spark_schema(table: Table) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(column.name, spark_type(column.kind)) for column in table.columns])


def shaped(frame: DataFrame, table: Table) -> DataFrame:
    """The frame with the table's columns, in their order and types; missing columns are null."""
    from pyspark.sql import functions as f

    there = set(frame.columns)
    return frame.select(
        *(
            (f.col(f"`{column.name}`") if column.name in there else f.lit(None))
            .cast(spark_type(column.kind))
            .alias(column.name)
            for column in table.columns
        )
    )
