"""The URL of the NATS servers that keep logs, and its options.

    nats://user:password@host1:4222,host2:4222/name?replicas=3&monitor=http://host1:8222&monitor=http://host2:8222

`name` separates several Baton clusters on one NATS cluster (default `baton`). `replicas` is the number of servers that
keep each log. `monitor`, once per server, is its monitoring URL, because only there a client can see whether the server
syncs. `unsafe=yes` accepts servers with any settings. `max_bytes` limits the log of one shard.

Credentials: `user:password@` or, without a password, a token; better, in files that only the service can read,
`user@…?password_file=…`, `token_file`, `credentials` (a JWT with its seed, as `nsc` creates it) or `nkey` (a seed). The
scheme `tls` requires TLS, with `tls_ca`, `tls_cert` and `tls_key` as files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, unquote, urlsplit

from batonq.errors import InvalidInput

SCHEMES = ("nats", "tls")
REPLICAS = (1, 3, 5)
_NAME = re.compile(r"[a-z0-9_-]{1,40}")
_FILES = ("password_file", "token_file", "credentials", "nkey", "tls_ca", "tls_cert", "tls_key")
_OPTIONS = {"replicas", "monitor", "unsafe", "max_bytes", *_FILES}


@dataclass(slots=True, frozen=True)
class NatsAddress:
    servers: tuple[str, ...]  # host:port
    name: str = "baton"
    user: str = ""
    password: str = ""
    token: str = ""
    replicas: int = 3
    monitors: tuple[str, ...] = ()
    unsafe: bool = False
    max_bytes: int = -1
    password_file: str = ""
    token_file: str = ""
    credentials: str = ""
    nkey: str = ""
    tls: bool = False
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    @property
    def shown(self) -> str:
        return f"{'tls' if self.tls else 'nats'}://{','.join(self.servers)}/{self.name}"


def parse(url: str) -> NatsAddress:
    """Raises InvalidInput, which says what is wrong."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise InvalidInput("The URL of a NATS log must begin with nats:// or tls://.")
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    servers = tuple(host if ":" in host else f"{host}:4222" for host in hosts.split(",") if host)
    if not servers:
        raise InvalidInput("The URL of a NATS log has no server. Use nats://host:4222/name.")
    options = parse_qs(parts.query, keep_blank_values=True)
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise InvalidInput(
            f"The log's URL has an unknown option {unknown[0]!r}. The options are {', '.join(sorted(_OPTIONS))}."
        )
    name = parts.path.strip("/") or "baton"
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"The name in the log's URL must be lower-case letters, digits, _ and -, not {name!r}.")
    last = {key: values[-1] for key, values in options.items()}
    files = {key: last.get(key, "") for key in _FILES}
    named = bool(password or files["password_file"])
    ways = (bool(login), *(bool(files[key]) for key in ("token_file", "credentials", "nkey")))
    if sum(ways) > 1 or (password and files["password_file"]) or (files["password_file"] and not user):
        raise InvalidInput(
            "The log's URL has several kinds of credentials, or a password without a user. Use one of "
            "user:password@, user@ with password_file, token@, token_file, credentials and nkey."
        )
    if parts.scheme != "tls" and any(files[key] for key in ("tls_ca", "tls_cert", "tls_key")):
        raise InvalidInput("The TLS files in the log's URL need the scheme tls:// instead of nats://.")
    return NatsAddress(
        servers=servers,
        name=name,
        user=unquote(user) if named else "",
        password=unquote(password),
        token="" if named else unquote(user),
        replicas=_choice("replicas", last.get("replicas", "3"), REPLICAS),
        monitors=tuple(monitor.rstrip("/") for monitor in options.get("monitor", ())),
        unsafe=last.get("unsafe", "no") == "yes",
        max_bytes=_positive("max_bytes", last["max_bytes"]) if "max_bytes" in last else -1,
        tls=parts.scheme == "tls",
        **files,
    )


def _choice(option: str, text: str, allowed: tuple[int, ...]) -> int:
    if text not in map(str, allowed):
        raise InvalidInput(f"{option} in the log's URL must be one of {', '.join(map(str, allowed))}, not {text!r}.")
    return int(text)


def _positive(option: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise InvalidInput(f"{option} in the log's URL must be a positive integer, not {text!r}.")
    return int(text)
