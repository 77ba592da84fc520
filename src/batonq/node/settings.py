"""Every setting of a node, in one place. Each has a line of documentation; the command line and the docs use both."""

from __future__ import annotations

import re
from dataclasses import Field, dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from batonq.core.limits import (
    COMMAND_ROWS_MAX,
    DEFAULT_LIMITS,
    ENTRY_ROWS,
    ROLL_ROWS,
    STEP_ROWS,
    ShardLimits,
)
from batonq.errors import InvalidInput
from batonq.queue_attributes import DURABILITY, SPREAD_MAX

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
LOG_SCHEMES = ("nats://", "tls://", "postgres://", "postgresql://")
LOG_VARIABLE = "BATON_LOG"  # of the environment: what --log is when it is not given
SHARDS_MAX = 256
PROCESSES_MAX = 64
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_NODE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def setting(default: Any, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(slots=True, frozen=True, kw_only=True)
class Settings:
    # --- where
    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(9324, "Port to listen on; 0 takes a free one.")
    data: str = setting("baton-data", "Data directory; one process at a time owns it.")
    log: str = setting(
        "",
        "Where the logs are: nats://host/name or postgres://user@host/database; empty: in the data directory. "
        "Default: what BATON_LOG is in the environment.",
    )
    node: str = setting("", "Name of this node among those that share a log; default the host's name.")
    advertise: str = setting("", "Where other nodes of the cluster reach this one: http://host:port; empty: alone.")
    cluster_secret_file: str = setting("", "File with the secret that nodes of a cluster sign their requests with.")
    tls_cert: str = setting("", "File with the certificate (and its chain) to serve HTTPS with; empty: plain HTTP.")
    tls_key: str = setting("", "File with the certificate's key; empty: it is in the same file.")
    peer_ca: str = setting("", "File with the authority that signed other nodes' certificates; empty: the system's.")
    account: str = setting("000000000000", "Account id in queue URLs and ARNs: twelve digits.")
    public_url: str = setting("", "Address in queue URLs; empty: the host that each client used.")
    allowed_hosts: str = setting(
        "",
        "More host names, separated by commas, that clients of a development server may use; it refuses all but those "
        "of this machine.",
    )
    shards: int = setting(
        1, "How many shards the queues are spread over, at least one a process; can grow, never shrinks."
    )
    other_shards: str = setting(
        "", "Shards with other replicas than the log's address says, replicas:count: 1:2,5:4; can grow, never shrink."
    )
    processes: int = setting(1, "How many processes serve the data directory together, each some of the shards.")
    spread: int = setting(1, "Shards that a new standard queue lies on when it does not say itself.")
    secure: bool | None = setting(None, "Secured profile: every request is signed. Off only when bound to loopback.")

    # --- what is said
    log_level: str = setting("info", "Least important events to print: debug, info, warning or error.")
    log_format: str = setting("text", "Form of printed events: text or json (one object a line).")

    # --- waits and rates
    purge_wait_s: float | None = setting(None, "Least time between purges of one queue; default 60, 0 in development.")
    delete_wait_s: float | None = setting(
        None, "How long a deleted queue's name stays taken; default 60, 0 in development."
    )
    move_rate_per_s: int = setting(10, "Messages a second of a move task that was started without a rate.")
    move_rate_max_per_s: int = setting(500, "Highest rate that a move task may ask for.")
    redrive_rate_max_per_s: int = setting(10_000, "Highest rate that a redrive by REST may ask for.")
    producer_idle_hours: float = setting(168.0, "How long a producer's last number is remembered without a send.")
    idempotency_hours: float = setting(24.0, "How long an Idempotency-Key is remembered.")
    grace_max_s: float = setting(60.0, "Most that running leases are extended by after an outage.")
    drain_s: float = setting(10.0, "Longest that a stopping node waits for requests under way.")
    lease_s: float = setting(5.0, "How long a node owns the shards of a shared log without renewing that.")
    hold_s: float = setting(10.0, "How long a node keeps a shard before it hands it over to balance the load.")
    reopen_first_s: float = setting(0.2, "Pause before a stopped shard is opened again; doubles with each failure.")
    reopen_max_s: float = setting(10.0, "Longest pause before a stopped shard is opened again.")

    # --- history, snapshots, disk
    history_hours: float = setting(72.0, "How long the log is kept although no living message needs it.")
    history_bytes: int = setting(1 * GIB, "How much log a shard keeps although no living message needs it.")
    archive: str = setting("", "Where sealed segments are copied to: file:///directory or s3://bucket/prefix.")
    archive_backlog_bytes: int = setting(
        4 * GIB, "Log of a shard that waits for the archive; past it the front is dropped although it is not there."
    )
    segment_bytes: int = setting(64 * MIB, "Size of one segment file of a log.")
    catalog_segment_bytes: int = setting(4 * MIB, "Size of one segment file of the catalog's log.")
    history_rate_bytes: int = setting(
        32 * MIB, "Bytes of history a second that are served, to all readers together; 0: none."
    )
    snapshot_bytes: int = setting(256 * MIB, "A snapshot is made after this much new log.")
    snapshot_frames: int = setting(
        5_000, "Or after this many frames, however short, if they are a twentieth of the living messages at least."
    )
    snapshot_every_s: float = setting(60.0, "Because of the number of frames, a snapshot is made at most so often.")
    maintenance_every_s: float = setting(1.0, "How often a node looks whether there is housekeeping to do.")
    carry_rows: int = setting(256, "Most messages that one step of compaction copies forward.")
    carry_bytes: int = setting(1 * MIB, "Most bytes that one step of compaction copies forward.")
    key_rotation_hours: float = setting(168.0, "How often a new receipt key is taken into use.")

    # --- limits
    frame_rows_max: int = setting(
        16_384, "Records in the open frame above which requests are refused for now; at most 49151."
    )
    frame_bytes_max: int = setting(32 * MIB, "Bytes in the open frame above which requests are refused for now.")
    pending_max: int = setting(20_000, "Requests of one shard that may wait for a commit.")
    waiters_per_queue_max: int = setting(10_000, "Long polls that may wait on one queue.")
    waiters_max: int = setting(50_000, "Long polls that may wait on one shard.")
    connections_max: int = setting(20_000, "Open client connections.")
    requests_bytes_max: int = setting(
        512 * MIB,
        "Memory for requests that arrive or are in progress, and for unread answers, of all clients together.",
    )
    address_share: float | None = setting(
        None,
        "Share of the connections and of the request memory that one client address may take; default 0.5, 1 in "
        "development. Behind a reverse proxy all clients have its address: use 1.",
    )
    body_rate_min_bytes: int = setting(
        8 * KIB, "Slowest that a request's body may arrive, in bytes per second; slower ones get 408. 0: any rate."
    )
    window_entries: int = setting(256, "Entries of one channel between shards that may be in progress; at most 3411.")
    window_bytes: int = setting(4 * MIB, "Bytes of one channel between shards that may be under way.")
    alarms_max: int = setting(1_000, "Alarms that are remembered.")

    # --- commit
    inline_sync_us: int = setting(
        2_000, "While a sync takes less than this (measured), it is done on the serving thread; else on another."
    )
    shard_limits: ShardLimits = DEFAULT_LIMITS  # for tests: no option of the command line

    @property
    def dev(self) -> bool:
        """The development profile: no signatures, no waits, a clock that can be moved."""
        return not self.secured

    @property
    def secured(self) -> bool:
        return self.secure if self.secure is not None else False

    @property
    def loopback(self) -> bool:
        return self.host in LOOPBACK_HOSTS or self.host.startswith("127.")

    @property
    def purge_wait_ms(self) -> int:
        return _wait_ms(self.purge_wait_s, self.dev)

    @property
    def delete_wait_ms(self) -> int:
        return _wait_ms(self.delete_wait_s, self.dev)

    @property
    def address_part(self) -> float:
        """What `address_share` is in this profile."""
        if self.address_share is None:
            return 1.0 if self.dev else 0.5
        return self.address_share

    @property
    def own_hosts(self) -> list[str]:
        """The hosts by which clients and other nodes may reach a development server, beside those of this machine."""
        urls = [urlsplit(url).hostname or "" for url in (self.public_url, self.advertise)]
        return [host for host in (self.host, *urls, *self.allowed_hosts.split(",")) if host]

    def kinds(self) -> dict[int, int]:
        """What `other_shards` says: replicas → how many shards. Raises InvalidInput."""
        found: dict[int, int] = {}
        for part in filter(None, self.other_shards.split(",")):
            replicas, _, count = part.partition(":")
            if replicas not in map(str, DURABILITY) or not count.isdecimal() or not int(count):
                raise InvalidInput(
                    f"Other shards are given as replicas:count, with {', '.join(map(str, DURABILITY))} replicas, like "
                    f"1:2,5:4; not {part!r}."
                )
            found[int(replicas)] = int(count)
        return found

    def check(self) -> None:
        """Raise InvalidInput, saying what to do, when the settings cannot be served."""
        if not self.secured and not self.loopback:
            raise InvalidInput(
                f"Listening on {self.host} lets other machines in, and the development profile checks no signatures. "
                "Start with --secure (make a key first: baton keys create), or listen on 127.0.0.1."
            )
        if len(self.account) != 12 or not self.account.isascii() or not self.account.isdigit():
            raise InvalidInput(f"The account must be twelve digits, not {self.account!r}.")
        if not 1 <= self.shards <= SHARDS_MAX:
            raise InvalidInput(f"The number of shards must be 1 to {SHARDS_MAX}, not {self.shards}.")
        if self.shards + sum(self.kinds().values()) > SHARDS_MAX:
            raise InvalidInput(f"There may be {SHARDS_MAX} shards in all: --shards and --other-shards name more.")
        if self.processes != 1:
            self._check_processes()
        if not 1 <= self.spread <= SPREAD_MAX:
            raise InvalidInput(f"A queue lies on 1 to {SPREAD_MAX} shards, not {self.spread}.")
        if not 0 <= self.port <= 65535:
            raise InvalidInput(f"The port must be 0 to 65535, not {self.port}.")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise InvalidInput(f"The log level must be debug, info, warning or error, not {self.log_level!r}.")
        if self.log_format not in ("text", "json"):
            raise InvalidInput(f"The log format must be text or json, not {self.log_format!r}.")
        if not 1 <= self.move_rate_per_s <= self.move_rate_max_per_s:
            raise InvalidInput(f"The move rate must be 1 to {self.move_rate_max_per_s}, not {self.move_rate_per_s}.")
        if self.log and not self.log.startswith(LOG_SCHEMES):
            raise InvalidInput("The log's address must begin with nats:// or postgres://.")
        if self.tls_key and not self.tls_cert:
            raise InvalidInput("A key for TLS (--tls-key) needs the certificate that it belongs to (--tls-cert).")
        if self.advertise:
            self._check_cluster()
        self._check_limits()
        if self.lease_s < 1:
            raise InvalidInput(f"A lease must be at least 1 s long, not {self.lease_s:g}.")
        if self.archive and not self.archive.startswith(("file:///", "s3://")):
            raise InvalidInput(f"The archive must be file:///directory or s3://bucket/prefix, not {self.archive!r}.")
        if not 0 < self.address_part <= 1:
            raise InvalidInput(f"The share of one address must be above 0 and at most 1, not {self.address_part:g}.")
        for host in filter(None, self.allowed_hosts.split(",")):
            if not _HOST_NAME.fullmatch(host):
                raise InvalidInput(
                    f"Allowed hosts are names or addresses without a port, separated by commas, like queue.test; not "
                    f"{host!r}."
                )
        if self.public_url and not self.public_url.startswith(("http://", "https://")):
            raise InvalidInput(f"The public address must start with http:// or https://, not {self.public_url!r}.")

    def _check_limits(self) -> None:
        """See core/limits.py: a frame has room for what is in it when a command begins, and for the command."""
        if not 1 <= self.frame_rows_max <= ROLL_ROWS:
            raise InvalidInput(
                f"The open frame can be limited to 1 to {ROLL_ROWS} records (--frame-rows-max), not "
                f"{self.frame_rows_max}."
            )
        if self.frame_bytes_max < 1 or self.pending_max < 1:
            raise InvalidInput(
                "A shard must be allowed to write something (--frame-bytes-max) and to let a request wait for that "
                "(--pending-max): both must be at least 1."
            )
        if self.shard_limits.command_rows > COMMAND_ROWS_MAX:
            raise InvalidInput(
                f"With these limits of a shard one command could write {self.shard_limits.command_rows} records; a "
                f"frame has room for {COMMAND_ROWS_MAX}."
            )
        window_max = min(self.shard_limits.verdicts_max, (COMMAND_ROWS_MAX - STEP_ROWS) // ENTRY_ROWS)
        if not 1 <= self.window_entries <= window_max:
            raise InvalidInput(
                f"A channel's window (--window-entries) must be 1 to {window_max} entries, as many as fit into a frame "
                f"and as its destination remembers the verdicts on, not {self.window_entries}."
            )

    def _check_processes(self) -> None:
        if not 1 <= self.processes <= PROCESSES_MAX:
            raise InvalidInput(f"The number of processes must be 1 to {PROCESSES_MAX}, not {self.processes}.")
        if self.log or self.advertise:
            raise InvalidInput(
                "Several processes serve logs that are in the data directory. With --log, start as many nodes as "
                "processes are wanted, each with its own --node, --advertise, --port and --data."
            )
        if self.other_shards:
            raise InvalidInput(
                "Several processes serve logs that are in the data directory, which have one replica: --other-shards "
                "needs --log nats://… and nodes in place of --processes."
            )
        if self.processes > self.shards:
            raise InvalidInput(
                f"{self.processes} processes need at least {self.processes} shards, since each shard is served by one "
                f"process, and --shards says {self.shards}. Start with --shards {self.processes} or more, or with "
                "fewer processes."
            )

    def _check_cluster(self) -> None:
        if not self.log:
            raise InvalidInput(
                "Nodes of a cluster share a log: say where it is (--log nats://…), or leave --advertise."
            )
        if not self.advertise.startswith(("http://", "https://")):
            raise InvalidInput(
                f"Other nodes reach this one at an address like http://host:port, not {self.advertise!r}."
            )
        if self.tls_cert and not self.advertise.startswith("https://"):
            raise InvalidInput(
                f"This node speaks TLS (--tls-cert), and other nodes would not: advertise https://…, not "
                f"{self.advertise}."
            )
        if not _NODE_NAME.fullmatch(self.node):
            raise InvalidInput("A node of a cluster has a name (--node) of up to 64 letters, digits, - and _.")
        if not self.loopback and not self.cluster_secret_file:
            raise InvalidInput(
                f"Listening on {self.host} lets other machines ask what only nodes may. Make a secret (openssl rand "
                "-hex 32), give it to every node, and name the file with --cluster-secret-file."
            )


def _wait_ms(seconds: float | None, dev: bool) -> int:
    if seconds is None:
        return 0 if dev else 60_000
    return int(seconds * 1000)


def documented() -> list[tuple[Field[Any], str]]:
    """The settings in order, each with its line of documentation."""
    return [(entry, str(entry.metadata["doc"])) for entry in fields(Settings) if "doc" in entry.metadata]
