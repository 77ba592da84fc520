"""The address of the NATS servers that keep logs, and what is asked of them.

    nats://user:password@host1:4222,host2:4222/name?replicas=3&monitor=http://host1:8222&monitor=http://host2:8222

`name` keeps several Baton clusters on one NATS apart (default `baton`). `replicas` is how many servers keep each log.
`monitor`, once for each server, is where it tells its settings, because only there a client can see whether it syncs.
`unsafe=yes` takes servers whatever they are set to. `max_bytes` limits the log of one shard.

Who this is: `user:password@` or, without a password, a token; better, in files that only the service reads,
`user@…?password_file=…`, `token_file`, `credentials` (a JWT with its seed, as `nsc` makes it) or `nkey` (a seed).
The scheme `tls` asks for TLS, with `tls_ca`, `tls_cert` and `tls_key` as files.
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
        raise InvalidInput("The address of a NATS log begins with nats:// or tls://.")
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    servers = tuple(host if ":" in host else f"{host}:4222" for host in hosts.split(",") if host)
    if not servers:
        raise InvalidInput("The address of a NATS log names no server: nats://host:4222/name.")
    options = parse_qs(parts.query, keep_blank_values=True)
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise InvalidInput(f"The log's address has an option {unknown[0]!r}; there are {', '.join(sorted(_OPTIONS))}.")
    name = parts.path.strip("/") or "baton"
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"The name in the log's address must be lower-case letters, digits, _ and -, not {name!r}.")
    last = {key: values[-1] for key, values in options.items()}
    files = {key: last.get(key, "") for key in _FILES}
    named = bool(password or files["password_file"])
    ways = (bool(login), *(bool(files[key]) for key in ("token_file", "credentials", "nkey")))
    if sum(ways) > 1 or (password and files["password_file"]) or (files["password_file"] and not user):
        raise InvalidInput(
            "The log's address says in several ways who this is, or gives a password to nobody: use one of "
            "user:password@, user@ with password_file, token@, token_file, credentials and nkey."
        )
    if parts.scheme != "tls" and any(files[key] for key in ("tls_ca", "tls_cert", "tls_key")):
        raise InvalidInput("Files for TLS in the log's address need the scheme tls:// instead of nats://.")
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
        raise InvalidInput(
            f"{option} in the log's address must be one of {', '.join(map(str, allowed))}, not {text!r}."
        )
    return int(text)


def _positive(option: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise InvalidInput(f"{option} in the log's address must be a positive whole number, not {text!r}.")
    return int(text)
