"""`baton peek` against a real server."""

from __future__ import annotations

import json
from pathlib import Path

from tests.system.process import Client, ServerProcess, baton
from tests.system.test_process import make_key, sqs


def test_a_table_for_people_and_json_for_programs(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        client = Client(server.url)
        queue = client.call("CreateQueue", QueueName="orders")["QueueUrl"]
        done = baton("peek", "orders", "--url", server.url)
        assert (done.returncode, done.stdout) == (0, "Queue orders has no messages.\n")
        for body in ("first", "second\t\u202e\n" + "x" * 100, "third"):
            client.call("SendMessage", QueueUrl=queue, MessageBody=body)
        client.call("ReceiveMessage", QueueUrl=queue, MessageAttributeNames=["Baton.Consumer=worker\x1b[2J"])
        done = baton("peek", "orders", "--limit", "2", "--url", server.url)
        assert done.returncode == 0, done.stderr
        head, held, waits, more = done.stdout.splitlines()
        assert head.split() == ["SEQUENCE", "STATE", "RECEIVED", "SENT", "MESSAGE", "ID", "BODY", "WHY"]
        assert "  IN_FLIGHT  1  " in held and "  first  " in held
        assert (
            held.index("Held by worker\ufffd[2J until ") == waits.index("Waiting to be received.") == head.index("WHY")
        )
        assert "  VISIBLE    0  " in waits and "  second \ufffd xxx" in waits and "x…  " in waits
        next_page = more.removeprefix("There are more messages: ").split()
        done = baton("peek", "orders", "--json", "--url", server.url, *next_page)
        answer = json.loads(done.stdout)
        assert [message["body"] for message in answer["messages"]] == ["third"] and answer["next"] is None
        done = baton("peek", "orders", "--after", "99", "--url", server.url)
        assert done.stdout == "Queue orders has no messages after 99.\n"
        done = baton("peek", "nowhere", "--url", server.url)
        assert (done.returncode, done.stderr) == (1, "baton: The specified queue does not exist.\n")
        done = baton("peek", "orders", "--limit", "101", "--url", server.url)
        assert done.returncode == 1 and "from 1 to 100" in done.stderr
        client.close()


def test_a_secured_server_is_found_by_its_directory(tmp_path: Path) -> None:
    done = baton("peek", "orders", "--data", str(tmp_path))
    assert done.returncode == 1 and "No server is using the data directory" in done.stderr
    key = make_key(tmp_path)
    with ServerProcess(tmp_path, "--secure") as server:
        client = sqs(server.url, *key)
        queue = client.create_queue(QueueName="orders")["QueueUrl"]
        client.send_message(QueueUrl=queue, MessageBody="hello")
        client.close()
        done = baton("peek", "orders", "--url", server.url)
        assert done.returncode == 1 and "admin-token" in done.stderr
        done = baton("peek", "orders", "--data", str(tmp_path))
        assert done.returncode == 0 and "hello" in done.stdout
