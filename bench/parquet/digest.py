"""Checks whether two engines have created the same rows."""

from __future__ import annotations

from collections.abc import Sequence

from batonq.pipeline.events.schema import Column

_AS = {"time": "epoch_us({})", "text": "CAST({} AS VARCHAR)", "name": "CAST({} AS VARCHAR)", "date": "CAST({} AS DATE)"}
_NUMBER = "CAST({} AS BIGINT)"


def digest(files: Sequence[str], columns: Sequence[Column]) -> tuple[int, int]:
    """The number of rows, and a sum over them that does not depend on their order."""
    import duckdb

    values = ", ".join(_AS.get(column.kind, _NUMBER).format(f'"{column.name}"') for column in columns)
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; SET enable_progress_bar = false")
        query = f"SELECT count(*), sum(CAST(hash({values}) AS HUGEINT)) FROM read_parquet({list(files)!r})"
        rows, total = connection.execute(query).fetchall()[0]
        return int(rows), int(total or 0)
