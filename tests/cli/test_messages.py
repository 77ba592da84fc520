"""`baton send`, `receive`, `ack`, `nack`, `extend`, `peek` and `tail`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from batonq.cli import send, tail
from batonq.cli.connection import Server
from batonq.core.spread import NUMBER_BITS
from batonq.errors import OverLimit
from tests.cli.support import Shell, check_shape
from tests.system.process import Client, ServerProcess

UNSAFE = "start\x1b[2J\u202e\nend"


@pytest.fixture
def queue(shell: Shell, request: pytest.FixtureRequest) -> str:
    """A new queue for each test."""
    name = request.node.name.partition("[")[0].removeprefix("test_")[:60]
    shell.good("queue", "create", name, "--dead-letter-queue", f"{name}-dead")
    return str(name)


def peeked(shell: Shell, queue: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shell.json("peek", queue)["messages"]
    return found


# --- send -------------------------------------------------------------------------------------


def test_a_body_is_an_argument_or_standard_input(shell: Shell, queue: str) -> None:
    said = shell.good("send", queue, "hello")
    assert said.startswith("Sent ") and said.endswith(f" to {queue}.\n")
    sent = shell.json("send", queue, "-", stdin="grüße".encode())
    assert (sent["sent"], sent["failed"], len(sent["messages"])) == (1, 0, 1)
    shell.good("send", queue, stdin=b"\xff\x00 bytes")
    found = peeked(shell, queue)
    assert [message.get("body") for message in found] == ["hello", "grüße", None]
    assert found[2]["bodyBase64"] == "/wAgYnl0ZXM="


def test_json_is_sent_as_it_stands(shell: Shell, server: ServerProcess, queue: str) -> None:
    text = '{"price": 1.10,  "n": 12345678901234567890, "tags": ["a"]}'
    shell.good("send", queue, text)
    shell.good("send", queue, text, "--text")
    shell.good("send", queue, "{not json")
    client = Client(server.url)
    url = f"{server.url}/000000000000/{queue}"
    bodies = [client.call("ReceiveMessage", QueueUrl=url)["Messages"][0]["Body"] for _ in range(3)]
    client.close()
    assert bodies == [text, text, "{not json"]
    kinds = [type(message["body"]) for message in peeked(shell, queue)]
    assert kinds == [dict, str, str]


def test_options_of_a_message(shell: Shell) -> None:
    shell.good("queue", "create", "options.fifo")
    shell.good(
        *("send", "options.fifo", "x", "--group", "g1", "--dedup-key", "k1", "--attribute", "colour=red"),
        *("--attribute", "size:=5", "--priority", "high", "--ttl", "1h", "--max-receives", "2"),
    )
    (message,) = peeked(shell, "options.fifo")
    for said in ("(sequence ", ", a duplicate of an earlier message."):
        assert said in shell.good("send", "options.fifo", "again", "--group", "g2", "--dedup-key", "k2")
    assert message["attributes"] == {"colour": "red", "size": 5}
    assert (message["messageGroupId"], message["deduplicationKey"]) == ("g1", "k1") and message["priority"] > 128
    assert 3_600_000 <= message["expiresAtMs"] - message["sentAtMs"] < 3_602_000  # whole seconds
    shell.good("queue", "create", "later")
    shell.good("send", "later", "x", "--delay", "10m")
    assert peeked(shell, "later")[0]["state"] == "DELAYED"


def test_files_lines_and_json_lines(shell: Shell, queue: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("first file")
    two.write_text('{"second": "file"}')
    assert shell.good("send", queue, "--file", str(one), "--file", str(two)) == f"Sent 2 messages to {queue}.\n"
    assert shell.good("send", queue, "--lines", "-", stdin=b"a\r\n\nb") == f"Sent 2 messages to {queue}.\n"
    lines = ['{"body": "c", "attributes": {"x": "own"}}', ' {"body": {"d": 1.50}} ']
    sent = shell.json("send", queue, "--json-lines", "-", "--attribute", "x=all", stdin="\n".join(lines).encode())
    assert [sent["sent"], sent["failed"]] == [2, 0]
    found = peeked(shell, queue)
    assert [message["body"] for message in found] == ["first file", {"second": "file"}, "a", "b", "c", {"d": 1.5}]
    assert [message.get("attributes") for message in found[4:]] == [{"x": "own"}, {"x": "all"}]


def test_many_messages_go_in_batches(shell: Shell, queue: str) -> None:
    body = b"".join(b"line %d\n" % number for number in range(1_234))
    assert shell.good("send", queue, "--lines", "-", stdin=body) == f"Sent 1,234 messages to {queue}.\n"
    assert shell.json("queue", "show", queue)["stats"]["visible"] == 1_234


def test_an_error_says_how_many_messages_were_sent(shell: Shell, queue: str) -> None:
    lines = b'{"body": 1}\n' * 600 + b"no json\n"
    done = shell("send", queue, "--json-lines", "-", stdin=lines)
    assert done.code == 1 and "500 messages were sent before this error:" in done.err
    assert "Line 601 of standard input is not a JSON object" in done.err
    assert shell.json("queue", "show", queue)["stats"]["visible"] == 500


def test_a_batch_waits_while_the_server_is_over_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [OverLimit("too fast"), OverLimit("too fast"), {"results": [{"messageId": "m"}]}]
    pauses: list[float] = []

    class Limited:
        def post(self, path: str, body: bytes) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, OverLimit):
                raise answer
            return answer

    monkeypatch.setattr("time.sleep", pauses.append)
    assert send._send_batch(cast(Server, Limited()), "q", [b"{}"]) == [{"messageId": "m"}]
    assert pauses == [0.5, 1.0]


def test_a_refused_message_of_many_is_named(shell: Shell) -> None:
    shell.good("queue", "create", "ordered.fifo")
    lines = b'{"body": 1, "messageGroupId": "g", "deduplicationKey": "a"}\n{"body": 2}\n'
    done = shell("send", "ordered.fifo", "--json-lines", "-", stdin=lines)
    assert done.code == 1 and done.out == "Sent 1 message to ordered.fifo.\n"
    assert "message 2 was refused: " in done.err and "messageGroupId" in done.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("x", "--attribute", "red"), 2, "--attribute 'red' must look like colour=red"),
        (("x", "--attribute", "size:=big"), 2, "'big' is not a number. Use = instead of := for text."),
        (("x", "--priority", "urgent"), 2, "'urgent' must be lowest, low, normal, high, highest, or a number"),
        (("x", "--priority", "300"), 2, "'300' must be"),
        (("x", "--file", "y"), 2, "Use either BODY or one of --file"),
        (("--file", "/no/such/file"), 2, "/no/such/file cannot be read: No such file or directory."),
        (("--lines", "/no/such/file"), 2, "/no/such/file cannot be read"),
        (("--json-lines", "-"), 1, "Line 1 of standard input is not a JSON object with a body, such as {"),
        (("x", "--delay", "367d"), 1, "--delay must be"),
        (("x", "--deliver-at", "tomorrow"), 2, "is not a time such as"),
    ],
)
def test_bad_input_of_send(shell: Shell, words: tuple[str, ...], code: int, said: str) -> None:
    shell.good("queue", "create", "bad-input")
    done = shell("send", "bad-input", *words, stdin=b"[1]\n")
    assert done.code == code and said in done.err, done
    assert shell.json("queue", "show", "bad-input")["stats"]["sent"] == 0


def test_a_body_is_asked_for_at_a_terminal(shell: Shell, queue: str) -> None:
    done = shell("send", queue, terminal=True)
    assert done.code == 2 and "The body is missing" in done.err
    assert shell("send", "nobodys", "x").code == 3


# --- receive, ack, nack, extend ---------------------------------------------------------------


def test_receive_shows_the_message_and_its_receipt(shell: Shell, queue: str) -> None:
    shell.good("send", queue, UNSAFE, "--attribute", "unsafe=\u202e")
    said = shell.good("receive", queue, "--consumer", "me")
    assert "\x1b" not in said and "\u202e" not in said
    assert "start\ufffd[2J\ufffd\nend" in said and "unsafe: \ufffd" in said and "receive 1" in said
    receipt = said.split("\nreceipt ")[1].split()[0]
    assert peeked(shell, queue)[0]["holder"] == "me"
    assert shell.good("ack", queue, receipt) == "1 message acknowledged.\n"
    assert peeked(shell, queue) == []


def test_receive_acks_what_it_has_printed(shell: Shell, queue: str) -> None:
    shell.good("send", queue, "--lines", "-", stdin=b'a\n{"b": 1}\nc\n')
    assert shell.good("receive", queue, "--max", "2", "--body-only", "--ack") == 'a\n{"b": 1}\n'
    done = shell("receive", queue, "--ack", "--wait", "1s")
    assert done.code == 0 and done.out.endswith("\n\nc\n") and done.err == "1 message acknowledged.\n"
    assert shell.json("queue", "show", queue)["stats"]["deleted"] == 3
    done = shell("receive", queue)
    assert (done.code, done.out) == (0, "") and f"Queue {queue} has no visible message" in done.err
    assert shell.json("receive", queue) == {"messages": []}


def test_receive_from_several_queues(shell: Shell) -> None:
    for name in ("many-1", "many-2", "other"):
        shell.good("queue", "create", name)
        shell.good("send", name, f"to {name}")
    assert sorted(shell.good("receive", "many-*", "--max", "5", "--body-only", "--ack").splitlines()) == [
        "to many-1",
        "to many-2",
    ]
    assert [shell.json("queue", "show", name)["stats"]["deleted"] for name in ("many-1", "many-2")] == [1, 1]
    (message,) = shell.json("receive", "many-1", "other")["messages"]
    assert message["queue"] == "other"
    assert "These queues have no visible message" in shell("receive", "many-1", "other").err
    assert shell("receive", "many-1", "no-such-queue").code == 3


def test_leases_by_receipt(shell: Shell, queue: str) -> None:
    shell.good("send", queue, "--lines", "-", stdin=b"a\nb\nc\n")
    received = shell.json("receive", queue, "--max", "3", "--visibility", "5m")["messages"]
    first, second, third = (message["receiptHandle"] for message in received)
    assert shell.good("extend", queue, first, "--by", "10m") == "1 message leased for 10m from now.\n"
    assert shell.json("extend", queue, second, "--by", "0s")["done"] == 1
    shell.good("nack", queue, third, "--reason", "no luck", "--error-class", "ValueError", "--delay", "1h")
    states = {message["body"]: message for message in peeked(shell, queue)}
    assert [states[body]["state"] for body in "abc"] == ["IN_FLIGHT", "VISIBLE", "DELAYED"]
    assert (
        states["c"]["lastFailure"]["reason"] == "no luck" and states["c"]["lastFailure"]["errorClass"] == "ValueError"
    )
    assert shell.json("ack", queue, "-", stdin=f"{first}\n".encode())["done"] == 1
    again = shell.json("receive", queue)["messages"][0]["receiptHandle"]
    assert shell.good("nack", queue, again, "--dead-letter", "--reason", "poison") == "1 message dead-lettered.\n"
    assert peeked(shell, f"{queue}-dead")[0]["deadLetter"]["reason"] == "poison"


@pytest.mark.parametrize("words", [("ack",), ("nack",), ("extend", "--by", "1m")])
def test_bad_receipts_are_reported_one_by_one(shell: Shell, queue: str, words: tuple[str, ...]) -> None:
    shell.good("send", queue, "a")
    good = shell.json("receive", queue)["messages"][0]["receiptHandle"]
    done = shell(words[0], queue, good, "nonsense", *words[1:])
    assert done.code == 1 and done.out.startswith("1 message ") and "baton: receipt nonsense…: " in done.err
    done = shell(words[0], queue, "-", *words[1:])
    assert done.code == 2 and "Give 1 to 1,000 receipts, not 0." in done.err
    assert shell(words[0], "nobodys", good, *words[1:]).code == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("receive", "q", "--max", "0"), "--max must be from 1 to 1,000, not 0."),
        (("receive", "q", "--wait", "1m"), "--wait must be at most 20s, not 60s."),
        (("peek", "q", "--limit", "101"), "--limit must be from 1 to 100, not 101."),
        (("peek", "q", "--state", "gone"), "unknown value 'GONE'. Choose from: DELAYED, VISIBLE"),
        (("tail", "q", "--interval", "1ms"), "--interval must be at least 0.1s."),
        (("tail", "q", "--count", "0"), "--count must be at least 1."),
        (("extend", "q", "r"), "the following arguments are required: --by"),
        (("extend", "q", "r", "--by", "never"), "'never' is not a duration"),
    ],
)
def test_wrong_usage(shell: Shell, words: tuple[str, ...], said: str) -> None:
    done = shell(*words)
    assert done.code == 2 and said in done.err, done


# --- peek and tail ----------------------------------------------------------------------------


def test_peek_explains_each_message(shell: Shell, queue: str) -> None:
    done = shell("peek", queue)
    assert (done.code, done.out, done.err) == (0, "", f"Queue {queue} has no messages.\n")
    shell.good("send", queue, "first")
    shell.good("send", queue, UNSAFE + "x" * 100)
    shell.good("send", queue, "third", "--delay", "1h")
    shell.good("receive", queue, "--consumer", "worker\x1b[2J")
    done = shell("peek", queue, "--limit", "2")
    head, held, waits = done.out.splitlines()
    assert head.split() == ["SEQUENCE", "STATE", "RECEIVED", "SENT", "MESSAGE", "ID", "BODY", "WHY"]
    assert "IN_FLIGHT         1  " in held and "  first  " in held
    assert held.index("Held by worker\ufffd[2J until ") == waits.index("Waiting to be received.") == head.index("WHY")
    assert "start\ufffd[2J\ufffd endxxx" in waits and "x…  " in waits
    next_page = done.err.removeprefix("There are more messages: ").split()
    found = shell.json("peek", queue, *next_page)
    assert [message["body"] for message in found["messages"]] == ["third"] and "nextAfter" not in found
    assert shell("peek", queue, "--after", "999999").err == f"Queue {queue} has no messages after 999999.\n"


def test_peek_filters(shell: Shell) -> None:
    shell.good("queue", "create", "filtered")
    shell.good("send", "filtered", "apple pie", "--group", "fruit")
    shell.good("send", "filtered", "leek soup", "--group", "vegetable")
    shell.good("send", "filtered", "late", "--delay", "1h")
    receipt = shell.json("receive", "filtered", "--consumer", "cook")["messages"][0]["receiptHandle"]

    def bodies(*words: str) -> list[str]:
        return [message["body"] for message in shell.json("peek", "filtered", *words)["messages"]]

    assert bodies("--state", "delayed") == ["late"]
    assert bodies("--text", "soup") == ["leek soup"]
    assert bodies("--group", "vegetable") == ["leek soup"]
    assert bodies("--holder", "cook") == ["apple pie"]
    shell.good("nack", "filtered", receipt, "--error-class", "Burnt", "--reason", "too hot")
    assert bodies("--error-class", "Burnt") == ["apple pie"]
    done = shell("peek", "filtered", "--text", "nothing like it")
    assert done.code == 0 and "Queue filtered has no such message" in done.err


def test_tail_prints_what_arrives(shell: Shell, queue: str) -> None:
    shell.good("send", queue, "--lines", "-", stdin=b"".join(b"old %d\n" % number for number in range(150)))
    done = shell("tail", queue, "--for", "0s")
    assert (done.code, done.out) == (0, "") and "Watching " in done.err
    out = shell.good("tail", queue, "--from-start", "--count", "120", "--interval", "100ms")
    assert len(out.splitlines()) == 120 and out.splitlines()[119].endswith("  old 119")
    out = shell.good("tail", queue, "--from-start", "--count", "2", "--json")
    values = [json.loads(line) for line in out.splitlines()]
    check_shape(("tail",), values[0])
    assert [value["body"] for value in values] == ["old 0", "old 1"]
    assert shell("tail", "nobodys").code == 3


def test_tail_follows_every_shard_of_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue on several shards has a range of sequence numbers per shard."""
    stored: list[int] = []

    def look(server: Server, queue: str, *, after: int = 0, limit: int = 10) -> dict[str, Any]:
        found = [number for number in sorted(stored) if number > after]
        page: dict[str, Any] = {"messages": [{"sequence": number} for number in found[:limit]]}
        return page | ({"nextAfter": found[limit - 1]} if len(found) >= limit else {})

    monkeypatch.setattr(tail, "look", look)
    second, third = 1 << NUMBER_BITS, 2 << NUMBER_BITS
    stored += [*range(1, 300), *range(third + 5, third + 500)]
    follower = tail.Follower(cast(Server, None), "wide")
    follower.skip()
    assert list(follower.read(None)) == []
    new = [300, 301, second + 1, *range(third + 500, third + 800)]
    stored += new
    assert [message["sequence"] for message in follower.read(5)] == new[:5]
    assert [message["sequence"] for message in follower.read(None)] == new[5:]
    stored[:] = [302, third + 800]  # consumers have taken all others
    assert [message["sequence"] for message in follower.read(None)] == [302, third + 800]
    assert list(follower.read(None)) == []
