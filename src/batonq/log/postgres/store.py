"""A database that keeps the logs of a whole cluster; checked and prepared when it is opened."""

from __future__ import annotations

import asyncio
import secrets
from weakref import WeakSet

from batonq.errors import AccessDenied, BatonError, InvalidInput, LogCorrupt
from batonq.log.backend import Unreachable, Unsafe
from batonq.log.postgres import schema
from batonq.log.postgres.address import PostgresAddress
from batonq.log.postgres.backend import PostgresBackend
from batonq.log.postgres.connection import Line, Refused
from batonq.log.postgres.leases import PostgresLeases

VERSION_MIN = 140000
TIMEOUT_S = 10.0
POLL_S = 1.0  # how often a follower checks even without a notification
LISTEN_AGAIN_S = 0.5
# followers are notified at once, and then at most this often about everything appended meanwhile
ANNOUNCE_EVERY_S = 0.05
_SETTINGS = """
    SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_is_in_recovery(),
        current_setting('transaction_read_only'), current_setting('fsync'), current_setting('full_page_writes'),
        current_setting('synchronous_commit')"""


class PostgresStore:
    """See backend.LogStore. Created by `await PostgresStore.open(…)`."""

    remarks = ()

    def __init__(self, address: PostgresAddress, timeout_s: float) -> None:
        self.cluster = 0
        self.where = address.shown
        self._address = address
        self._timeout_s = timeout_s
        self._line = Line(address, timeout_s)
        self._listening = Line(address, timeout_s)
        self._listener: asyncio.Task[None] | None = None
        self._grown: dict[int, asyncio.Event] = {}
        self._owners_changed = asyncio.Event()
        self._announced: set[int] = set()  # shards with appends since the last notification
        self._announcer: asyncio.Task[None] | None = None
        self._backends: WeakSet[PostgresBackend] = WeakSet()

    @classmethod
    async def open(cls, address: PostgresAddress, *, timeout_s: float = TIMEOUT_S) -> PostgresStore:
        """Raises Unsafe if the server could lose acknowledged data, saying what to change; Unavailable."""
        store = cls(address, timeout_s)
        try:
            await store._check()
            await store._prepare()
        except BaseException:
            await store.close()
            raise
        store._listener = asyncio.get_running_loop().create_task(store._listen())
        return store

    async def _check(self) -> None:
        shown = self._address.shown
        try:
            ((number, version, standby, read_only, fsync, full_pages, commit),) = await self._line.run(_SETTINGS)
        except Unreachable as problem:
            raise _told(problem) or problem from None
        if number < VERSION_MIN:
            raise Unsafe(f"{shown} runs PostgreSQL {version}; the log needs {VERSION_MIN // 10000} or newer.")
        if standby or read_only == "on":
            raise Unsafe(
                f"{shown} is read-only: it is a standby, or default_transaction_read_only is set. Use the "
                "primary (target_session_attrs=read-write finds it among several hosts)."
            )
        if self._address.unsafe:
            return
        wrong = {"fsync": fsync, "full_page_writes": full_pages, "synchronous_commit": commit}
        for setting, value in wrong.items():
            if value in ("off", "local"):
                raise Unsafe(
                    f"{shown} has {setting} = {value}, so a power failure or failover could lose acknowledged "
                    f"messages. Set {setting} = on in postgresql.conf, or add unsafe=yes to the log's URL to "
                    "accept that."
                )

    async def _prepare(self) -> None:
        """Create the tables, or check that their version is supported."""
        name = self._address.schema
        cluster = secrets.randbits(64) or 1
        try:
            await self._line.run_all(
                [
                    ("SELECT pg_advisory_xact_lock(%s)", (schema.LOCK,)),
                    (schema.LOCK_TIMEOUT, ()),
                    (f"CREATE SCHEMA IF NOT EXISTS {name}", ()),
                    *((statement, ()) for statement in schema.CREATE),
                    (schema.SET_ABOUT, (schema.VERSION, f"{cluster:016x}")),
                ]
            )
        except Refused as refused:
            if refused.sqlstate == schema.LOCK_NOT_AVAILABLE:
                raise Unreachable(
                    f"The tables of the log in schema {name} must be changed for this release, but another session, "
                    f"such as pg_dump, is using them: {refused.message}. Start the node again when that has ended."
                ) from None
            raise Unsafe(
                f"The tables of the log cannot be created in schema {name}: {refused.message}. The user needs "
                "CREATE on the database, or must own a schema of that name."
            ) from None
        ((version, text),) = await self._line.run(schema.ABOUT)
        if version != schema.VERSION:
            raise LogCorrupt(
                f"The tables in schema {name} of {self._address.shown} have version {version}, but this "
                f"release supports {schema.VERSION}. Use a newer release."
            )
        self.cluster = int(text, 16)

    @property
    def replicas(self) -> int:
        """One database; its standbys do not count."""
        return 1

    async def check_kind(self, replicas: int) -> None:
        if replicas != 1:
            raise Unsafe(
                f"Shards with {replicas} replicas need a log in NATS JetStream (--log-url nats://…). A log in "
                "PostgreSQL has the replicas of the database."
            )

    async def backend(self, shard: int, replicas: int = 1) -> PostgresBackend:
        backend = PostgresBackend(
            shard,
            where=f"the log of shard {shard} in {self._address.shown}",
            appending=Line(self._address, self._timeout_s),
            reading=self._line,
            grown=lambda: self._grown.setdefault(shard, asyncio.Event()),
            announce=lambda: self._announce(shard),
            poll_s=POLL_S,
        )
        await backend.begin()
        self._backends.add(backend)
        return backend

    def leases(self, node: str, address: str, ttl_s: float) -> PostgresLeases:
        return PostgresLeases(
            self._line,
            node=node,
            address=address,
            ttl_s=ttl_s,
            changed=lambda: self._owners_changed,
            poll_s=POLL_S,
        )

    async def close(self) -> None:
        for task in (self._listener, self._announcer):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for backend in list(self._backends):
            await backend.close()
        await self._listening.close()
        await self._line.close()

    def _announce(self, shard: int) -> None:
        self._announced.add(shard)
        if self._announcer is None:
            self._announcer = asyncio.get_running_loop().create_task(self._tell_others())

    async def _tell_others(self) -> None:
        try:
            while self._announced:
                shards, self._announced = self._announced, set()
                await self._line.run(schema.ANNOUNCE, (list(shards),))
                await asyncio.sleep(ANNOUNCE_EVERY_S)
        except Unreachable:
            pass  # followers also check by themselves
        finally:
            self._announcer = None

    async def _listen(self) -> None:
        """Wake the waiters. A notification may be late or lost: they also check by themselves at intervals."""
        while True:
            try:
                await self._listening.run(f"LISTEN baton_{self._address.schema}")
                self._wake_all()
                while True:
                    for payload in await self._listening.notifications():
                        self._wake(payload)
            except Unreachable:
                await asyncio.sleep(LISTEN_AGAIN_S)

    def _wake(self, payload: str) -> None:
        if payload.startswith("o"):
            self._owners_changed.set()
            self._owners_changed = asyncio.Event()
            return
        grown = self._grown.pop(int(payload[1:]), None)
        if grown is not None:
            grown.set()

    def _wake_all(self) -> None:
        for shard in list(self._grown):
            self._wake(f"f{shard}")
        self._wake("o")


def _told(problem: Unreachable) -> BatonError | None:
    """The error that needs a change; None if a retry may succeed."""
    text = problem.message.lower()
    if any(word in text for word in ("password", "authentication failed", "no pg_hba.conf entry")):
        return AccessDenied(
            f"{problem.message}. Set the password with PGPASSFILE or ~/.pgpass "
            "(host:port:database:user:password, readable only for the service's user), with PGPASSWORD, or "
            "in the log's URL."
        )
    if "certificate" in text or "ssl" in text:
        return InvalidInput(
            f"{problem.message}. Check sslmode, sslrootcert, sslcert and sslkey in the log's URL, and the "
            "server's ssl setting."
        )
    return None
