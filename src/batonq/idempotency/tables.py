"""The two tables of the SQL stores, with the user's table names."""

from __future__ import annotations

from batonq.databases import quoted

CLAIMS = "batonq_claims"


class Names:
    """`claims`: one row per key. `lines`: one row per ordered key, with the number of the last message."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.claims = quoted(table)
        self.lines = quoted(f"{table}_lines")
        self.index = quoted(f"{table.rpartition('.')[2]}_until")


def sqlite_schema(names: Names) -> list[str]:
    """`until` is the end of the lease, or of the time to live of a finished one. The owner stays, so that marking can
    be retried.
    """
    return [
        f"""CREATE TABLE IF NOT EXISTS {names.claims} (
            key TEXT PRIMARY KEY, owner TEXT NOT NULL, done INTEGER NOT NULL DEFAULT 0, until REAL NOT NULL, result BLOB
        ) WITHOUT ROWID""",
        f"CREATE INDEX IF NOT EXISTS {names.index} ON {names.claims} (until)",
        f"""CREATE TABLE IF NOT EXISTS {names.lines} (
            key TEXT PRIMARY KEY, last INTEGER NOT NULL, owner TEXT NOT NULL, until REAL NOT NULL
        ) WITHOUT ROWID""",
    ]


def postgres_schema(names: Names) -> list[str]:
    """As for SQLite; times are the server's."""
    return [
        f"""CREATE TABLE IF NOT EXISTS {names.claims} (
            key text PRIMARY KEY, owner text NOT NULL, done boolean NOT NULL DEFAULT false, until timestamptz NOT NULL,
            result bytea
        )""",
        f"CREATE INDEX IF NOT EXISTS {names.index} ON {names.claims} (until)",
        f"""CREATE TABLE IF NOT EXISTS {names.lines} (
            key text PRIMARY KEY, last bigint NOT NULL, owner text NOT NULL, until timestamptz NOT NULL
        )""",
    ]
