"""`baton serve` with TLS: every client talks to it, a new certificate is taken without a stop, a bad one is refused."""

from __future__ import annotations

import asyncio
import http.client
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import boto3
import pytest

import batonq
from batonq.api.http import HttpServer, Request, Response
from batonq.certificates import check_reached, client_context, pinned_context, server_context
from batonq.cli.tls import Certificate, load
from batonq.errors import InvalidInput
from batonq.node.alarms.book import AlarmBook
from batonq.node.monitoring.exposition import one
from batonq.node.monitoring.metrics import CERTIFICATE_EXPIRY
from batonq.node.node import Node
from batonq.node.settings import Settings
from batonq.pipeline.reading.remote import RemoteHistory
from tests.support.authority import Authority, Signed
from tests.system.process import ANSWER_S, STOP_TIMEOUT_S, ServerProcess, baton


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def serial_shown(port: int) -> str:
    """Of the certificate that a new connection gets."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as line, context.wrap_socket(line) as secured:
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return ssl.DER_cert_to_PEM_cert(shown)


def test_no_version_older_than_1_2_is_spoken(authority: Authority) -> None:
    """Whatever the system's library would allow."""
    signed = authority.sign("versions", "localhost")
    served = server_context(str(signed.certificate), str(signed.key))
    for context in (served.context, client_context(), pinned_context(str(signed.certificate))):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_every_client_talks_tls_and_certificates_change_without_a_stop(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = authority.sign("first", "localhost", "127.0.0.1")
    second = authority.sign("second", "localhost", "127.0.0.1")
    used = Signed(tmp_path / "used.pem", tmp_path / "used-key.pem")
    shutil.copy(first.certificate, used.certificate)
    shutil.copy(first.key, used.key)
    with ServerProcess(tmp_path / "data", *used.flags) as server:
        port = urlsplit(server.url).port
        assert server.url == f"https://127.0.0.1:{port}" and port is not None

        sqs = boto3.client(
            "sqs",
            endpoint_url=server.url,
            verify=str(authority.file),
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
        )
        queue = sqs.create_queue(QueueName="work")["QueueUrl"]
        assert queue.startswith("https://127.0.0.1"), "as the client came, so it is told"
        sqs.send_message(QueueUrl=queue, MessageBody="hidden on its way")

        trust = ssl.create_default_context(cafile=str(authority.file))
        asyncio.run(_client_receives(f"https://localhost:{port}", trust))
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))  # whatever is not told otherwise trusts these
        asked = RemoteHistory(server.url)
        assert [found.shard for found in asked.shards()] == [0] and list(asked.frames(0, 1))
        assert baton("peek", "work", "--url", server.url).returncode == 0
        monkeypatch.delenv("SSL_CERT_FILE")
        assert baton("peek", "work", "--url", server.url).returncode == 4
        answer = _curl(f"https://localhost:{port}/readyz", authority.file)
        assert (answer.returncode, answer.stdout) == (0, "ok\n")
        assert baton("keys", "list", "--data", str(tmp_path / "data")).returncode == 0, "it finds the server"
        other = Authority(tmp_path / "other")
        assert _curl(f"https://localhost:{port}/readyz", other.file).returncode != 0

        kept = http.client.HTTPSConnection("localhost", port, timeout=ANSWER_S, context=trust)
        kept.request("GET", "/readyz")
        kept.getresponse().read()
        before = serial_shown(port)
        shutil.copy(second.certificate, used.certificate)  # and not the key
        server.process.send_signal(signal.SIGHUP)
        _wait_event(server, "certificate_refused")
        assert serial_shown(port) == before
        shutil.copy(second.key, used.key)
        server.process.send_signal(signal.SIGHUP)
        _wait_event(server, "certificate_reloaded")
        assert serial_shown(port) == second.certificate.read_text() != before
        kept.request("GET", "/livez")
        assert kept.getresponse().read() == b"ok\n", "a connection that was open goes on"
        kept.close()
        assert baton("keys", "list", "--data", str(tmp_path / "data")).returncode == 0
        sqs.close()
        assert server.terminate() == 0


def test_all_processes_show_the_certificate_and_take_a_new_one(tmp_path: Path, authority: Authority) -> None:
    signed = [authority.sign(name, "localhost", "127.0.0.1") for name in ("third", "fourth")]
    used = Signed(tmp_path / "used.pem", tmp_path / "used-key.pem")
    shutil.copy(signed[0].certificate, used.certificate)
    shutil.copy(signed[0].key, used.key)
    with ServerProcess(tmp_path / "data", *used.flags, "--processes", "2") as server:
        port = urlsplit(server.url).port
        assert server.url == f"https://127.0.0.1:{port}" and port is not None
        assert {serial_shown(port) for _ in range(20)} == {signed[0].certificate.read_text()}
        shutil.copy(signed[1].key, used.key)
        shutil.copy(signed[1].certificate, used.certificate)
        server.process.send_signal(signal.SIGHUP)
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        while {serial_shown(port) for _ in range(20)} != {signed[1].certificate.read_text()}:
            assert time.monotonic() < deadline_s
        assert baton("keys", "list", "--data", str(tmp_path / "data")).returncode == 0, "it finds the server"
        assert server.terminate() == 0


