"""The process: starting, stopping, what it refuses, and the commands that talk to it."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from batonq.node.settings import documented
from tests.system.process import ANSWER_S, STOP_TIMEOUT_S, Client, ServerProcess, baton


def sqs(url: str, key: str = "test", secret: str = "test") -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, read_timeout=ANSWER_S, connect_timeout=ANSWER_S),
    )


# --- starting ---------------------------------------------------------------------------------


def test_the_command_line_imports_little() -> None:
    code = "import sys, batonq.cli.main; sys.exit(bool({'asyncio', 'uvloop', 'http', 'msgspec'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=STOP_TIMEOUT_S).returncode == 0


def test_help_names_every_command() -> None:
    done = baton("--help")
    assert done.returncode == 0
    for name in ("serve", "keys", "clock", "log"):
        assert re.search(rf"^ +{name} ", done.stdout, re.MULTILINE)


def test_help_shows_the_dozen_flags_that_people_need_and_help_all_the_rest() -> None:
    short, full = baton("serve", "--help"), baton("serve", "--help-all")
    assert short.returncode == full.returncode == 0
    for flag in ("--host", "--port", "--data", "--account", "--shards", "--dev", "--secure", "--config", "--help-all"):
        assert re.search(rf"^ +{flag}\b", short.stdout, re.MULTILINE), flag
    flags = {
        name: re.findall(r"^ +(?:-h, )?(--[a-z-]+)", done.stdout, re.MULTILINE)
        for name, done in (("short", short), ("full", full))
    }
    assert len(flags["short"]) <= 18
    for entry, _ in documented():
        assert "--" + entry.name.replace("_", "-") in flags["full"], entry.name


def test_settings_from_a_file_the_environment_and_flags(tmp_path: Path) -> None:
    file = tmp_path / "baton.toml"
    file.write_text('account = "111122223333"\nshards = 2\nhistory_hours = 5\n')
    os.environ["BATON_SHARDS"] = "3"
    try:
        with ServerProcess(tmp_path / "data", "--config", str(file), "--history-hours", "6") as server:
            client = Client(server.url)
            listed = {one["name"]: one for one in json.loads(client.get("/v1/config")[1])["settings"]}
            client.close()
            assert server.terminate() == 0
    finally:
        del os.environ["BATON_SHARDS"]
    found = {name: (listed[name]["value"], listed[name]["origin"]) for name in ("account", "shards", "history_hours")}
    assert found == {"account": ("111122223333", "file"), "shards": (3, "environment"), "history_hours": (6, "flag")}
    assert listed["account"]["file"] == str(file)


def test_a_port_that_is_taken_leaves_nothing_behind(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for more in ((), ("--processes", "2")):
            done = baton("serve", "--port", port, "--data", str(tmp_path / "data"), *more)
            assert done.returncode == 1 and f"Cannot listen on 127.0.0.1 port {port}" in done.stderr
            assert not (tmp_path / "data").exists()


def test_a_start_says_where_things_are(tmp_path: Path) -> None:
    for created in (True, False):
        with ServerProcess(tmp_path / "data") as server:
            (serving,) = (event for event in server.events if event["event"] == "serving")
            assert serving["data"] == str(tmp_path / "data") and serving["created"] is created
            assert str(tmp_path / "data") in serving["text"] and ("(created)" in serving["text"]) is created
            assert server.terminate() == 0
        (here,) = (event for event in server.events if event["event"] == "start_here")
        assert f"{server.url}/ui/start" in here["text"]


def test_a_start_prints_two_lines_and_no_internals(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "batonq", "serve", "--port", "0", "--data", "here"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert process.stderr is not None
    first, second = process.stderr.readline(), process.stderr.readline()
    process.terminate()
    rest = process.stderr.read()
    assert process.wait(STOP_TIMEOUT_S) == 0
    process.stderr.close()
    assert " serves http://127.0.0.1:" in first and f"data in {tmp_path}/here (created)\n" in first
    assert "Dashboard: http://127.0.0.1:" in second
    assert len(rest.splitlines()) == 2 and "frames_folded" not in first + second + rest


@pytest.mark.parametrize("flags", [(), ("--processes", "2")])
def test_the_templates_of_the_dashboard_are_loaded_without_a_request(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with ServerProcess(tmp_path / "data", *flags) as server:
        children = [event["pid"] for event in server.events if event.get("event") == "process_serving"]
        for process in children or [server.process.pid]:
            maps = Path(f"/proc/{process}/maps")
            ends = time.monotonic() + 120
            while "markupsafe" not in maps.read_text() and time.monotonic() < ends:  # Jinja's compiled part
                time.sleep(0.05)
            assert "markupsafe" in maps.read_text()


def test_another_address_without_the_secured_profile_is_refused(tmp_path: Path) -> None:
    done = baton("serve", "--host", "0.0.0.0", "--port", "0", "--data", str(tmp_path / "data"))
    assert done.returncode == 1
    assert "--secure" in done.stderr and "baton keys create" in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_second_server_is_told_who_holds_the_directory(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        done = baton("serve", "--port", "0", "--data", str(tmp_path))
        assert done.returncode == 1
        assert f"process {server.process.pid}" in done.stderr and server.url in done.stderr
        assert server.terminate() == 0


def test_a_port_in_use_is_said_plainly(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "first") as server:
        port = server.url.rpartition(":")[2]
        done = baton("serve", "--port", port, "--data", str(tmp_path / "second"))
        assert done.returncode == 1 and f"port {port}" in done.stderr and "--port" in done.stderr


def test_a_damaged_log_stops_the_start_and_says_where(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        client = Client(server.url)
        queue = client.call("CreateQueue", QueueName="orders")["QueueUrl"]
        client.call("SendMessage", QueueUrl=queue, MessageBody="hello")
        client.close()
        server.kill()
    segment = tmp_path / "shard-0000" / "segment-00000000000000000001.log"
    with segment.open("r+b") as file:
        file.seek(70)
        byte = file.read(1)[0]
        file.seek(70)
        file.write(bytes([byte ^ 1]))
    done = baton("serve", "--port", "0", "--data", str(tmp_path))
    assert done.returncode == 1
    assert str(segment) in done.stderr and "baton log" in done.stderr


# --- stopping ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_answers_those_who_wait_and_keeps_everything(tmp_path: Path, sign: signal.Signals) -> None:
    with ServerProcess(tmp_path) as server:
        client = Client(server.url)
        queue = client.call("CreateQueue", QueueName="orders")["QueueUrl"]
        other = client.call("CreateQueue", QueueName="other")["QueueUrl"]
        for number in range(10):
            client.call("SendMessage", QueueUrl=queue, MessageBody=f"message {number}")
        answers: list[dict[str, Any]] = []

        stopping = threading.Event()

        def poll() -> None:
            waiting = Client(server.url)
            answer: dict[str, Any] | None = None
            while answer is None or not stopping.is_set():  # again only if it takes the others so long to come
                answer = waiting.call("ReceiveMessage", QueueUrl=other, WaitTimeSeconds=20)
            answers.append(answer)
            waiting.close()

        polls = [threading.Thread(target=poll) for _ in range(5)]
        for thread in polls:
            thread.start()
        while 'queue="other"} 5' not in client.get("/metrics")[1]:
            pass
        stopping.set()
        server.process.send_signal(sign)
        for thread in polls:
            thread.join(STOP_TIMEOUT_S)
        assert answers == [{}] * 5
        client.close()
        assert server._end() == 0
        assert server.events[-1]["event"] == "stopped"
    assert list((tmp_path / "shard-0000" / "snapshots").iterdir())
    with ServerProcess(tmp_path) as server:
        opened = next(event for event in server.events if event["event"] == "shard_opened")
        assert opened["frames_folded"] == 0 and opened["snapshot_frame"] > 0
        client = Client(server.url)
        bodies = []
        while messages := client.call("ReceiveMessage", QueueUrl=queue, MaxNumberOfMessages=10).get("Messages"):
            bodies += [message["Body"] for message in messages]
        assert sorted(bodies) == [f"message {number}" for number in range(10)]
        client.close()


def test_a_kill_while_stopping_is_no_worse_than_any_other(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        client = Client(server.url)
        queue = client.call("CreateQueue", QueueName="orders")["QueueUrl"]
        client.call("SendMessage", QueueUrl=queue, MessageBody="hello")
        client.close()
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGTERM)
        assert server._end() in (0, -signal.SIGTERM)
    with ServerProcess(tmp_path) as server:
        client = Client(server.url)
        assert client.call("ReceiveMessage", QueueUrl=queue)["Messages"][0]["Body"] == "hello"
        client.close()


# --- several shards ---------------------------------------------------------------------------


def test_queues_spread_over_shards_and_stay_when_fewer_are_asked_for(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--shards", "3") as server:
        client = Client(server.url)
        queues = [client.call("CreateQueue", QueueName=f"queue-{at}")["QueueUrl"] for at in range(6)]
        for queue in queues:
            client.call("SendMessage", QueueUrl=queue, MessageBody=queue.rpartition("/")[2])
        client.close()
        server.kill()
    assert sorted(path.name for path in tmp_path.glob("shard-*")) == ["shard-0000", "shard-0001", "shard-0002"]
    with ServerProcess(tmp_path) as server:
        client = Client(server.url)
        for queue in queues:
            messages = client.call("ReceiveMessage", QueueUrl=queue)["Messages"]
            assert messages[0]["Body"] == queue.rpartition("/")[2]
        client.close()


def test_snapshots_are_made_by_a_child_while_the_server_serves(tmp_path: Path) -> None:
    flags = ("--segment-bytes", "256KiB", "--snapshot-bytes", "256KiB", "--maintenance-every-s", "0.05")
    with ServerProcess(tmp_path, *flags) as server:
        client = Client(server.url)
        queue = client.call("CreateQueue", QueueName="orders")["QueueUrl"]
        entries = [{"Id": str(at), "MessageBody": "x" * 5_000} for at in range(10)]
        sent = 0
        while not list(tmp_path.glob("shard-0000/snapshots/snapshot-*.bin")):
            client.call("SendMessageBatch", QueueUrl=queue, Entries=entries)
            sent += 10
        client.close()
        server.kill()
    with ServerProcess(tmp_path) as server:
        opened = next(event for event in server.events if event["event"] == "shard_opened")
        assert opened["snapshot_frame"] > 0
        client = Client(server.url)
        answer = client.call("GetQueueAttributes", QueueUrl=queue, AttributeNames=["ApproximateNumberOfMessages"])
        assert answer["Attributes"]["ApproximateNumberOfMessages"] == str(sent)
        client.close()


# --- pages ------------------------------------------------------------------------------------


def test_health_metrics_and_the_dashboard(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        client = Client(server.url)
        assert client.get("/livez") == (200, "ok\n")
        assert client.get("/readyz") == client.get("/health") == (200, "ok\n")
        assert client.get("/docs", {"Accept": "*/*"}) == (303, "See /v1/docs\n")
        status, page = client.get("/", {"Accept": "text/html"})
        assert status == 200 and f"aws --endpoint-url {server.url} sqs create-queue" in page
        queue = client.call("CreateQueue", QueueName="orders")["QueueUrl"]
        client.call("SendMessage", QueueUrl=queue, MessageBody="hello")
        page = client.get("/", {"Accept": "text/html"})[1]
        assert "1 queue" in page and "Baton" in page
        page = client.get("/ui/queues/orders/messages", {"Accept": "text/html"})[1]
        assert "hello" in page and ">orders<" in page
        text = client.get("/metrics")[1]
        assert 'baton_queue_messages{account="000000000000",queue="orders",state="visible"} 1\n' in text
        assert 'baton_sqs_calls_total{operation="SendMessage"} 1\n' in text
        status, greeting = client.get("/", {"Accept": "*/*"})
        assert status == 200 and greeting.startswith("Baton ") and "/v1/docs" in greeting and greeting.count("\n") == 1
        client.close()


def test_the_clock_is_moved_from_the_command_line(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        client = Client(server.url)
        queue = client.call("CreateQueue", QueueName="orders")["QueueUrl"]
        client.call("SendMessage", QueueUrl=queue, MessageBody="hello")
        assert client.call("ReceiveMessage", QueueUrl=queue)["Messages"]
        assert client.call("ReceiveMessage", QueueUrl=queue) == {}
        done = baton("clock", "advance", "31s", "--url", server.url)
        assert done.returncode == 0 and done.stdout.startswith("The server's clock is now 2")
        assert client.call("ReceiveMessage", QueueUrl=queue)["Messages"]
        assert client.post("/_baton/clock/advance", {"seconds": -1})[0] == 400
        assert client.post("/_baton/clock/advance", {"seconds": 1}, {"Content-Type": "text/plain"})[0] == 400
        client.close()
    assert baton("clock", "advance", "soon").returncode == 2
    done = baton("clock", "advance", "1s", "--url", server.url)
    assert done.returncode == 4 and f"No server listens at {server.url}" in done.stderr


# --- the secured profile ----------------------------------------------------------------------


def make_key(data: Path) -> tuple[str, str]:
    done = baton("keys", "create", "--data", str(data))
    assert done.returncode == 0, done.stderr
    return read_key(done.stdout)


def read_key(text: str) -> tuple[str, str]:
    """The key that a command printed for Baton's client, and again for the AWS SDKs."""
    names = ("ACCESS_KEY_ID=(\\w+)", "SECRET_ACCESS_KEY=(\\S+)", "ACCESS_KEY_ID=\\1", "SECRET_ACCESS_KEY=\\2")
    found = re.fullmatch("BATON_{}\nBATON_{}\nAWS_{}\nAWS_{}\n".format(*names), text)
    assert found is not None
    return found[1], found[2]


