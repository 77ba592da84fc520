"""Checks that the servers are configured to keep acknowledged data, and says what to change if not."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Iterable
from typing import Any, NamedTuple

from nats.js.api import DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from batonq.log.backend import Unreachable, Unsafe

VERSION_MIN = (2, 11)  # leases need a time to live per message
PAYLOAD_BYTES_MIN = 8 << 20
MONITOR_TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 4 << 20


class Server(NamedTuple):
    """A server's settings, from its monitoring URL."""

    name: str
    version: str
    max_payload: int
    jetstream: bool
    sync_always: bool


def fetch_server(monitor: str, context: ssl.SSLContext | None = None) -> Server:
    """Ask one monitoring URL, with `context` if it is https. Blocks. Raises Unreachable."""
    try:
        with urllib.request.urlopen(f"{monitor}/varz", timeout=MONITOR_TIMEOUT_S, context=context) as answer:
            told = json.loads(answer.read(ANSWER_BYTES_MAX))
        return server_of(told)
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise Unreachable(f"The monitoring URL {monitor} gave no usable answer: {problem}") from None


def server_of(told: dict[str, Any]) -> Server:
    config = told.get("jetstream", {}).get("config")
    return Server(
        told["server_name"],
        told["version"],
        told["max_payload"],
        config is not None,
        bool(config and config.get("sync_always")),
    )


def check_version(version: str, where: str) -> None:
    numbers = tuple(int(part) for part in version.partition("-")[0].split(".")[:2])
    if numbers < VERSION_MIN:
        needed = ".".join(map(str, VERSION_MIN))
        raise Unsafe(f"{where} runs nats-server {version}; the log needs {needed} or newer on every server.")


def check_payload(max_payload: int, where: str) -> None:
    if max_payload < PAYLOAD_BYTES_MIN:
        raise Unsafe(
            f"{where} accepts messages of up to {max_payload} bytes, but a frame may need "
            f"{PAYLOAD_BYTES_MIN}. Set max_payload: {PAYLOAD_BYTES_MIN} in the configuration of every server."
        )


def check_servers(servers: Iterable[Server]) -> None:
    for server in servers:
        where = f"NATS server {server.name}"
        check_version(server.version, where)
        check_payload(server.max_payload, where)
        if not server.jetstream:
            raise Unsafe(f"{where} does not run JetStream. Add a jetstream block to its configuration.")
        if not server.sync_always:
            raise Unsafe(
                f"{where} syncs only at intervals, so a power failure could lose acknowledged messages. Set "
                "sync_interval: always in the jetstream block of every server, or add unsafe=yes to the "
                "log's URL to accept that."
            )


def check_known(keepers: Iterable[str], known: Iterable[str], stream: str, away: int = 0) -> None:
    """Every server that keeps a replica must be one whose settings were checked, or one that is down."""
    missing = sorted(set(keepers) - set(known))
    if len(missing) > away:
        raise Unsafe(
            f"Server {missing[0]} keeps a replica of stream {stream}, but none of the monitoring URLs belongs "
            "to it. Add the monitoring URL of every server to the log's URL: monitor=http://host:8222."
        )


def check_stream(config: StreamConfig, wanted: StreamConfig) -> None:
    """An existing stream must keep everything, in one place, for this log only."""
    what = f"Stream {wanted.name}"
    if config.subjects != wanted.subjects or config.mirror or config.sources:
        raise Unsafe(
            f"{what} accepts messages from other subjects than {wanted.subjects}. Use another cluster name in the "
            "log's URL."
        )
    if (config.num_replicas or 1) != (wanted.num_replicas or 1):
        raise Unsafe(
            f"{what} has {config.num_replicas} replicas instead of {wanted.num_replicas}. Change it with "
            f"`nats stream edit {wanted.name} --replicas {wanted.num_replicas}`; if all streams have "
            f"{config.num_replicas}, set replicas={config.num_replicas} in the log's URL."
        )
    lossy = {
        "storage": config.storage != StorageType.FILE,
        "retention": config.retention != RetentionPolicy.LIMITS,
        "discard": config.discard != DiscardPolicy.NEW,
        "max_age": bool(config.max_age),
        "max_msgs": (config.max_msgs or -1) > 0,
        "max_msgs_per_subject": (config.max_msgs_per_subject or -1) != (wanted.max_msgs_per_subject or -1),
        "no_ack": config.no_ack,
        "sealed": config.sealed,
        "deny_purge": config.deny_purge,
        "persist_mode": str(config.persist_mode or "default").endswith("async"),
    }
    for setting, wrong in lossy.items():
        if wrong:
            raise Unsafe(
                f"{what} has {setting} = {getattr(config, setting)}, so it could lose messages or refuse "
                "valid ones. It was not created by Baton. Use another cluster name in the log's URL, or "
                "remove the stream."
            )
