"""The cluster's secret is replaced node by node, as "Run a cluster" says, and every request is answered on the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from batonq.core.commands import Accepted
from batonq.errors import AccessDenied
from batonq.node.cluster import signing
from batonq.node.cluster.peers import PREFIX, Peers
from tests.cluster.memory import bodies, known
from tests.cluster.wired import WiredNodes, run_wired
from tests.node.nodes import ACCOUNT, make_send
from tests.support import brokers

OLD = "0123456789abcdef0123456789abcdef"
NEW = "fedcba9876543210fedcba9876543210"
STEPS = (f"{OLD}\n{NEW}\n", f"{NEW}\n{OLD}\n", f"{NEW}\n")
LEASE_S = 2.0


async def check_requests(nodes: WiredNodes, shards: int) -> None:
    """Every node reaches the owner of every shard."""
    for shard in range(shards):
        await nodes.owned(shard)
    for name in "ab":
        node = nodes[name]
        await nodes.until(lambda node=node: not node.not_ready())  # type: ignore[misc]
        for queue in ("left", "right"):
            await node.broker.refresh()
            (sent,) = await brokers.send(node.broker, known(node, queue), [make_send(name)])
            assert isinstance(sent, Accepted)
            assert await bodies(node, known(node, queue)) == [name]


def test_the_secret_is_rotated(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(OLD)

    async def main(nodes: WiredNodes) -> None:
        for queue in ("left", "right"):
            await nodes["a"].broker.create_queue(ACCOUNT, queue, {}, {})
        await check_requests(nodes, 2)
        for text in STEPS:
            for name in "ab":
                secret.write_text(text)
                await (await nodes.restart(name))
                await check_requests(nodes, 2)
        secret.write_text(OLD)
        with pytest.raises(AccessDenied, match="is not the secret of this cluster"):
            await (await nodes.restart("b"))
        with pytest.raises(AccessDenied, match="not signed with the cluster secret"):
            await Peers(OLD.encode()).ask(nodes.address("a"), f"{PREFIX}node/undrain", "", b"\xc0", 5)

    run_wired(tmp_path, main, "a", "b", cluster_secret_file=str(secret), shards=2, lease_s=LEASE_S)


def test_a_step_that_is_left_out_is_refused(tmp_path: Path) -> None:
    """The node that has only the new secret could not talk to the other one."""
    secret = tmp_path / "secret"
    secret.write_text(OLD)

    async def main(nodes: WiredNodes) -> None:
        secret.write_text(NEW)
        with pytest.raises(AccessDenied, match="is not the secret of this cluster"):
            await (await nodes.restart("b"))

    run_wired(tmp_path, main, "a", "b", cluster_secret_file=str(secret), lease_s=LEASE_S)


def test_the_first_secret_signs_and_all_are_accepted() -> None:
    both, swapped = f"{OLD}\n{NEW}".encode(), f"{NEW}\r\n\n {OLD} \n".encode()
    assert signing.split_secrets(swapped) == [NEW.encode(), OLD.encode()]
    for sends, receives in ((both, swapped), (swapped, both), (OLD.encode(), both), (NEW.encode(), both)):
        signer, verifier = signing.Signer(sends), signing.Verifier(receives)
        for is_first in (True, False):
            stamp, signature = signer.sign("http://x", "/internal/y", "call", b"body", 5.0)
            given = (stamp.encode(), signature.encode(), 7.0)
            challenge = verifier.verify(signing.METHOD, "/internal/y", "call", b"body", *given)
            assert (challenge is not None) == is_first
            if challenge is not None:
                assert signer.learn("http://x", challenge, signature, 5.0), "it is signed with the same secret"
