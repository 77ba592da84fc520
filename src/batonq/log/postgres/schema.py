"""The tables, how they are created and upgraded, and every statement on them.

`tails` has one row per log: where it begins and ends, and its epoch and digest. An append advances that row from
exactly the state that the frame follows, and stores the frame, in one statement and so in one transaction; a second
owner waits for the row's lock and then finds the row changed. `owners` has one row per shard, with lease times by the
database's clock.

Table names are resolved in the schema that the connection has set.
"""

from __future__ import annotations

VERSION = 1
LOCK = 0x6261746F6E71  # lock of the database, held while the tables are created
# A change of a table waits for every transaction that reads it, such as a dump, and appends then wait for the change.
LOCK_TIMEOUT = "SET LOCAL lock_timeout = '2s'"
LOCK_NOT_AVAILABLE = "55P03"


def alter_unless(has: str, table: str, change: str) -> str:
    """Change a table unless it has such a column: even a change that changes nothing locks the table."""
    column = f"SELECT FROM pg_attribute WHERE attrelid = '{table}'::regclass AND NOT attisdropped AND {has}"
    return f"DO $$ BEGIN IF NOT EXISTS ({column}) THEN ALTER TABLE {table} {change}; END IF; END $$"


CREATE = (
    """CREATE TABLE IF NOT EXISTS about (
        one boolean PRIMARY KEY DEFAULT true CHECK (one),
        version integer NOT NULL,
        cluster text NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS tails (
        shard integer PRIMARY KEY,
        first bigint NOT NULL,
        next bigint NOT NULL,
        epoch bigint NOT NULL,
        digest bytea NOT NULL,
        CHECK (first <= next)) WITH (fillfactor = 50)""",
    """CREATE TABLE IF NOT EXISTS frames (
        shard integer NOT NULL,
        number bigint NOT NULL,
        bytes integer NOT NULL,
        data bytea NOT NULL,
        PRIMARY KEY (shard, number))""",
    # Bodies that a sender compressed do not shrink again, and the attempt costs more than storing them.
    alter_unless("attname = 'data' AND attstorage = 'e'", "frames", "ALTER COLUMN data SET STORAGE EXTERNAL"),
    """CREATE TABLE IF NOT EXISTS owners (
        shard integer PRIMARY KEY,
        epoch bigint NOT NULL,
        node text NOT NULL,
        address text NOT NULL,
        until timestamptz NOT NULL)""",
    """CREATE TABLE IF NOT EXISTS members (
        node text PRIMARY KEY,
        address text NOT NULL,
        note text NOT NULL,
        until timestamptz NOT NULL)""",
    alter_unless("attname = 'incarnation'", "members", "ADD COLUMN incarnation text NOT NULL DEFAULT ''"),
    """CREATE TABLE IF NOT EXISTS facts (
        name text PRIMARY KEY,
        value text NOT NULL)""",
    "CREATE TABLE IF NOT EXISTS expected (node text PRIMARY KEY)",
)
ABOUT = "SELECT version, cluster FROM about"
SET_ABOUT = "INSERT INTO about (version, cluster) VALUES (%s, %s) ON CONFLICT DO NOTHING"

BEGIN_LOG = "INSERT INTO tails VALUES (%s, 1, 1, 0, %b) ON CONFLICT DO NOTHING"
APPEND = """
    WITH tail AS (
        UPDATE tails SET next = next + 1, epoch = %(epoch)s, digest = %(digest)b
        WHERE shard = %(shard)s AND next = %(number)s AND epoch <= %(epoch)s AND digest = %(previous)b
        RETURNING shard
    ), frame AS (
        INSERT INTO frames SELECT shard, %(number)s, %(bytes)s, %(data)b FROM tail RETURNING shard
    )
    SELECT shard FROM frame"""