async def _client_receives(url: str, trust: ssl.SSLContext) -> None:
    async with batonq.Baton(url, ssl=trust) as client:
        (message,) = await client.queue("work").receive()
        assert message.body == "hidden on its way"
        await message.ack()


def _curl(url: str, trusted: Path) -> subprocess.CompletedProcess[str]:
    command = ["curl", "--silent", "--show-error", "--max-time", str(ANSWER_S), "--cacert", str(trusted), url]
    return subprocess.run(command, capture_output=True, text=True, timeout=STOP_TIMEOUT_S, check=False)


def _wait_event(server: ServerProcess, name: str) -> None:
    while True:
        event = server.next_event()
        assert event is not None, server.events
        if event["event"] == name:
            return


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda one, other: (one.certificate.with_name("none.pem"), one.key), "cannot be read from"),
        (lambda one, other: (one.certificate, other.key), "does not match the certificate"),
        (lambda one, other: (one.key, one.key), "the file has no PEM block"),
        (lambda one, other: (one.certificate, one.certificate), "the file has no PEM block"),
    ],
    ids=["missing", "another's key", "no certificate", "no key"],
)
def test_files_that_do_not_fit_are_told_at_the_start(
    tmp_path: Path, authority: Authority, damage: Callable[[Signed, Signed], tuple[Path, Path]], said: str
) -> None:
    certificate, key = damage(authority.sign("one", "localhost"), authority.sign("other", "localhost"))
    with pytest.raises(InvalidInput, match=said):
        server_context(str(certificate), str(key))


@pytest.mark.parametrize(
    ("given", "said"), [({"first_day": 3}, "not valid yet"), ({"passphrase": b"secret"}, "is encrypted")]
)
def test_what_nobody_could_use_is_told_too(authority: Authority, given: dict[str, Any], said: str) -> None:
    made = authority.sign("unused", "localhost", **given)
    with pytest.raises(InvalidInput, match=said):
        server_context(str(made.certificate), str(made.key))


def test_a_node_whose_certificate_others_would_refuse_is_told_why(tmp_path: Path, authority: Authority) -> None:
    made = authority.sign("node", "n0.example")
    context, begins_s, expires_s = server_context(str(made.certificate), str(made.key))
    assert begins_s < time.time() < expires_s
    trusted = str(authority.file)
    check_reached(context, client_context(trusted), "n0.example", trusted)
    with pytest.raises(InvalidInput, match=r"add n1\.example"):
        check_reached(context, client_context(trusted), "n1.example", trusted)
    other = str(Authority(tmp_path, "other").file)
    with pytest.raises(InvalidInput, match="--peer-ca"):
        check_reached(context, client_context(other), "n0.example", other)


def test_a_certificate_that_clients_would_refuse_is_refused_at_the_start(tmp_path: Path, authority: Authority) -> None:
    old = authority.sign("old", "localhost", first_day=-9, last_day=-1)
    refused = baton("serve", "--port", "0", "--data", str(tmp_path / "data"), *old.flags)
    assert refused.returncode == 1 and "has expired. Replace it" in refused.stderr
    assert not (tmp_path / "data").exists()


class Looked:
    """As much of a node as a certificate needs, with a clock that is set by hand."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now_s = time.time()
        self.alarms = AlarmBook(lambda: int(self.now_s * 1000), 10)
        self.metrics = SimpleNamespace(sources=[])

    def time_s(self) -> float:
        return self.now_s


def test_files_that_change_are_taken_and_an_alarm_tells_of_the_end(tmp_path: Path, authority: Authority) -> None:
    used = Authority(tmp_path).sign("used", "localhost")
    node = Looked(Settings(data=str(tmp_path), tls_cert=str(used.certificate), tls_key=str(used.key)))

    async def main() -> None:
        async def refuse(request: Request) -> Response:
            raise AssertionError

        served = load(node.settings)
        server = HttpServer(lambda request: refuse)
        await server.start("127.0.0.1", 0, ssl=served.context)
        certificate = Certificate(cast(Node, node), server, served)
        assert not node.alarms.active()
        (told,) = node.metrics.sources
        assert told() == [one(CERTIFICATE_EXPIRY, served.expires_s)]
        for days, severity in ((17, "warning"), (21, "critical")):  # of 21, of which one has passed
            node.now_s = time.time() + days * 86_400
            certificate._watch()
            assert [alarm.severity for alarm in node.alarms.active()] == [severity]
        other = authority.sign("next", "localhost", last_day=90)
        shutil.copy(other.certificate, used.certificate)
        shutil.copy(other.key, used.key)
        certificate._watch()
        assert certificate._reloading is not None
        await certificate._reloading
        assert not node.alarms.active()
        (family,) = told()
        assert family.samples[0][1] > served.expires_s, "of the certificate that is served now"
        shown = await asyncio.to_thread(serial_shown, server.port)
        assert shown == other.certificate.read_text() == (tmp_path / "certificate.pem").read_text()
        certificate.close()
        await server.stop(1)

    asyncio.run(main())
