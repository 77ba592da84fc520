"""What may be asked below /internal/, by whom, and how often: captured calls, web pages, headers that are no text."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from batonq.core.commands import Accepted
from batonq.node.broker import Queue
from batonq.node.cluster import node_server as answering
from batonq.node.cluster.node import ClusterNode
from batonq.node.cluster.peers import PREFIX
from tests.cluster.lines import Loss, say, status_of
from tests.cluster.memory import other
from tests.cluster.wired import WiredNodes, run_wired
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers

UNDRAIN = "node/undrain"


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text("0123456789abcdef0123456789abcdef\n")
    return str(path)


async def work(nodes: WiredNodes) -> tuple[Queue, ClusterNode, ClusterNode]:
    """A queue, the owner of its shard, and another node."""
    queue = await nodes["a"].broker.create_queue(ACCOUNT, "work", {}, {})
    owner = await nodes.owned(queue.shard)
    asking = other(nodes, owner)
    await asking.broker.refresh()
    return queue, owner, asking


async def count(node: ClusterNode, queue: Queue) -> int:
    return (await node.broker.counters(queue)).visible


# --- captured calls -----------------------------------------------------------------------------


def test_a_captured_send_is_not_accepted_again(tmp_path: Path, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the owner has forgotten that it has run the call."""
    monkeypatch.setattr(answering, "REMEMBERED_S", -1.0)

    async def main(nodes: WiredNodes) -> None:
        queue, owner, asking = await work(nodes)
        relay = nodes.relays[owner.settings.node]
        (sent,) = await brokers.send(asking.broker, queue, [make_send("once")])
        assert isinstance(sent, Accepted)
        assert await count(asking, queue) == 1
        captured = relay.requests_to("/submit")[-1]
        for _ in range(2):
            answered = await say(nodes.address(owner.settings.node), captured)
            assert status_of(answered) == 403 and b"received before" in answered
        assert await count(asking, queue) == 1

    run_wired(tmp_path, main, "a", "b", cluster_secret_file=secret)


def test_a_captured_call_is_good_for_no_other_node_and_no_later_process(tmp_path: Path, secret: str) -> None:
    async def main(nodes: WiredNodes) -> None:
        nothing = msgspec.msgpack.encode(None)
        await nodes["a"].peers.ask(nodes.address("b"), f"{PREFIX}{UNDRAIN}", "", nothing, 5)
        captured = nodes.relays["b"].requests_to(UNDRAIN)[-1]
        nodes["c"].ownership_loop.draining = True
        assert status_of(await say(nodes.address("c"), captured)) == 401
        assert nodes["c"].ownership_loop.draining
        await (await nodes.restart("b"))
        nodes["b"].ownership_loop.draining = True
        assert status_of(await say(nodes.address("b"), captured)) == 401
        assert nodes["b"].ownership_loop.draining
        await nodes["a"].peers.ask(nodes.address("b"), f"{PREFIX}{UNDRAIN}", "", nothing, 5)
        assert not nodes["b"].ownership_loop.draining, "the node that knows the secret is heard by the new process"

    run_wired(tmp_path, main, "a", "b", "c", cluster_secret_file=secret)


def test_a_repetition_by_the_node_that_called_is_answered_from_memory(tmp_path: Path, secret: str) -> None:
    async def main(nodes: WiredNodes) -> None:
        queue, owner, asking = await work(nodes)
        relay = nodes.relays[owner.settings.node]

        async def nothing() -> None:
            pass

        relay.loss = Loss("/submit", nothing)
        (sent,) = await brokers.send(asking.broker, queue, [make_send("once")])
        assert isinstance(sent, Accepted)
        first, *_, last = relay.requests_to("/submit")
        assert first != last, "it was lost, and made again"
        assert await count(asking, queue) == 1

    run_wired(tmp_path, main, "a", "b", cluster_secret_file=secret)