def test_a_secured_server_takes_only_requests_signed_by_its_keys(tmp_path: Path) -> None:
    first = make_key(tmp_path)
    with ServerProcess(tmp_path, "--secure") as server:
        good = sqs(server.url, *first)
        queue = good.create_queue(QueueName="orders")["QueueUrl"]
        good.send_message(QueueUrl=queue, MessageBody="hello")
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            sqs(server.url, first[0], "wrong").send_message(QueueUrl=queue, MessageBody="no")
        with pytest.raises(ClientError, match="InvalidClientTokenId"):
            sqs(server.url).send_message(QueueUrl=queue, MessageBody="no")
        second = make_key(tmp_path)  # while it runs
        assert sqs(server.url, *second).receive_message(QueueUrl=queue)["Messages"][0]["Body"] == "hello"
        listed = baton("keys", "list", "--data", str(tmp_path)).stdout
        assert first[0] in listed and second[0] in listed and first[1] not in listed
        done = baton("keys", "disable", first[0], "--data", str(tmp_path))
        assert done.returncode == 0 and done.stdout == f"Key {first[0]} is disabled.\n"
        with pytest.raises(ClientError, match="InvalidClientTokenId"):
            good.send_message(QueueUrl=queue, MessageBody="no")
        check_pages_of_a_secured_server(server, tmp_path)
        assert server.terminate() == 0
    listed = baton("keys", "list", "--data", str(tmp_path)).stdout
    assert [line.split()[-1] for line in listed.splitlines()] == ["STATE", "disabled", "active"]


