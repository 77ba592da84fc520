"""NATS servers that ask who somebody is, in each way they can: the right one gets in, the wrong one is told why not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from batonq.errors import AccessDenied, BatonError, InvalidInput, Unavailable
from batonq.log.jetstream.address import parse
from batonq.log.jetstream.store import JetStreamStore
from tests.support.authority import Authority
from tests.support.nats import NatsServers, nats_servers
from tests.support.nkeys import Operator, user


def get_in(log: str) -> int:
    """Make a shard's stream there, as a node would; gives the cluster's id."""

    async def run() -> int:
        store = await JetStreamStore.open(parse(log), connect_s=60)
        try:
            await store.backend(0)
            return store.cluster
        finally:
            await store.close()

    return asyncio.run(run())


def refused(log: str, kind: type[BatonError], said: str) -> None:
    with pytest.raises(kind, match=said) as caught:
        get_in(log)
    assert "hush" not in str(caught.value)


class Asked:
    """The address of a server, as somebody who says who he is in this way has it."""

    def __init__(self, servers: NatsServers, scheme: str = "nats") -> None:
        self._servers = servers
        self._scheme = scheme

    def __call__(self, login: str = "", options: str = "") -> str:
        at = f"{login}@" if login else ""
        host = f"localhost:{self._servers.ports[0]}"
        more = f"&{options}" if options else ""
        return f"{self._scheme}://{at}{host}/test?replicas=1&{self._servers.monitoring}{more}"


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / f"file-{len(list(tmp_path.iterdir()))}"
        path.write_text(text + "\n")
        return str(path)

    return write


def test_a_user_with_a_password(file: Callable[[str], str]) -> None:
    with nats_servers(1, more='authorization { user: baton, password: "hush:1" }') as servers:
        at = Asked(servers)
        assert get_in(at("baton:hush%3A1")) == get_in(at("baton", f"password_file={file('hush:1')}"))
        for wrong in (at("baton:hush2"), at("baton", f"password_file={file('hush2')}"), at("hush3"), at()):
            refused(wrong, AccessDenied, "refused the login of this node.*password_file")
        refused(at("baton", "password_file=/nowhere"), InvalidInput, "cannot be read from /nowhere")
        refused(at("baton", f"password_file={file('')}"), InvalidInput, "is empty")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - any condition
            await asyncio.sleep(0.01)


def test_a_password_that_is_changed_while_a_node_is_there(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("hush1")

    async def run(servers: NatsServers) -> None:
        store = await JetStreamStore.open(parse(Asked(servers)("baton", f"password_file={password}")))
        try:
            assert not (await (await store.backend(0)).bounds()).next > 1
            servers.reload(0, "hush1", "hush2")
            await until(lambda: not store._client.is_connected)
            with pytest.raises(Unavailable):
                await store._bucket.get("cluster")
            password.write_text("hush2")
            await until(lambda: store._client.is_connected)
            assert (await store._bucket.get("cluster")).text
        finally:
            await store.close()

    with nats_servers(1, more="authorization { user: baton, password: hush1 }") as servers:
        asyncio.run(run(servers))


def test_a_token(file: Callable[[str], str]) -> None:
    with nats_servers(1, more="authorization { token: hush1 }") as servers:
        at = Asked(servers)
        assert get_in(at("hush1")) == get_in(at(options=f"token_file={file('hush1')}"))
        for wrong in (at("hush2"), at(options=f"token_file={file('hush2')}"), at("baton:hush1"), at()):
            refused(wrong, AccessDenied, "refused the login of this node")


def test_an_nkey(file: Callable[[str], str]) -> None:
    known = user()
    with nats_servers(1, more=f"authorization {{ users: [{{ nkey: {known.public} }}] }}") as servers:
        at = Asked(servers)
        assert get_in(at(options=f"nkey={file(known.seed)}"))
        refused(at(options=f"nkey={file(user().seed)}"), AccessDenied, "refused the login of this node")
        refused(at(options=f"nkey={file('nonsense')}"), InvalidInput, "does not contain the seed of a NATS user")


def test_a_credentials_file(file: Callable[[str], str]) -> None:
    operator = Operator()
    with nats_servers(1, more=operator.configuration) as servers:
        at = Asked(servers)
        assert get_in(at(options=f"credentials={file(operator.credentials())}"))
        refused(
            at(options=f"credentials={file(Operator().credentials())}"), AccessDenied, "refused the login of this node"
        )
        refused(at(options=f"credentials={file('nonsense')}"), InvalidInput, "is not a NATS credentials file")
        refused(at(options="credentials=/nowhere"), InvalidInput, "cannot be read from /nowhere")


def test_tls_on_both_sides(tmp_path: Path, file: Callable[[str], str]) -> None:
    authority, other = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    server = authority.sign("server", "localhost", "127.0.0.1")
    files = f'cert_file: "{server.certificate}", key_file: "{server.key}", ca_file: "{authority.file}"'
    tls = f"tls {{ {files}, verify: true }}"
    with nats_servers(1, more=f"{tls}\nauthorization {{ user: baton, password: hush1 }}") as servers:
        at = Asked(servers, "tls")
        password = f"password_file={file('hush1')}"
        node = authority.sign("node", "n0")
        shown = f"tls_cert={node.certificate}&tls_key={node.key}"
        trusting = f"{password}&tls_ca={authority.file}"
        assert get_in(at("baton", f"{trusting}&{shown}"))
        refused(at("baton", f"{password}&{shown}"), InvalidInput, "not trusted.*tls_ca=FILE")
        refused(at("baton", f"{password}&tls_ca={other.file}&{shown}"), InvalidInput, "not trusted")
        refused(at("baton", trusting), InvalidInput, "requires one.*tls_cert=FILE")
        stranger = other.sign("stranger", "n0")
        strange = f"tls_cert={stranger.certificate}&tls_key={stranger.key}"
        refused(at("baton", f"{trusting}&{strange}"), InvalidInput, "refused this node's certificate")
        mixed = f"tls_cert={node.certificate}&tls_key={stranger.key}"
        refused(at("baton", f"{trusting}&{mixed}"), InvalidInput, "does not match the certificate")
        refused(at("baton:hush2", f"tls_ca={authority.file}&{shown}"), AccessDenied, "refused the login of this node")


def test_nothing_is_said_to_a_server_that_does_not_speak_tls(nats: NatsServers) -> None:
    refused(Asked(nats, "tls")("baton:hush1"), InvalidInput, "does not offer TLS, so nothing was sent to it")
