"""`baton message` and `baton dlq`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.support import Shell


@pytest.fixture
def dead(shell: Shell, request: pytest.FixtureRequest) -> str:
    """A dead-letter queue with three messages: two with a CardError, one with a Timeout."""
    name = request.node.name.partition("[")[0].removeprefix("test_")[:50]
    shell.good("queue", "create", name, "--dead-letter-queue", f"{name}-dead")
    shell.good("send", name, "--lines", "-", stdin=b'{"card": 1}\n{"card": 2}\nslow\n')
    for place, message in enumerate(shell.json("receive", name, "--max", "3", "--consumer", "till-1")["messages"]):
        words = ("CardError", "declined \x1b[1m") if place < 2 else ("Timeout", "too slow")
        flags = ("--dead-letter", "--error-class", words[0], "--reason", words[1])
        shell.good("nack", name, message["receiptHandle"], *flags)
    return f"{name}-dead"


def messages(shell: Shell, queue: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shell.json("peek", queue)["messages"]
    return found


# --- one message ------------------------------------------------------------------------------


def test_show_says_where_a_message_is_and_what_happened(shell: Shell, dead: str) -> None:
    first = messages(shell, dead)[0]
    detail = shell.json("message", "show", dead, first["messageId"])
    assert detail["queue"] == dead and detail["state"] == "VISIBLE" and detail["history"]
    said = shell.good("message", "show", dead, first["messageId"])
    assert said.startswith(f"message {first['messageId']}\n") and "\x1b" not in said
    assert "dead letter" in said and "CardError: declined \ufffd[1m" in said and '{"card": 1}' in said
    assert "\nhistory\n" in said and "leased, receive 1, by till-1" in said


def test_retry_returns_a_dead_letter_to_its_source(shell: Shell, dead: str) -> None:
    source = dead.removesuffix("-dead")
    first, second, _ = messages(shell, dead)
    assert shell.good("message", "retry", dead, first["messageId"]).startswith(f"Message {first['messageId']} can be")
    shell.json("message", "retry", dead, second["messageId"])
    assert [each["body"] for each in messages(shell, source)] == [{"card": 1}, {"card": 2}]
    shell.good("send", source, "later", "--delay", "1h")
    delayed = messages(shell, source)[-1]
    shell.good("message", "retry", source, delayed["messageId"])
    assert messages(shell, source)[-1]["state"] == "VISIBLE"


def test_edit_changes_body_and_attributes(shell: Shell, dead: str) -> None:
    first = messages(shell, dead)[0]["messageId"]
    said = shell.good("message", "edit", dead, first, "--body", '{"card":  9}', "--attribute", "by=me")
    assert said == f"Message {first} is changed.\n"
    edited = shell.json("message", "edit", dead, first, "--attribute", "n:=1", "--remove-attribute", "by")
    assert edited["body"] == {"card": 9} and edited["attributes"] == {"n": 1}
    done = shell("message", "edit", dead, first)
    assert done.code == 2 and "Nothing to change. Use --body, --attribute or --remove-attribute." in done.err


def test_delete_asks(shell: Shell, dead: str) -> None:
    first = messages(shell, dead)[0]["messageId"]
    done = shell("message", "delete", dead, first)
    assert done.code == 2 and f"This deletes 1 message, {first}, of queue {dead}." in done.err
    assert shell.json("message", "delete", dead, first, "--yes")["deleted"]
    assert len(messages(shell, dead)) == 2
    done = shell("message", "delete", dead, messages(shell, dead)[0]["messageId"], terminal=True, stdin=b"y\n")
    assert done.code == 0 and done.out.endswith(" is deleted.\n") and len(messages(shell, dead)) == 1


@pytest.mark.parametrize("action", ["show", "delete", "retry", "edit"])
def test_a_message_or_queue_that_does_not_exist(shell: Shell, action: str) -> None:
    more = {"edit": ("--body", "x"), "delete": ("--yes",)}.get(action, ())
    shell.good("queue", "create", "empty")
    nobody = "4ada0000-8b91-88a6-8885-000000000000"
    done = shell("message", action, "empty", nobody, *more)
    assert done.code == 3 and nobody in done.err, done
    done = shell("message", action, "emty", nobody, *more)
    assert done.code == 3 and "Did you mean empty?" in done.err
    assert shell("message", action, "empty", "no id", *more).code in (1, 3)


# --- groups -----------------------------------------------------------------------------------


def test_dead_letters_are_grouped_by_their_error(shell: Shell, dead: str) -> None:
    found = shell.json("dlq", "show", dead)
    assert [(group["errorClass"], group["count"]) for group in found["groups"]] == [("CardError", 2), ("Timeout", 1)]
    said = shell.good("dlq", "list", dead)
    assert said.startswith(f"3 dead letters in {dead} from {dead.removesuffix('-dead')}\n") and "\x1b" not in said
    assert "2 × CardError: declined \ufffd[1m" in said and '{"card": ' in said
    card, timeout = (group["group"] for group in found["groups"])
    assert shell.json("redrive", dead, "--group", card, "--dry-run")["matched"] == 2
    done = shell("dlq", "delete", dead, "--group", timeout)
    assert done.code == 2 and f"This deletes 1 message of queue {dead}." in done.err
    assert shell.json("dlq", "delete", dead, "--group", timeout, "--yes")["state"] == "COMPLETED"
    assert len(messages(shell, dead)) == 2


def test_delete_all_or_a_selection(shell: Shell, dead: str) -> None:
    done = shell("dlq", "delete", dead, "--yes")
    assert done.code == 2 and f"Say which messages of {dead} to delete" in done.err
    assert shell("dlq", "delete", dead, "--all", "--error-class", "Timeout").code == 2
    assert shell.json("dlq", "delete", dead, "--error-class", "CardError", "--dry-run")["matched"] == 2
    assert len(messages(shell, dead)) == 3
    assert "COMPLETED" in shell.good("dlq", "delete", dead, "--all", "--yes")
    assert messages(shell, dead) == []
    assert shell("dlq", "show", dead).err == f"Queue {dead} has no dead letters.\n"
    done = shell("dlq", "show", "no-such-queue")
    assert done.code == 3 and "Queue 'no-such-queue' does not exist" in done.err
