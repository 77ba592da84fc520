"""https: both clients check the server's certificate, and use the one they are given."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from pathlib import Path

import pytest

from batonq.errors import Unavailable
from tests.client.support import WAIT_S, Asked, ScriptedServer, answer, connected, run

CERTIFICATE = Path(__file__).parent / "tls" / "localhost.pem"


class TlsServer(ScriptedServer):
    """The scripted server behind TLS."""

    async def listen(self) -> asyncio.Server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        return await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=context)

    @property
    def url(self) -> str:
        return f"https://localhost:{self.port}"


async def _stats(asked: Asked) -> bytes:
    return answer(200, {"visible": 3})


def test_a_trusted_certificate(form: str) -> None:
    async def body() -> None:
        with TlsServer(_stats) as server:
            trust = ssl.create_default_context(cafile=str(CERTIFICATE))
            async with connected(form, server.url, ssl=trust) as baton:
                for _ in range(5):
                    assert (await baton.queue("q").stats()).visible == 3
            assert len(server.asked) == 5
            assert server.connections <= 2

    run(body())


def test_a_certificate_that_nobody_vouches_for_is_refused(form: str) -> None:
    handshakes: list[Exception] = []

    def accept(listener: socket.socket, context: ssl.SSLContext) -> None:
        connection, _ = listener.accept()
        try:
            context.wrap_socket(connection, server_side=True).close()
        except OSError as problem:
            handshakes.append(problem)
            connection.close()

    async def body() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            thread = threading.Thread(target=accept, args=(listener, context))
            thread.start()
            url = f"https://localhost:{listener.getsockname()[1]}"
            async with connected(form, url, retries=0) as baton:
                with pytest.raises(Unavailable, match="certificate"):
                    await baton.queue("q").stats()
            thread.join(WAIT_S)
            assert len(handshakes) == 1

    run(body())
