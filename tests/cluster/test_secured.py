"""A secured cluster: requests are signed by keys that every node knows, and nodes by a secret of their own. All of it
is encrypted: what clients say, what nodes say to each other, and the way to NATS, whose password is in a file.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.api.conftest import client
from tests.cluster.processes import ANSWER_S, STEADY_LEASE_S, Cluster, wait_until
from tests.support.authority import Authority
from tests.support.nats import nats_servers
from tests.system.process import baton


def _is_known(sqs: Any) -> bool:
    """A key that was just made is known to other nodes a moment later."""
    try:
        return bool(sqs.list_queues())
    except ClientError:
        return False


def test_keys_are_known_everywhere_and_only_nodes_are_asked_as_nodes(tmp_path: Path) -> None:
    secret, password = tmp_path / "secret", tmp_path / "password"
    secret.write_text("0123456789abcdef0123456789abcdef\n")
    password.write_text("hush\n")
    authority = Authority(tmp_path / "tls")
    trusted = str(authority.file)
    made = authority.sign("nats", "127.0.0.1")
    server = f'tls {{ cert_file: "{made.certificate}", key_file: "{made.key}" }}'
    with nats_servers(1, more=f"{server}\nauthorization {{ user: baton, password: hush }}") as nats:
        login = f"password_file={password}&tls_ca={trusted}"
        log = f"{nats.address.replace('nats://', 'tls://baton@')}/secured?replicas=1&{nats.monitoring}&{login}"
        shown = authority.sign("nodes", "127.0.0.1", "127.0.0.2")
        flags = ("--secure", "--cluster-secret-file", str(secret), "--shards", "2", *shown.flags, "--peer-ca", trusted)
        with Cluster(tmp_path, log, *flags, nodes=2, lease_s=STEADY_LEASE_S, trusted=authority.file) as cluster:
            first, second = cluster.nodes
            keys = baton("keys", "create", "--data", str(tmp_path / first.name))
            assert keys.returncode == 0, keys
            key, hidden = (line.partition("=")[2] for line in keys.stdout.splitlines()[:2])
            clients = [client("sqs", node.url, key, hidden, verify=trusted) for node in (first, second)]
            wait_until(partial(_is_known, clients[1]), "the key is not known")
            for name in ("work", "more"):  # on a shard each, of which each node has one
                queue = clients[0].create_queue(QueueName=name)["QueueUrl"]
                other = queue.replace(first.url, second.url)
                clients[1].send_message(QueueUrl=other, MessageBody="signed")
                assert clients[0].receive_message(QueueUrl=queue)["Messages"][0]["Body"] == "signed"
            stranger = client("sqs", second.url, key, "not the secret", verify=trusted)
            with pytest.raises(ClientError, match="Signature"):
                stranger.send_message(QueueUrl=other, MessageBody="forged")
            for each in (*clients, stranger):
                each.close()

            connection = first.connection(ANSWER_S)
            connection.request("POST", "/internal/node/status", b"\xc0", {"Content-Type": "application/msgpack"})
            assert connection.getresponse().status == 403
            connection.close()
            asked = ("cluster", "status", "--url", first.url, "--peer-ca", trusted)
            assert baton(*asked).returncode == 5
            told = baton(*asked, "--cluster-secret-file", str(secret))
            assert told.returncode == 0 and second.url in told.stdout
            with open(f"/proc/{first.process.pid}/cmdline", "rb") as line:
                assert b"hush" not in line.read()