def check_pages_of_a_secured_server(server: ServerProcess, data: Path) -> None:
    token_file = data / "admin-token"
    assert os.stat(token_file).st_mode & 0o077 == 0
    token = token_file.read_text().strip()
    basic = "Basic " + base64.b64encode(f"admin:{token}".encode()).decode()
    client = Client(server.url)
    assert client.get("/livez")[0] == 200 and client.get("/readyz")[0] == 200
    # A browser is sent to the page for signing in. A password in the URL is for scrapers of the metrics only.
    for path, accept, refused, with_password in (("/metrics", "*/*", 401, 200), ("/", "text/html", 303, 303)):
        assert client.get(path, {"Accept": accept})[0] == refused
        assert client.get(path, {"Accept": accept, "Authorization": "Bearer nonsense"})[0] == refused
        assert client.get(path, {"Accept": accept, "Authorization": f"Bearer {token}"})[0] == 200
        assert client.get(path, {"Accept": accept, "Authorization": basic})[0] == with_password
    assert client.get("/v1/keys")[0] == 403
    assert client.get("/v1/keys", {"Authorization": "Bearer nonsense"})[0] == 403
    assert client.get("/v1/keys", {"Authorization": f"Bearer {token}"})[0] == 200
    assert client.post("/_baton/clock/advance", {"seconds": 1}, {"Authorization": f"Bearer {token}"})[0] == 400
    client.close()


