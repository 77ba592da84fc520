"""The tables of outbox and inbox, for PostgreSQL and SQLite.

    <table>           one row per message, written by the application in its own transaction
    <table>_lanes     rows are distributed over lanes by their key; a lane has one relay at a time, which locks its row
    <table>_numbers   the last number that was assigned to a message of a lane
    <table>_batches   what a relay is about to publish, written before it does: see relay.py
    <inbox>           ids of messages whose effect is committed

The queue identifies a message by its lane's `producer` and its number, so publishing twice stores it once.
"""

from __future__ import annotations

from batonq.databases import Dialect, quoted

OUTBOX = "batonq_outbox"
INBOX = "batonq_inbox"
LANES = 16  # a power of 2; the maximum number of concurrent relays
STREAM_LANE = -1  # of rows that were read from the write-ahead log, in commit order
SCHEMA_LOCK = 0x626174_6F62


class Names:
    """The table names as used in statements."""

    def __init__(self, table: str = OUTBOX) -> None:
        base = table.rpartition(".")[2]
        self.table = table
        self.base = base
        self.outbox = quoted(table)
        self.lanes = quoted(f"{table}_lanes")
        self.numbers = quoted(f"{table}_numbers")
        self.batches = quoted(f"{table}_batches")
        self.notify = quoted(f"{table}_notify")
        self.channel = base
        self.waiting_index = quoted(f"{base}_waiting")
        self.published_index = quoted(f"{base}_published")
        self.trigger = quoted(f"{base}_wake")
        self.publication = table.replace(".", "_").lower()


def outbox_statements(dialect: Dialect, names: Names) -> list[str]:
    return _postgres(names) if dialect == "postgresql" else _sqlite(names)


def inbox_statements(dialect: Dialect, table: str = INBOX) -> list[str]:
    name, index = quoted(table), quoted(f"{table.rpartition('.')[2]}_seen_at")
    postgres = dialect == "postgresql"
    text, time = ("text", "timestamptz") if postgres else ("TEXT", "REAL")
    now = "clock_timestamp()" if postgres else SQLITE_NOW
    return [
        f"""CREATE TABLE IF NOT EXISTS {name} (
            consumer {text} NOT NULL, message_id {text} NOT NULL, seen_at {time} NOT NULL DEFAULT ({now}),
            PRIMARY KEY (consumer, message_id)
        )""",
        f"CREATE INDEX IF NOT EXISTS {index} ON {name} (seen_at)",
    ]


SQLITE_NOW = "((julianday('now') - 2440587.5) * 86400.0)"


def _postgres(names: Names) -> list[str]:
    # The database computes the lane, so that rows can be inserted from any language. The trigger wakes relays once per
    # statement; PostgreSQL combines the notifications of a transaction.
    return [
        # two sessions that create the tables at the same time would fail
        f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})",
        f"""CREATE TABLE IF NOT EXISTS {names.outbox} (
            id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
            queue text NOT NULL,
            key text,
            body json,
            data bytea,
            options json,
            created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            lane int GENERATED ALWAYS AS
                (CAST(coalesce(hashtextextended(key, 0), id) & {LANES - 1} AS int)) STORED,
            published_at timestamptz,
            refused text,
            CHECK ((body IS NULL) <> (data IS NULL))
        )""",
        f"CREATE INDEX IF NOT EXISTS {names.waiting_index} ON {names.outbox} (lane, id) WHERE published_at IS NULL",
        f"""CREATE INDEX IF NOT EXISTS {names.published_index} ON {names.outbox} (published_at)
            WHERE published_at IS NOT NULL""",
        f"""CREATE TABLE IF NOT EXISTS {names.lanes} (
            lane int PRIMARY KEY, producer text NOT NULL DEFAULT CAST(gen_random_uuid() AS text)
        )""",
        f"CREATE TABLE IF NOT EXISTS {names.numbers} (lane int PRIMARY KEY, number bigint NOT NULL DEFAULT 0)",
        *(
            f"INSERT INTO {name} (lane) SELECT * FROM generate_series({STREAM_LANE}, {LANES - 1})"
            " ON CONFLICT DO NOTHING"
            for name in (names.lanes, names.numbers)
        ),
        f"""CREATE TABLE IF NOT EXISTS {names.batches} (
            lane int NOT NULL, queue text NOT NULL, first bigint NOT NULL, ids bigint[] NOT NULL,
            PRIMARY KEY (lane, queue)
        )""",
        f"""CREATE OR REPLACE FUNCTION {names.notify}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_notify('{names.channel}', '');
            RETURN NULL;
        END $$""",
        f"""CREATE OR REPLACE TRIGGER {names.trigger} AFTER INSERT ON {names.outbox}
            FOR EACH STATEMENT EXECUTE FUNCTION {names.notify}()""",
    ]


def _sqlite(names: Names) -> list[str]:
    # One writer at a time: rows commit in the order of their ids, and one lane is enough.
    return [
        f"""CREATE TABLE IF NOT EXISTS {names.outbox} (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            queue TEXT NOT NULL,
            key TEXT,
            body TEXT,
            data BLOB,
            options TEXT,
            created_at REAL NOT NULL DEFAULT ({SQLITE_NOW}),
            published_at REAL,
            refused TEXT,
            CHECK ((body IS NULL) <> (data IS NULL))
        )""",
        f"CREATE INDEX IF NOT EXISTS {names.waiting_index} ON {names.outbox} (id) WHERE published_at IS NULL",
        f"""CREATE INDEX IF NOT EXISTS {names.published_index} ON {names.outbox} (published_at)
            WHERE published_at IS NOT NULL""",
        f"CREATE TABLE IF NOT EXISTS {names.lanes} (lane INTEGER PRIMARY KEY, producer TEXT NOT NULL)",
        f"CREATE TABLE IF NOT EXISTS {names.numbers} (lane INTEGER PRIMARY KEY, number INTEGER NOT NULL DEFAULT 0)",
        f"INSERT INTO {names.lanes} (lane, producer) VALUES (0, lower(hex(randomblob(16)))) ON CONFLICT DO NOTHING",
        f"INSERT INTO {names.numbers} (lane) VALUES (0) ON CONFLICT DO NOTHING",
        f"""CREATE TABLE IF NOT EXISTS {names.batches} (
            lane INTEGER NOT NULL, queue TEXT NOT NULL, first INTEGER NOT NULL, ids TEXT NOT NULL,
            PRIMARY KEY (lane, queue)
        )""",
    ]
