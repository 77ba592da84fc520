"""A secured cluster: requests are signed by keys that every node knows, and nodes by a secret of their own."""

from __future__ import annotations

import http.client
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.api.conftest import client
from tests.cluster.processes import Cluster, wait_until
from tests.support.nats import nats_servers
from tests.system.process import baton


def _is_known(sqs: Any) -> bool:
    """A key that was just made is known to other nodes a moment later."""
    try:
        return bool(sqs.list_queues())
    except ClientError:
        return False


def test_keys_are_known_everywhere_and_only_nodes_are_asked_as_nodes(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    with nats_servers(1) as nats:
        log = f"{nats.address}/secured?replicas=1&{nats.monitoring}"
        flags = ("--secure", "--cluster-secret-file", str(secret), "--shards", "2")
        with Cluster(tmp_path, log, *flags, nodes=2) as cluster:
            first, second = cluster.nodes
            made = baton("keys", "create", "--data", str(tmp_path / first.name))
            assert made.returncode == 0, made
            key, hidden = (line.partition("=")[2] for line in made.stdout.splitlines()[:2])
            clients = [client("sqs", node.url, key, hidden) for node in (first, second)]
            wait_until(partial(_is_known, clients[1]), "the key is not known")
            queue = clients[0].create_queue(QueueName="work")["QueueUrl"]
            other = queue.replace(first.url, second.url)
            clients[1].send_message(QueueUrl=other, MessageBody="signed")
            assert clients[0].receive_message(QueueUrl=queue)["Messages"][0]["Body"] == "signed"
            stranger = client("sqs", second.url, key, "not the secret")
            with pytest.raises(ClientError, match="Signature"):
                stranger.send_message(QueueUrl=other, MessageBody="forged")
            for each in (*clients, stranger):
                each.close()

            connection = http.client.HTTPConnection(first.host, first.port, timeout=10)
            connection.request("POST", "/internal/node/status", b"\xc0")
            assert connection.getresponse().status == 403
            connection.close()
            asked = ("cluster", "status", "--url", first.url)
            assert baton(*asked).returncode == 1
            shown = baton(*asked, "--cluster-secret-file", str(secret))
            assert shown.returncode == 0 and "n1" in shown.stdout