def test_keys_of_a_directory_that_is_not_there_are_not_listed(tmp_path: Path) -> None:
    done = baton("keys", "list", "--data", str(tmp_path / "nowhere"))
    assert done.returncode == 1 and "does not exist" in done.stderr
    assert not (tmp_path / "nowhere").exists()


# --- keys in files ----------------------------------------------------------------------------


def test_a_key_in_a_file_is_for_its_owner_only(tmp_path: Path) -> None:
    data, file = str(tmp_path / "data"), tmp_path / "key.env"
    done = baton("keys", "create", "--data", data, "--output", str(file))
    assert done.returncode == 0 and "AWS_SECRET" not in done.stdout + done.stderr, done
    assert file.stat().st_mode & 0o777 == 0o600
    written = file.read_text()
    key, secret = read_key(written)
    assert key.startswith("BATON") and len(secret) > 30
    again = baton("keys", "create", "--data", data, "--output", str(file))
    assert again.returncode == 1 and f"The file {file} already exists" in again.stderr
    assert file.read_text() == written
    assert len(baton("keys", "list", "--data", data).stdout.splitlines()) == 2
    nowhere = baton("keys", "create", "--data", data, "--output", str(tmp_path / "none" / "key.env"))
    assert nowhere.returncode == 1 and "Cannot write" in nowhere.stderr
    held = baton("keys", "create", "--data", str(file), "--output", str(tmp_path / "other.env"))
    assert held.returncode == 1 and not (tmp_path / "other.env").exists()


def test_a_key_that_is_redirected_into_a_file_is_for_its_owner_only(tmp_path: Path) -> None:
    new, old = tmp_path / "key.env", tmp_path / "old.env"
    old.write_text("OTHER=1\n")
    old.chmod(0o644)
    command = [sys.executable, "-m", "batonq", "keys", "create", "--data", str(tmp_path / "data")]
    for file, mode, said in ((new, "wb", "readable only for you"), (old, "ab", "other users can read it")):
        with file.open(mode) as output:
            os.fchmod(output.fileno(), 0o644)  # whatever the umask of this test
            done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, text=True, timeout=60, check=True)
        assert said in done.stderr and "AWS_SECRET_ACCESS_KEY=" in file.read_text()
    assert (new.stat().st_mode & 0o777, old.stat().st_mode & 0o777) == (0o600, 0o644)
    assert old.read_text().startswith("OTHER=1\nBATON_ACCESS_KEY_ID=")