def test_a_changed_call_is_refused(tmp_path: Path, secret: str) -> None:
    async def main(nodes: WiredNodes) -> None:
        nothing = msgspec.msgpack.encode(None)
        await nodes["a"].peers.ask(nodes.address("b"), f"{PREFIX}{UNDRAIN}", "a-call", nothing, 5)
        captured = nodes.relays["b"].requests_to(UNDRAIN)[-1]
        changes = (
            (b"POST", b"PUT"),
            (b"/undrain", b"/drain"),
            (b"x-baton-call: a-call", b"x-baton-call: another"),
            (b"\xc0", b"\xc2"),
            (b"x-baton-stamp: ", b"x-baton-stamp: 0"),
            (b"x-baton-signature: ", b"x-other: "),
        )
        for before, after in changes:
            assert captured.count(before) == 1
            assert status_of(await say(nodes.address("b"), captured.replace(before, after))) == 403
        assert not nodes["b"].ownership_loop.draining

    run_wired(tmp_path, main, "a", "b", cluster_secret_file=secret)


# --- web pages, and headers of any kind ---------------------------------------------------------


def request(path: str, *headers: bytes, content_type: bytes = b"application/msgpack", body: bytes = b"\xc0") -> bytes:
    lines = [
        b"POST %s HTTP/1.1" % path.encode("latin-1"),
        b"Host: localhost",
        b"Content-Length: %d" % len(body),
        *([b"Content-Type: " + content_type] if content_type else []),
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


FROM_PAGES = {
    "origin": request(f"{PREFIX}node/drain", b"Origin: https://elsewhere.example"),
    "null origin": request(f"{PREFIX}node/drain", b"Origin: null"),
    "empty origin": request(f"{PREFIX}node/drain", b"Origin:"),
    "same-origin page": request(f"{PREFIX}node/drain", b"Origin: http://localhost", b"Sec-Fetch-Site: same-origin"),
    "cross-site": request(f"{PREFIX}node/drain", b"Sec-Fetch-Site: cross-site"),
    "form": request(f"{PREFIX}node/drain", content_type=b"application/x-www-form-urlencoded"),
    "text form": request(f"{PREFIX}node/drain", content_type=b"text/plain"),
    "file form": request(f"{PREFIX}node/drain", content_type=b"multipart/form-data; boundary=x"),
    "no content type": request(f"{PREFIX}node/drain", content_type=b""),
}


def test_a_web_page_can_ask_a_node_nothing(tmp_path: Path) -> None:
    async def main(nodes: WiredNodes) -> None:
        address = f"http://127.0.0.1:{nodes.servers['a'].port}"
        for what, data in FROM_PAGES.items():
            assert status_of(await say(address, data)) == 403, what
            assert not nodes["a"].ownership_loop.draining, what
        assert status_of(await say(address, request(f"{PREFIX}{UNDRAIN}"))) == 200, "a neighbour can"

    run_wired(tmp_path, main, "a", "b")


@pytest.mark.parametrize("with_secret", [False, True])
def test_no_header_and_no_path_is_a_failure_of_the_node(tmp_path: Path, secret: str, with_secret: bool) -> None:
    async def main(nodes: WiredNodes) -> None:
        address = f"http://127.0.0.1:{nodes.servers['a'].port}"
        values = (
            b"",
            b"\xe9",
            b"\xff" * 64,
            b"0" * 64,
            b"1" * 5_000,
            b"a-" + b"9" * 5_000,
            b"a-\xb2",
            b"-.-.\xb2.\xb9",
        )
        for name in (b"X-Baton-Signature", b"X-Baton-Stamp", b"X-Baton-Call", b"Content-Type", b"Origin"):
            for value in values:
                answered = await say(address, request(f"{PREFIX}shards/0/counters", name + b": " + value))
                assert 400 <= status_of(answered) < 500 or b"not_owner" in answered, (name, value, answered)
        for path in (
            "shards/\xb2/submit",
            f"shards/{'9' * 5_000}/submit",
            "shards/-1/submit",
            "shards/0/\xe9",
            "\xe9",
            "",
        ):
            answered = await say(address, request(PREFIX + path))
            assert 400 <= status_of(answered) < 500 or b"not_owner" in answered, (path, answered)

    run_wired(tmp_path, main, "a", **({"cluster_secret_file": secret} if with_secret else {}))
