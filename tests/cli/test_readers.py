"""`baton reader`: reader groups and retained history at the command line."""

from __future__ import annotations

import pytest

from tests.cli.support import Shell


@pytest.fixture
def queue(shell: Shell, request: pytest.FixtureRequest) -> str:
    """A queue that retains its history, with three messages that are deleted."""
    name: str = request.node.name.removeprefix("test_")[:50]
    shell.good("queue", "create", name, "--retain", "1h")
    shell.good("send", name, "--lines", "-", stdin=b'{"n": 0}\n{"n": 1}\n"evil \x1b[1m"\n')
    for message in shell.json("receive", name, "--max", "3")["messages"]:
        shell.good("ack", name, message["receiptHandle"])
    return name


def test_a_group_is_created_read_and_deleted(shell: Shell, queue: str) -> None:
    assert "has no reader groups" in shell("reader", "list", queue).err
    said = shell.good("reader", "create", queue, "audit")
    assert "lag  " in said and "3 messages" in said
    assert shell.json("reader", "list", queue)["readers"][0]["lagMessages"] == 3
    assert "audit" in shell.good("reader", "list", queue)
    said = shell.good("reader", "read", queue, "audit", "--limit", "2", "--commit")
    assert '{"n": 0}' in said and '{"n": 1}' in said
    shown = shell.json("reader", "show", queue, "audit")
    assert (shown["lagMessages"], shown["members"]) == (1, [])
    assert len(shell.json("reader", "read", queue, "audit")["messages"]) == 1  # not committed
    refused = shell("reader", "delete", queue, "audit")
    assert refused.code != 0 and "add --yes" in refused.err and "its lag is 1 message" in refused.err
    assert shell.json("reader", "delete", queue, "audit", "--yes")["deleted"] is True
    missing = shell("reader", "show", queue, "audit").err
    assert f"has no reader group 'audit'. `baton reader list {queue}` lists its groups." in missing


def test_history_is_read_without_a_group(shell: Shell, queue: str) -> None:
    said = shell.good("reader", "read", queue)
    assert '{"n": 0}' in said and "\x1b" not in said
    positions = [each["position"] for each in shell.json("reader", "read", queue)["messages"]]
    assert len(shell.json("reader", "read", queue, "--from", positions[1])["messages"]) == 2
    assert len(shell.json("reader", "read", queue, "--limit", "1")["messages"]) == 1


def test_a_group_seeks(shell: Shell, queue: str) -> None:
    shell.good("reader", "create", queue, "audit", "--from", "end", "--max-failures", "5", "--session", "1m")
    shown = shell.json("reader", "show", queue, "audit")
    assert (shown["lagMessages"], shown["maxFailures"], shown["sessionSeconds"]) == (0, 5, 60)
    assert shell.json("reader", "seek", queue, "audit", "--to", "start", "--yes")["lagMessages"] == 3
    position = shell.json("reader", "read", queue)["messages"][2]["position"]
    assert shell.json("reader", "seek", queue, "audit", "--position", position, "--yes")["lagMessages"] == 1
    wrong = shell("reader", "seek", queue, "audit", "--to", "tuesday", "--yes")
    assert wrong.code != 0 and "--to: 'tuesday' is neither" in wrong.err
    wrong = shell("reader", "seek", queue, "audit", "--position", "0:7", "--yes")
    assert wrong.code != 0 and "no retained message at position 0:7" in wrong.err


def test_mistakes_are_told_in_words_of_the_command_line(shell: Shell, queue: str) -> None:
    assert shell.good("reader", "create", queue, "g").startswith(f"Reader group g of queue {queue} is created.\n")
    again = shell("reader", "create", queue, "g")
    assert "already exists, unchanged." in again.out and not again.err
    again = shell("reader", "create", queue, "g", "--from", "end", "--json")
    assert again.code == 0 and f"`baton reader seek {queue} g --to end`" in again.err
    wrong = shell("reader", "seek", queue, "g", "--yes")
    assert wrong.code == 2 and "one of the arguments --to --position is required" in wrong.err
    wrong = shell("reader", "seek", queue, "g", "--to", "start", "--position", "0:5", "--yes")
    assert wrong.code == 2 and "not allowed with argument" in wrong.err
    assert "--position: '5' is not a position" in shell("reader", "seek", queue, "g", "--position", "5", "--yes").err
    assert "--session must be a number, 1 or more" in shell("reader", "create", queue, "h", "--session", "0").err
    shell.good("queue", "create", "forgetful")
    assert "Set --retain on the queue" in shell("reader", "read", "forgetful").err
