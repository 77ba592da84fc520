"""TLS of `baton serve`: the certificate that it shows, taken anew on SIGHUP, and an alarm before it expires.

A copy of the certificate (never of its key) lies in the data directory, so that commands on this machine know the
server whatever name it is for.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Callable
from urllib.parse import urlsplit

from batonq.api.http import HttpServer
from batonq.certificates import check_reached, client_context, server_context
from batonq.cli.server import certificate_path
from batonq.errors import BatonError
from batonq.node import events
from batonq.node.cluster.node import ClusterNode
from batonq.node.node import Node
from batonq.node.settings import Settings

LOOK_EVERY_S = 3_600.0
EXPIRES_SOON_S = 14 * 86_400.0
ALARM = "certificate"
_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\r?\n?", re.DOTALL)


def load(settings: Settings) -> tuple[ssl.SSLContext, float]:
    """What to serve with, and when that expires. Raises InvalidInput when clients or other nodes would refuse it."""
    context, expires_s = server_context(settings.tls_cert, settings.tls_key)
    if settings.advertise:
        host = urlsplit(settings.advertise).hostname or ""
        check_reached(context, client_context(settings.peer_ca), host, settings.peer_ca)
    return context, expires_s


class Certificate:
    """The server's own, while it serves."""

    def __init__(self, node: Node, server: HttpServer, expires_s: float, wall_s: Callable[[], float]) -> None:
        self._node = node
        self._server = server
        self._wall_s = wall_s
        self._expires_s = expires_s
        self._reloading: asyncio.Task[None] | None = None
        self._look: asyncio.TimerHandle | None = None
        self._copy()
        self._watch()

    def reload_soon(self) -> None:
        """On SIGHUP. What cannot be used is told by an alarm, and the one before stays."""
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._reload())

    async def _reload(self) -> None:
        settings = self._node.settings
        try:
            context, self._expires_s = load(settings)
            if isinstance(self._node, ClusterNode):
                self._node.trust(client_context(settings.peer_ca))
        except BatonError as problem:
            text = f"The certificate was not changed: {problem.message}"
            events.warning("certificate_refused", text)
            self._node.alarms.put(f"{ALARM}-refused", text, severity="error")
            return
        await self._server.renew(context)
        self._node.alarms.clear(f"{ALARM}-refused")
        self._copy()
        self._watch()
        events.info("certificate_reloaded", f"New connections get the certificate in {settings.tls_cert}")

    def _copy(self) -> None:
        with open(self._node.settings.tls_cert, "rb") as file:
            blocks = b"".join(_BLOCK.findall(file.read()))
        path = certificate_path(self._node.settings.data)
        with open(f"{path}.new", "wb") as file:
            file.write(blocks)
        os.replace(f"{path}.new", path)

    def _watch(self) -> None:
        if self._look is not None:
            self._look.cancel()
        self._look = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._watch)
        left_s = self._expires_s - self._wall_s()
        if left_s > EXPIRES_SOON_S:
            self._node.alarms.clear(ALARM)
            return
        path = self._node.settings.tls_cert
        text = (
            f"The certificate in {path} expires in {max(0, int(left_s // 3_600))} hours: replace it and send SIGHUP."
            if left_s > 0
            else f"The certificate in {path} has expired: clients refuse it. Replace it and send SIGHUP."
        )
        self._node.alarms.put(ALARM, text, severity="warning" if left_s > 0 else "critical")

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
        if self._reloading is not None:
            self._reloading.cancel()
