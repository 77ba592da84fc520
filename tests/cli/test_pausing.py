"""`baton queue pause|resume|drain|pace` and `baton explain`."""

from __future__ import annotations

from threading import Timer

import pytest

from tests.cli.support import Shell


@pytest.mark.parametrize(
    ("flags", "paused", "said"),
    [
        ((), "delivery", "Delivery of queue work is paused: receives get nothing and long polls wait.\n"),
        (("--sends",), "sends", "Sends to queue work are paused: new messages are refused.\n"),
        (("--both",), "both", "Delivery of queue work and sends to it are paused.\n"),
    ],
)
def test_pause_and_resume(shell: Shell, flags: tuple[str, ...], paused: str, said: str) -> None:
    shell.good("queue", "create", "work")
    assert shell.good("queue", "pause", "work", *flags) == said
    assert shell.json("queue", "show", "work")["queue"]["paused"] == paused
    assert "paused. `baton queue resume work` resumes." in shell.good("queue", "show", "work")
    assert "paused" in shell.good("queue", "list", "work")
    assert shell.good("queue", "resume", "work") == "Queue work delivers and accepts all messages.\n"
    assert shell.json("queue", "show", "work")["queue"]["paused"] == "none"
    shell.good("queue", "delete", "work", "--yes")


def test_an_empty_receive_says_that_delivery_is_paused(shell: Shell) -> None:
    shell.good("queue", "create", "quiet")
    shell.good("send", "quiet", "a")
    shell.good("queue", "pause", "quiet")
    done = shell("receive", "quiet")
    assert done.code == 0 and "Delivery of queue quiet is paused; `baton queue resume quiet` resumes it." in done.err
    shell.good("queue", "resume", "quiet")
    shell.good("queue", "set", "quiet", "--minimum-priority", "200")
    assert "Queue quiet delivers only some messages" in shell("receive", "quiet").err


def test_a_refused_send_says_that_sends_are_paused(shell: Shell) -> None:
    shell.good("queue", "create", "closed")
    assert shell.json("queue", "pause", "closed", "--sends")["paused"] == "sends"
    done = shell("send", "closed", "x")
    assert done.code == 1 and "Sends to queue closed are paused. Retry when they are resumed." in done.err


def test_resume_lets_every_group_and_priority_through_and_keeps_the_cap(shell: Shell) -> None:
    shell.good("queue", "create", "some", "--only-group", "vip", "--minimum-priority", "200")
    assert shell.good("queue", "pace", "some", "20") == "Queue some delivers at most 20 messages per second.\n"
    queue = shell.json("queue", "resume", "some")
    assert queue["minimumPriority"] == 0 and "onlyGroup" not in queue and queue["deliveriesPerSecond"] == 20
    assert shell.good("queue", "pace", "some", "off") == "Queue some has no cap on its deliveries.\n"
    assert shell.json("queue", "pace", "some", "off")["deliveriesPerSecond"] == 0


def test_drain_shows_what_is_left_and_waits_for_the_end(shell: Shell) -> None:
    shell.good("queue", "create", "old")
    shell.good("send", "old", "a")
    shell.good("send", "old", "b", "--delay", "1h")
    said = shell.good("queue", "drain", "old")
    assert said == "Queue old takes no new messages; 2 messages left: 1 visible, 0 in flight, 1 delayed.\n"
    left = shell.json("queue", "drain", "old")
    assert (left["left"], left["visible"], left["delayed"]) == (2, 1, 1)
    done = shell("queue", "drain", "old", "--wait", "--timeout", "10ms")
    assert done.code == 1 and "2 messages left" in done.out
    timer = Timer(0.1, lambda: shell.good("queue", "purge", "old", "--yes"))
    timer.start()
    assert shell.good("queue", "drain", "old", "--wait") == "Queue old takes no new messages, and is empty.\n"
    timer.join()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pace", "q", "fast"), "'fast' must be a whole number of messages per second, such as 20, or off"),
        (("pace", "q", "0"), "'0' must be a whole number of messages per second"),
        (("pause", "q", "--sends", "--both"), "not allowed with argument"),
        (("pace", "q"), "the following arguments are required: RATE"),
    ],
)
def test_wrong_usage(shell: Shell, words: tuple[str, ...], said: str) -> None:
    done = shell("queue", *words)
    assert done.code == 2 and said in done.err, done


def test_explain_a_queue(shell: Shell) -> None:
    shell.good("queue", "create", "stuck")
    shell.good("send", "stuck", "a", "--group", "g1")
    shell.good("queue", "pause", "stuck")
    said = shell.good("explain", "stuck")
    assert said.startswith("stuck\npaused: Delivery is paused: 1 message waits, and receives get nothing.\n")
    assert "  Resume it: `baton queue resume stuck`.\n" in said
    assert "oldest visible message" in said and "\ng1               100%        1\n" in said
    found = shell.json("explain", "stuck")
    assert found["queue"]["findings"][0]["cause"] == "paused" and "message" not in found
    done = shell("explain", "nothing")
    assert done.code == 3 and "nothing" in done.err


def test_explain_a_message(shell: Shell) -> None:
    shell.good("queue", "create", "one")
    sent = shell.json("send", "one", "a")["messages"][0]["messageId"]
    shell.good("queue", "pause", "one")
    said = shell.good("explain", "one", sent)
    assert "Waiting: delivery of the queue is paused." in said
    assert "history\n" in said and "the queue\nDelivery is paused" in said
    found = shell.json("explain", "one", sent)
    assert found["message"]["messageId"] == sent and found["queue"]["queue"] == "one"
    done = shell("explain", "one", "no-such-message")
    assert done.code == 3 and "not a message id" in done.err


def test_a_minimum_priority_has_a_name_or_a_number(shell: Shell) -> None:
    shell.good("queue", "create", "urgent")
    assert shell.good("queue", "set", "urgent", "--minimum-priority", "high") == "minimum-priority  192\n"
    assert "'tall' is not a whole number" in shell("queue", "set", "urgent", "--minimum-priority", "tall").err
