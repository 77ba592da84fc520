"""Connecting to NATS: credentials, TLS, and helpful errors when the connection is refused.

Secrets are read from their files at each connection, so a changed file takes effect at the next one.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
import ssl
from collections.abc import Callable
from random import sample
from typing import Any

import nats.errors
from nats.aio.client import Srv

from batonq.certificates import client_context
from batonq.errors import AccessDenied, BatonError, InvalidInput
from batonq.log.backend import Unreachable
from batonq.log.jetstream.address import NatsAddress
from batonq.log.jetstream.client import LongClient

CONNECT_ONE_S = 3
RECONNECT_WAIT_S = 0.1
PING_S = 5  # a server that is silent for two of them is abandoned for another
LOOK_S = 0.05
_SHOWN_OUT = ("authorization violation", "authentication expired", "authentication revoked")
_REFUSED = ("authorization", "authentication", "permissions violation")
_CREDENTIALS = re.compile(r"-----BEGIN NATS USER JWT-----.*-----BEGIN USER NKEY SEED-----\s*([A-Z0-9]+)", re.DOTALL)
_LOGIN = "user and password, password_file, token_file, credentials or nkey in the log's URL"


class PlainServer(nats.errors.Error):
    """The server does not offer TLS."""


class NodeClient(LongClient):
    """Reconnects after the server closed the connection, for example because its password was changed or its
    credentials expired. `stays`: only with the given servers, even if they announce others.
    """

    def __init__(self, stays: bool = False) -> None:
        super().__init__()
        self._stays = stays

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if self._stays:
            info = {name: value for name, value in info.items() if name != "connect_urls"}
        await super()._process_info(info, initial_connection)

    async def _process_err(self, err_msg: str) -> None:
        if any(word in err_msg.lower() for word in _SHOWN_OUT):
            await self._process_op_err(nats.errors.AuthorizationError())
        else:
            await super()._process_err(err_msg)

    async def _connect_to_server(self, s: Srv) -> None:
        if self._transport:
            # Of a refused attempt: the client would leave it open.
            self._transport.close()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)


class TlsClient(NodeClient):
    """Sends nothing to a server that does not use TLS, not even its name."""

    def _connect_command(self) -> bytes:
        if not self._server_info.get("tls_required"):
            raise PlainServer
        return super()._connect_command()


async def connect(address: NatsAddress, connect_s: float, *, stays: bool = False) -> LongClient:
    """Raises InvalidInput and AccessDenied for errors that need a change, Unreachable for the rest."""
    client = TlsClient(stays) if address.tls else NodeClient(stays)
    problems: list[Exception] = []  # of the attempts so far; later errors are raised to the caller of a request

    async def heard(problem: Exception) -> None:
        if not client.is_connected and len(problems) < 10 * len(address.servers):
            problems.append(problem)

    servers = sample(address.servers, len(address.servers))
    connecting = asyncio.ensure_future(
        client.connect(
            [f"{'tls' if address.tls else 'nats'}://{server}" for server in servers],
            name="baton",
            connect_timeout=CONNECT_ONE_S,
            max_reconnect_attempts=-1,
            dont_randomize=True,  # in turn, so that the next attempt uses another one
            ping_interval=PING_S,
            error_cb=heard,
            **_options(address),
        )
    )
    deadline_s = asyncio.get_running_loop().time() + connect_s
    try:
        while not connecting.done():
            await asyncio.wait((connecting,), timeout=LOOK_S)
            late = asyncio.get_running_loop().time() > deadline_s
            for_good = [told for problem in problems if (told := _told(address, problem)) is not None]
            if for_good and (late or len(for_good) >= len(address.servers)):
                raise for_good[-1]
            if late:
                raise Unreachable(f"{address.shown}: {_text(problems[-1]) if problems else 'no answer'}")
        connecting.result()
    except (nats.errors.Error, OSError, TimeoutError) as problem:
        raise _told(address, problem) or Unreachable(f"{address.shown}: {_text(problem)}") from None
    finally:
        if not connecting.done():
            connecting.cancel()
            await asyncio.wait((connecting,))
            await client.close()
    return client


def _options(address: NatsAddress) -> dict[str, Any]:
    options: dict[str, Any] = {"reconnect_time_wait": RECONNECT_WAIT_S}
    if address.tls:
        options["tls"] = tls_context(address)
    if address.user:
        options.update(user=address.user, password=_secret(address.password_file, address.password))
    elif address.token or address.token_file:
        options["token"] = _secret(address.token_file, address.token)
    if address.credentials or address.nkey:
        if importlib.util.find_spec("nkeys") is None:
            raise InvalidInput("Credentials and nkeys for NATS need the package nkeys: pip install 'batonq[cluster]'.")
        _check_seed(address)
        options["user_credentials" if address.credentials else "nkeys_seed"] = address.credentials or address.nkey
    return options


def _check_seed(address: NatsAddress) -> None:
    import nkeys

    text = read_secret(address.credentials or address.nkey)
    if address.credentials and not _CREDENTIALS.search(text):
        raise InvalidInput(
            f"{address.credentials} is not a NATS credentials file. It must contain a JWT and a seed, as "
            "created by nsc."
        )
    try:
        nkeys.from_seed(bytearray((text if address.nkey else _CREDENTIALS.findall(text)[-1]).encode())).wipe()
    except nkeys.NkeysError:
        raise InvalidInput(
            f"{address.credentials or address.nkey} does not contain the seed of a NATS user (SU…)."
        ) from None


def tls_context(address: NatsAddress) -> ssl.SSLContext:
    """Raises InvalidInput for unusable files."""
    return client_context(address.tls_ca, address.tls_cert, address.tls_key)


def _secret(path: str, given: str) -> str | Callable[[], str]:
    if not path:
        return given
    read_secret(path)
    return lambda: read_secret(path)


def read_secret(path: str) -> str:
    """Raises InvalidInput."""
    try:
        with open(path, encoding="utf-8") as file:
            secret = file.read().strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(f"The secret for NATS cannot be read from {path}: {_text(problem)}") from None
    if not secret:
        raise InvalidInput(f"The file {path}, which should contain the secret for NATS, is empty.")
    return secret


def _told(address: NatsAddress, problem: BaseException) -> BatonError | None:
    """The error that needs a change; None if a retry may succeed."""
    text = _text(problem)
    if isinstance(problem, BatonError):
        return problem
    if isinstance(problem, PlainServer):
        return InvalidInput(
            f"{address.shown} does not offer TLS, so nothing was sent to it. Add a tls block to the "
            "configuration of every server, or use nats:// in the log's URL."
        )
    if isinstance(problem, ssl.SSLCertVerificationError):
        return InvalidInput(
            f"The certificate of {address.shown} is not trusted ({problem.verify_message}). Set tls_ca=FILE "
            "in the log's URL to the CA that signed it, and use the server name that is in the certificate."
        )
    if isinstance(problem, ssl.SSLError) and "alert" in text.lower():
        return InvalidInput(
            f"{address.shown} refused this node's certificate, or requires one ({text}). Set a certificate "
            "that it trusts in the log's URL: tls_cert=FILE&tls_key=FILE."
        )
    if any(word in text.lower() for word in _REFUSED):
        return AccessDenied(f"{address.shown} refused the login of this node ({text}). Check {_LOGIN}.")
    return None


def _text(problem: BaseException) -> str:
    if isinstance(problem, OSError) and problem.strerror:
        return problem.strerror
    return str(problem) or type(problem).__name__
