"""TLS for `baton serve`: the server certificate, reloaded on SIGHUP or when its files change, and an alarm before it
expires.

A copy of the certificate (never of its key) is stored in the data directory, so that commands on this machine can
verify the server whatever its host name is.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from batonq.api.http import HttpServer
from batonq.certificates import Served, check_reached, client_context, server_context
from batonq.cli.server import certificate_path
from batonq.errors import BatonError
from batonq.node import events
from batonq.node.alarms.kinds import CRITICAL, WARNING
from batonq.node.cluster.node import ClusterNode
from batonq.node.monitoring import metrics
from batonq.node.monitoring.exposition import one
from batonq.node.node import Node
from batonq.node.settings import Settings
from batonq.whole_file import replace_file

LOOK_EVERY_S = 30.0
EXPIRES_SOON_S = 14 * 86_400.0  # or a quarter of its validity, if that is shorter
EXPIRES_NOW_S = 3 * 86_400.0  # or a sixteenth
_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\r?\n?", re.DOTALL)


def load(settings: Settings) -> Served:
    """Load the certificate and key. Raises InvalidInput if clients or other nodes would refuse them."""
    served = server_context(settings.tls_cert, settings.tls_key)
    if settings.advertise:
        host = urlsplit(settings.advertise).hostname or ""
        check_reached(served.context, client_context(settings.peer_ca), host, settings.peer_ca)
    return served


@contextmanager
def renewed(node: Node, server: HttpServer, served: Served | None) -> Iterator[None]:
    """Within this context the certificate is reloaded when its files change, or on SIGHUP."""
    if served is None:
        yield
        return
    loop = asyncio.get_running_loop()
    certificate = Certificate(node, server, served)
    loop.add_signal_handler(signal.SIGHUP, certificate.reload_soon)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        certificate.close()


class Certificate:
    """The certificate of a running server."""

    def __init__(self, node: Node, server: HttpServer, served: Served) -> None:
        self._node = node
        self._server = server
        self._served = served
        self._reloading: asyncio.Task[None] | None = None
        self._look: asyncio.TimerHandle | None = None
        self._stamps = self._stamp()
        node.metrics.sources.append(lambda: [one(metrics.CERTIFICATE_EXPIRY, self._served.expires_s)])
        self._copy()
        self._watch()

    def reload_soon(self) -> None:
        """On SIGHUP. If the new certificate is not valid, an alarm is raised and the old one stays in use."""
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._reload())

    def _stamp(self) -> list[tuple[int, int]]:
        """A value that changes when the file does. Empty if the file is missing: it is being replaced."""
        settings = self._node.settings
        stamps = []
        for path in filter(None, (settings.tls_cert, settings.tls_key, settings.peer_ca)):
            try:
                found = os.stat(path)
            except OSError:
                continue
            stamps.append((found.st_ino, found.st_mtime_ns))
        return stamps

    async def _reload(self) -> None:
        settings = self._node.settings
        self._stamps = self._stamp()
        try:
            self._served = load(settings)
            if isinstance(self._node, ClusterNode):
                self._node.trust(client_context(settings.peer_ca))
        except BatonError as problem:
            text = f"The certificate was not reloaded: {problem.message}"
            events.warning("certificate_refused", text)
            self._node.alarms.put("certificate-refused", text)
            return
        await self._server.renew(self._served.context)
        self._node.alarms.clear("certificate-refused")
        self._copy()
        self._watch()
        events.info("certificate_reloaded", f"New connections use the certificate in {settings.tls_cert}")

    def _copy(self) -> None:
        with open(self._node.settings.tls_cert, "rb") as file:
            blocks = b"".join(_BLOCK.findall(file.read()))
        path = certificate_path(self._node.settings.data)
        try:
            replace_file(path, blocks, mode=0o644, suffix=str(os.getpid()))
        except OSError as problem:  # commands on this machine will not be able to verify the server
            events.warning("certificate_not_copied", f"{path} cannot be written: {problem.strerror}")

    def _watch(self) -> None:
        if self._look is not None:
            self._look.cancel()
        self._look = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self._watch)
        if self._stamp() != self._stamps:
            self.reload_soon()
        left_s = self._served.expires_s - self._node.time_s()
        valid_s = self._served.expires_s - self._served.begins_s
        if left_s > min(EXPIRES_SOON_S, valid_s / 4):
            self._node.alarms.clear("certificate-expiry")
            return
        path = self._node.settings.tls_cert
        text = (
            f"The certificate in {path} expires in {max(0, int(left_s // 3_600))} hours. Replace it."
            if left_s > 0
            else f"The certificate in {path} has expired, and clients refuse it. Replace it."
        )
        soon = left_s > min(EXPIRES_NOW_S, valid_s / 16)
        self._node.alarms.put("certificate-expiry", text, severity=WARNING if soon else CRITICAL)

    def close(self) -> None:
        if self._look is not None:
            self._look.cancel()
        if self._reloading is not None:
            self._reloading.cancel()