# Separate from the append: a transaction that notifies blocks all other commits until it has committed.
ANNOUNCE = "SELECT pg_notify('baton_' || current_schema(), 'f' || shard) FROM unnest(%s::int[]) AS shard"
TAIL = "SELECT first, next, epoch, digest FROM tails WHERE shard = %s"
FIND = "SELECT data FROM frames WHERE shard = %s AND number = %s"
READ = """
    SELECT number, data FROM (
        SELECT number, data, sum(bytes) OVER (ORDER BY number) - bytes AS before FROM frames
        WHERE shard = %(shard)s AND number >= %(start)s AND number < %(start)s + %(frames)s
    ) AS frame WHERE before < %(bytes)s ORDER BY number"""
DROP = """
    WITH tail AS (
        UPDATE tails SET first = %(before)s
        WHERE shard = %(shard)s AND first < %(before)s AND next > %(before)s
        RETURNING shard
    )
    DELETE FROM frames USING tail WHERE frames.shard = tail.shard AND frames.number < %(before)s"""

# A row of a node that is still alive is not changed; a node's own row is taken again with a new epoch.
ACQUIRE = """
    INSERT INTO owners AS owner
    SELECT %(shard)s, %(above)s + 1, %(node)s, %(address)s, clock_timestamp() + make_interval(secs => %(ttl)s)
    ON CONFLICT (shard) DO UPDATE SET
        epoch = greatest(owner.epoch, %(above)s) + 1, node = excluded.node, address = excluded.address,
        until = clock_timestamp() + make_interval(secs => %(ttl)s)
    WHERE owner.node IN ('', excluded.node) OR owner.until < clock_timestamp()
    RETURNING epoch, pg_notify('baton_' || current_schema(), 'o' || shard)"""
RENEW = """
    UPDATE owners SET until = clock_timestamp() + make_interval(secs => %(ttl)s)
    WHERE shard = %(shard)s AND node = %(node)s AND epoch = %(epoch)s
    RETURNING epoch"""
RELEASE = """
    UPDATE owners SET node = '', address = '', until = clock_timestamp()
    WHERE shard = %(shard)s AND node = %(node)s AND epoch = %(epoch)s
    RETURNING pg_notify('baton_' || current_schema(), 'o' || shard)"""
OWNERS = """
    SELECT shard, node, address, epoch, extract(epoch FROM until - clock_timestamp())::float8 FROM owners
    WHERE node <> '' AND until >= clock_timestamp()"""
OWNER = "SELECT node, address FROM owners WHERE shard = %s"

# The row of another process with the same name is not changed while it is alive.
MEMBER = """
    INSERT INTO members AS member (node, address, note, until, incarnation)
    VALUES (%(node)s, %(address)s, %(note)s, clock_timestamp() + make_interval(secs => %(ttl)s), %(incarnation)s)
    ON CONFLICT (node) DO UPDATE SET
        address = excluded.address, note = excluded.note, until = excluded.until, incarnation = excluded.incarnation
    WHERE member.until < clock_timestamp() OR member.incarnation IN ('', excluded.incarnation, %(replaces)s)
        OR excluded.incarnation = ''
    RETURNING node"""
NO_MEMBER = "DELETE FROM members WHERE node = %s AND incarnation = %s"
MEMBERS = "SELECT node, address, note, incarnation FROM members WHERE until >= clock_timestamp() ORDER BY node"
MEMBER_ADDRESS = "SELECT address FROM members WHERE node = %s"

AGREE = """
    INSERT INTO facts AS fact (name, value) VALUES (%(name)s, %(value)s)
    ON CONFLICT (name) DO UPDATE SET
        value = CASE WHEN fact.value = ANY(%(replaces)s::text[]) THEN excluded.value ELSE fact.value END
    RETURNING value"""
EXPECT = "INSERT INTO expected (node) VALUES (%s) ON CONFLICT DO NOTHING"
NOT_EXPECTED = "DELETE FROM expected WHERE node = %s"
EXPECTED = "SELECT node FROM expected ORDER BY node"
TIME = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
