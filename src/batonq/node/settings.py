"""Every setting of a node. Its documentation appears in `baton serve --help` and in the reference."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
from batonq.node.alarms.webhook_request import parse_webhooks
from batonq.payload_store import THRESHOLD_BYTES, check_url
from batonq.queue_attributes import DURABILITY, SPREAD_MAX

LOOPBACK_HOSTS = ("127.0.0.1", "::1", "localhost")
LOG_SCHEMES = ("nats://", "tls://", "postgres://", "postgresql://")
LOG_VARIABLE = "BATON_LOG_URL"  # environment variable that sets the default of --log-url
SHARDS_MAX = 256
PROCESSES_MAX = 64
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}|[0-9A-Fa-f:.]{2,45}")
_LABEL = "[A-Za-z0-9_-]{1,63}"
_ADVERTISED_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?|[0-9A-Fa-f.]*:[0-9A-Fa-f:.]*(?:%[A-Za-z0-9_.-]+)?")
_NODE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
PAYLOAD_BYTES_MAX = 256 * MIB


def setting(default: Any, doc: str, *, common: bool = False) -> Any:
    """`common`: one of the settings that `baton serve --help` shows; `--help-all` shows all."""
    return field(default=default, metadata={"doc": doc, "common": common})


@dataclass(slots=True, frozen=True, kw_only=True)
class Settings:
    # --- where
    host: str = setting("127.0.0.1", "Address to listen on.", common=True)
    port: int = setting(9324, "Port to listen on; 0 picks a free port.", common=True)
    data: str = setting("baton-data", "Data directory. Only one server at a time can use it.", common=True)
    log_url: str = setting(
        "",
        "URL of the shared log: nats://host/name or postgres://user@host/database. If empty, logs are stored in "
        "the data directory.",
    )
    node: str = setting("", "Name of this node, unique among the nodes that share a log. Default: the host name.")
    advertise: str = setting(
        "", "URL at which other cluster nodes reach this node: http://host:port. If empty, the node runs alone."
    )
    cluster_secret_file: str = setting(
        "", "File that contains the secret with which cluster nodes sign their requests."
    )
    tls_cert: str = setting(
        "",
        "File that contains the server certificate and its chain. If empty, the server uses plain HTTP.",
        common=True,
    )
    tls_key: str = setting(
        "",
        "File that contains the certificate's private key. If empty, the key is read from the certificate file.",
        common=True,
    )
    peer_ca: str = setting(
        "", "File that contains the CA certificate of the other nodes. If empty, the system's CAs are used."
    )
    account: str = setting("000000000000", "Account id used in queue URLs and ARNs: twelve digits.", common=True)
    public_url: str = setting(
        "", "Base URL used in queue URLs. If empty, the host of each request is used.", common=True
    )
    allowed_hosts: str = setting(
        "",
        "Additional host names, separated by commas, that clients of a development server may use. By default it "
        "accepts only the names of the local machine.",
    )
    shards: int = setting(
        1, "Number of shards, at least one per process. It can be increased but not decreased.", common=True
    )
    other_shards: str = setting(
        "",
        "Shards with a different number of replicas than the log's URL specifies, as replicas:count, for example "
        "1:2,5:4. The counts can be increased but not decreased.",
    )
    processes: int = setting(
        1, "Number of processes that serve the data directory. Each serves some of the shards.", common=True
    )
    spread: int = setting(1, "Default number of shards for a new standard queue.")
    secure: bool | None = setting(
        None,
        "Secured profile: every request must be signed. It can be off only when the server listens on a loopback "
        "address.",
    )
    read_only: bool = setting(False, "Read-only dashboard: it shows everything and changes nothing.")

    # --- what is said
    log_level: str = setting(
        "info", "Minimum level of the events to print: debug, info, warning or error.", common=True
    )
    log_format: str = setting("text", "Format of printed events: text, or json with one object per line.")
    otlp_endpoint: str = setting(
        "",
        "URL of an OpenTelemetry collector, as in http://127.0.0.1:4318, to which spans of sampled messages are sent "
        "(OTLP over HTTP). If empty, no spans are made.",
    )

    # --- metrics and time series
    metrics_queues_max: int = setting(
        500,
        "Maximum number of queues with metrics of their own. If there are more, only the busiest and most troubled "
        "have them; totals always include all queues.",
    )
    series_queues_max: int = setting(
        500, "Maximum number of queues whose time series are kept. The ones that have been idle longest are dropped."
    )

    # --- waits and rates
    purge_wait_s: float | None = setting(
        None, "Minimum time between two purges of a queue. Default: 60, in development 0."
    )
    delete_wait_s: float | None = setting(
        None, "Time after a queue is deleted before its name can be used again. Default: 60, in development 0."
    )
    move_rate_per_s: int = setting(10, "Default rate of a message move task, in messages per second.")
    move_rate_max_per_s: int = setting(500, "Maximum rate of a message move task, in messages per second.")
    redrive_rate_max_per_s: int = setting(
        10_000, "Maximum rate of a redrive job started through REST, in messages per second."
    )
    producer_idle_hours: float = setting(168.0, "How long an idle producer's last sequence number is remembered.")
    idempotency_hours: float = setting(24.0, "How long an Idempotency-Key is remembered.")
    grace_max_s: float = setting(60.0, "Maximum extension of leases after an outage.")
    drain_s: float = setting(10.0, "Maximum time that a stopping node waits for requests in progress.")
    lease_s: float = setting(
        5.0, "Duration of a node's ownership lease on a shard of a shared log. The node renews it continuously."
    )
    hold_s: float = setting(10.0, "Minimum time that a node keeps a shard before it hands it over to balance the load.")
    reopen_first_s: float = setting(
        0.2, "Initial delay before a failed shard is reopened. It doubles after each failure."
    )
    reopen_max_s: float = setting(10.0, "Maximum delay before a failed shard is reopened.")

    # --- history, snapshots, disk
    history_hours: float = setting(72.0, "Retention time of log that no stored message needs.", common=True)
    history_bytes: int = setting(1 * GIB, "Maximum size per shard of retained log that no stored message needs.")
    archive: str = setting(
        "", "Destination to which sealed segments are copied: file:///directory or s3://bucket/prefix."
    )
    payload_store: str = setting(
        "",
        "Where bodies above --payload-threshold are stored: file:///directory or s3://bucket/prefix. All nodes of a "
        "cluster need the same store. If empty, bodies are stored in the log.",
    )
    payload_threshold: int = setting(THRESHOLD_BYTES, "Size in bytes above which a body is put into the payload store.")
    payload_bytes_max: int = setting(
        16 * MIB,
        "Maximum size of a body in the payload store. Queues with a lower MaximumMessageSize keep their own limit.",
    )
    payload_sweep_s: float = setting(
        600.0, "Interval at which bodies that no message needs are deleted from the payload store."
    )
    archive_backlog_bytes: int = setting(
        4 * GIB, "Maximum unarchived log per shard. Beyond it the oldest part is deleted without having been archived."
    )
    reports: str = setting(
        "", "Directory with reports of the data pipeline (baton pipeline report), which the dashboard lists."
    )
    segment_bytes: int = setting(64 * MIB, "Size of one segment file of a shard's log.")
    catalog_segment_bytes: int = setting(4 * MIB, "Size of one segment file of the catalog's log.")
    history_rate_bytes: int = setting(
        32 * MIB,
        "Maximum rate at which history is served, in bytes per second, for all readers together. 0 disables "
        "history reads.",
    )
    snapshot_bytes: int = setting(256 * MIB, "A snapshot is written after this many bytes of new log.")
    snapshot_frames: int = setting(
        5_000, "A snapshot is also written after this many frames, if they number at least 5% of the stored messages."
    )
    snapshot_every_s: float = setting(
        60.0, "Minimum time between two snapshots that are triggered by the number of frames."
    )
    maintenance_every_s: float = setting(1.0, "Interval between checks for maintenance work.")
    carry_rows: int = setting(256, "Maximum number of messages that one compaction step copies.")
    carry_bytes: int = setting(1 * MIB, "Maximum number of bytes that one compaction step copies.")
    key_rotation_hours: float = setting(168.0, "Interval after which a new receipt key is created and used.")

    # --- limits
    frame_rows_max: int = setting(
        16_384,
        "Maximum number of records in the open frame. Requests beyond it are refused with a retryable error. At "
        "most 49151.",
    )
    frame_bytes_max: int = setting(
        32 * MIB, "Maximum number of bytes in the open frame. Requests beyond it are refused with a retryable error."
    )
    pending_max: int = setting(20_000, "Maximum number of requests per shard that wait for a commit.")
    waiters_per_queue_max: int = setting(10_000, "Maximum number of long polls per queue.")
    waiters_max: int = setting(50_000, "Maximum number of long polls per shard.")
    connections_max: int = setting(20_000, "Maximum number of open client connections.")
    requests_bytes_max: int = setting(
        512 * MIB,
        "Maximum memory for requests that are being received or processed and for unread responses, for all clients "
        "together.",
    )
    address_share: float | None = setting(
        None,
        "Maximum share of the connections and of the request memory per client address. Default: 0.5, in "
        "development 1. Behind a reverse proxy all clients have the proxy's address: use 1.",
    )
    body_rate_min_bytes: int = setting(
        8 * KIB,
        "Minimum rate at which a request's body must arrive, in bytes per second. Slower requests get 408. 0 "
        "disables the check.",
    )
    window_entries: int = setting(
        256, "Maximum number of unacknowledged entries per channel between shards. At most 2558."
    )
    window_bytes: int = setting(4 * MIB, "Maximum number of unacknowledged bytes per channel between shards.")
    alarms_max: int = setting(1_000, "Maximum number of active alarms that are kept.")

    # --- alarms
    alarm_depth: int = setting(
        100_000,
        "Number of waiting messages above which a queue without an alarmDepth of its own has an alarm; 0: none.",
    )
    alarm_unusual_factor: float = setting(
        2.0, "A queue has an alarm when this many times its usual number of messages wait for five minutes; 0: none."
    )
    alarm_no_consumer_s: float = setting(
        300.0, "Time for which messages may wait without any consumer before there is an alarm."
    )
    alarm_disk_share: float | None = setting(
        None,
        "Share of the data directory's disk in use above which there is an alarm. Default: 0.8, in development 0.95.",
    )
    alarm_webhooks: str = setting("", "URLs, separated by commas, to which every change of an alarm is sent.")
    alarm_webhook_secret_file: str = setting("", "File that contains the secret with which webhooks are signed.")
    alarm_webhook_hosts: str = setting(
        "", "The only hosts to which webhooks may be sent, separated by commas. If empty, any host of a URL is allowed."
    )
    alarm_webhook_private: bool = setting(False, "Whether webhooks may be sent to private and loopback addresses.")

    # --- commit
    inline_sync_us: int = setting(
        2_000,
        "If a disk sync takes less than this (measured), it runs on the event-loop thread, otherwise on another "
        "thread.",
    )
    shard_limits: ShardLimits = DEFAULT_LIMITS  # for tests only; not a command-line option
    # Where the settings come from, see configuration.py: setting → flag, environment or file; and that file.
    origins: Mapping[str, Any] = field(default_factory=dict)
    config_file: str = ""

    @property
    def dev(self) -> bool:
        """The development profile: no signatures, no waiting times, and a clock that tests can move."""
        return not self.secured

    @property
    def secured(self) -> bool:
        return self.secure if self.secure is not None else False

    @property
    def loopback(self) -> bool:
        return self.host in LOOPBACK_HOSTS or self.host.startswith("127.")

    @property
    def member_name(self) -> str:
        """The name of this node or process where a server has several, otherwise empty."""
        return self.node if self.advertise or self.processes > 1 else ""

    @property
    def purge_wait_ms(self) -> int:
        return _wait_ms(self.purge_wait_s, self.dev)

    @property
    def delete_wait_ms(self) -> int:
        return _wait_ms(self.delete_wait_s, self.dev)

    @property
    def address_part(self) -> float:
        """The value of `address_share`, or the profile's default."""
        if self.address_share is None:
            return 1.0 if self.dev else 0.5
        return self.address_share

    @property
    def disk_share(self) -> float:
        """The value of `alarm_disk_share`, or the profile's default."""
        if self.alarm_disk_share is None:
            return 0.95 if self.dev else 0.8
        return self.alarm_disk_share

    @property
    def own_hosts(self) -> list[str]:
        """The hosts, in addition to the local machine's, by which clients and nodes may reach a development server."""
        urls = [urlsplit(url).hostname or "" for url in (self.public_url, self.advertise)]
        return [host for host in (self.host, *urls, *self.allowed_hosts.split(",")) if host]

    def kinds(self) -> dict[int, int]:
        """`other_shards` parsed: replicas → number of shards. Raises InvalidInput."""
        found: dict[int, int] = {}
        for part in filter(None, self.other_shards.split(",")):
            replicas, _, count = part.partition(":")
            if replicas not in map(str, DURABILITY) or not count.isdecimal() or not int(count):
                raise InvalidInput(
                    f"--other-shards contains {part!r}, which is not valid. Use replicas:count, separated by "
                    f"commas, with {', '.join(map(str, DURABILITY))} replicas, for example 1:2,5:4."
                )
            found[int(replicas)] = int(count)
        return found

    def check(self) -> None:
        """Raise InvalidInput if a setting, or a combination of settings, is not valid."""
        if not self.secured and not self.loopback:
            raise InvalidInput(
                f"--host {self.host} accepts connections from other machines, but the development profile does "
                "not check signatures. Create a key (baton keys create --data DIR) and start with --secure, or use "
                "--host 127.0.0.1."
            )
        if len(self.account) != 12 or not self.account.isascii() or not self.account.isdigit():
            raise InvalidInput(f"--account must be twelve digits, not {self.account!r}.")
        if not 1 <= self.shards <= SHARDS_MAX:
            raise InvalidInput(f"--shards must be 1 to {SHARDS_MAX}, not {self.shards}.")
        if self.shards + sum(self.kinds().values()) > SHARDS_MAX:
            raise InvalidInput(f"--shards and --other-shards together exceed the maximum of {SHARDS_MAX} shards.")
        if self.processes != 1:
            self._check_processes()
        if not 1 <= self.spread <= SPREAD_MAX:
            raise InvalidInput(f"--spread must be 1 to {SPREAD_MAX}, not {self.spread}.")
        if self.otlp_endpoint and urlsplit(self.otlp_endpoint).scheme not in ("http", "https"):
            raise InvalidInput(f"--otlp-endpoint must be an http or https URL, not {self.otlp_endpoint!r}.")
        if not 0 <= self.port <= 65535:
            raise InvalidInput(f"--port must be 0 to 65535, not {self.port}.")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise InvalidInput(f"--log-level must be debug, info, warning or error, not {self.log_level!r}.")
        if self.log_format not in ("text", "json"):
            raise InvalidInput(f"--log-format must be text or json, not {self.log_format!r}.")
        if not 1 <= self.move_rate_per_s <= self.move_rate_max_per_s:
            raise InvalidInput(
                f"--move-rate-per-s must be 1 to {self.move_rate_max_per_s}, not {self.move_rate_per_s}."
            )
        if self.log_url and not self.log_url.startswith(LOG_SCHEMES):
            raise InvalidInput("--log-url must be a URL that begins with nats:// or postgres://.")
        if self.tls_key and not self.tls_cert:
            raise InvalidInput("--tls-key is set without --tls-cert. Set --tls-cert to the certificate of that key.")
        if self.advertise:
            self._check_cluster()
        self._check_limits()
        self._check_alarms()
        if self.lease_s < 1:
            raise InvalidInput(f"--lease-s must be at least 1, not {self.lease_s:g}.")
        if self.archive and not self.archive.startswith(("file:///", "s3://")):
            raise InvalidInput(f"--archive must be file:///directory or s3://bucket/prefix, not {self.archive!r}.")
        if self.payload_store:
            self._check_payloads()
        if not 0 < self.address_part <= 1:
            raise InvalidInput(f"--address-share must be greater than 0 and at most 1, not {self.address_part:g}.")
        for host in filter(None, self.allowed_hosts.split(",")):
            if not _HOST_NAME.fullmatch(host):
                raise InvalidInput(
                    f"--allowed-hosts contains {host!r}, which is not valid. Use host names or addresses without "
                    "a port, separated by commas, for example queue.test."
                )
        if self.public_url and not self.public_url.startswith(("http://", "https://")):
            raise InvalidInput(f"--public-url must start with http:// or https://, not {self.public_url!r}.")

    def _check_alarms(self) -> None:
        if self.alarm_depth < 0 or self.alarm_unusual_factor < 0 or self.alarm_no_consumer_s < 0:
            raise InvalidInput("--alarm-depth, --alarm-unusual-factor and --alarm-no-consumer-s must not be negative.")
        if not 0 < self.disk_share < 1:
            raise InvalidInput(f"--alarm-disk-share must be greater than 0 and less than 1, not {self.disk_share:g}.")
        hooks = parse_webhooks(self.alarm_webhooks, self.alarm_webhook_hosts, self.alarm_webhook_private)
        if hooks and not self.alarm_webhook_secret_file:
            raise InvalidInput(
                "--alarm-webhooks needs --alarm-webhook-secret-file: webhooks are signed. Create a secret (openssl "
                "rand -hex 32), store it in a file, and give it to the receiver too."
            )

    def _check_payloads(self) -> None:
        try:
            check_url(self.payload_store)
        except InvalidInput as problem:
            raise InvalidInput(f"--payload-store: {problem.message}") from None
        if not 1024 <= self.payload_threshold <= MIB:
            raise InvalidInput(f"--payload-threshold must be 1024 to {MIB} bytes, not {self.payload_threshold}.")
        if not self.payload_threshold <= self.payload_bytes_max <= PAYLOAD_BYTES_MAX:
            raise InvalidInput(
                f"--payload-bytes-max must be {self.payload_threshold} (the threshold) to {PAYLOAD_BYTES_MAX}, not "
                f"{self.payload_bytes_max}."
            )
        if self.payload_sweep_s <= 0:
            raise InvalidInput(f"--payload-sweep-s must be greater than 0, not {self.payload_sweep_s:g}.")

    def _check_limits(self) -> None:
        if self.metrics_queues_max < 0 or self.series_queues_max < 1:
            raise InvalidInput("--metrics-queues-max must be at least 0, and --series-queues-max at least 1.")
        self._check_frames()

    def _check_frames(self) -> None:
        """See core/limits.py: a frame must have room for its current content plus one more command."""
        if not 1 <= self.frame_rows_max <= ROLL_ROWS:
            raise InvalidInput(f"--frame-rows-max must be 1 to {ROLL_ROWS}, not {self.frame_rows_max}.")
        if self.frame_bytes_max < 1 or self.pending_max < 1:
            raise InvalidInput("--frame-bytes-max and --pending-max must be at least 1.")
        if self.shard_limits.command_rows > COMMAND_ROWS_MAX:
            raise InvalidInput(
                f"With these shard limits, one command could write {self.shard_limits.command_rows} records, but "
                f"a frame has room for {COMMAND_ROWS_MAX}."
            )
        window_max = min(self.shard_limits.verdicts_max, (COMMAND_ROWS_MAX - STEP_ROWS) // ENTRY_ROWS)
        if not 1 <= self.window_entries <= window_max:
            raise InvalidInput(f"--window-entries must be 1 to {window_max}, not {self.window_entries}.")

    def _check_processes(self) -> None:
        if not 1 <= self.processes <= PROCESSES_MAX:
            raise InvalidInput(f"--processes must be 1 to {PROCESSES_MAX}, not {self.processes}.")
        if self.log_url or self.advertise:
            raise InvalidInput(
                "--processes cannot be used with --log-url: several processes can only share logs in the data "
                "directory. Start several nodes instead, each with its own --node, --advertise, --port and --data."
            )
        if self.other_shards:
            raise InvalidInput(
                "--processes cannot be used with --other-shards: logs in the data directory always have one "
                "replica. Use --log-url nats://… and several nodes instead of --processes."
            )
        if self.processes > self.shards:
            raise InvalidInput(
                f"--processes {self.processes} needs at least {self.processes} shards, because each process "
                f"serves at least one; --shards is {self.shards}. Use --shards {self.processes} or more, or fewer "
                "processes."
            )

    def _check_cluster(self) -> None:
        if not self.log_url:
            raise InvalidInput(
                "--advertise needs --log-url: the nodes of a cluster share a log. Set --log-url nats://…, or leave "
                "--advertise out."
            )
        if not self.advertise.startswith(("http://", "https://")):
            raise InvalidInput(f"--advertise must be a URL such as http://host:port, not {self.advertise!r}.")
        if not _has_host(self.advertise):
            raise InvalidInput(
                f"--advertise must have a host name or address, and a port of 1 to 65535 or none, such as "
                f"http://host:9324; {self.advertise!r} has not."
            )
        if self.tls_cert and not self.advertise.startswith("https://"):
            raise InvalidInput(
                f"--advertise must be an https:// URL because this node uses TLS (--tls-cert), not {self.advertise}."
            )
        if not _NODE_NAME.fullmatch(self.node):
            raise InvalidInput("A node of a cluster needs --node: a name of up to 64 letters, digits, - and _.")
        if not self.loopback and not self.cluster_secret_file:
            raise InvalidInput(
                f"--host {self.host} accepts connections from other machines, so nodes must sign their requests. "
                "Create a secret (openssl rand -hex 32), store it in a file on every node, and set "
                "--cluster-secret-file."
            )


def _has_host(url: str) -> bool:
    """Whether a URL has a host and a port that can be connected to."""
    try:
        parts = urlsplit(url)
        return parts.port != 0 and _ADVERTISED_HOST.fullmatch(parts.hostname or "") is not None
    except ValueError:
        return False


def _wait_ms(seconds: float | None, dev: bool) -> int:
    if seconds is None:
        return 0 if dev else 60_000
    return int(seconds * 1000)


def documented() -> list[tuple[Field[Any], str]]:
    """The settings in order, each with its documentation."""
    return [(entry, str(entry.metadata["doc"])) for entry in fields(Settings) if "doc" in entry.metadata]
