"""`baton redrive` and `baton jobs`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.support import Shell, wait_for


@pytest.fixture
def dead(shell: Shell, request: pytest.FixtureRequest) -> str:
    """A dead-letter queue with six messages: four with a CardError, two with a Timeout."""
    name = request.node.name.partition("[")[0].removeprefix("test_")[:50]
    shell.good("queue", "create", name, "--dead-letter-queue", f"{name}-dead")
    shell.good("send", name, "--lines", "-", stdin=b"".join(b'{"card": %d}\n' % number for number in range(6)))
    received = shell.json("receive", name, "--max", "6")["messages"]
    for place, message in enumerate(received):
        error = ("CardError", "declined \x1b[1m") if place < 4 else ("Timeout", "too slow")
        words = ("--error-class", error[0], "--reason", error[1])
        shell.good("nack", name, message["receiptHandle"], "--dead-letter", *words)
    return f"{name}-dead"


def count(shell: Shell, queue: str) -> int:
    return int(shell.json("queue", "show", queue)["stats"]["visible"])


def test_a_dry_run_moves_nothing_and_shows_examples(shell: Shell, dead: str) -> None:
    said = shell.good("redrive", dead, "--error-class", "CardError", "--dry-run")
    assert "redrive (dry run)\n" in said and "matched         4\n" in said and "would be moved  4\n" in said
    assert "CardError: declined \ufffd[1m" in said and '{"card": 0}' in said and "\x1b" not in said
    assert shell.json("redrive", dead, "--dry-run", "--body-contains", '"card": 5')["matched"] == 1
    assert shell.json("redrive", dead, "--dry-run", "--reason", "slow", "--newer-than", "1h")["matched"] == 2
    assert shell.json("redrive", dead, "--dry-run", "--older-than", "1h")["matched"] == 0
    assert count(shell, dead) == 6


def test_a_replay_sends_deleted_messages_again(shell: Shell) -> None:
    shell.good("queue", "create", "kept", "--retain", "1h")
    shell.good("queue", "create", "kept-again")
    shell.good("send", "kept", "--lines", "-", stdin=b"".join(b'{"card": %d}\n' % number for number in range(6)))
    for message in shell.json("receive", "kept", "--max", "6")["messages"]:
        shell.good("ack", "kept", message["receiptHandle"])
    said = shell.good("replay", "kept", "--to", "kept-again", "--dry-run", "--body-contains", '"card": 5')
    assert "replay (dry run)\n" in said and "would be sent again  1\n" in said
    assert shell.json("replay", "kept", "--dry-run", "--older-than", "1h")["matched"] == 0
    assert shell.json("replay", "kept", "--dry-run", "--until", "2020-01-31T09:00:00Z")["matched"] == 0
    done = shell("replay", "kept", "--to", "kept-again", "--rate", "1000", "--max", "4", terminal=True)
    assert done.code == 0 and "COMPLETED" in done.out and "sent again  4" in done.out
    assert (count(shell, "kept"), count(shell, "kept-again")) == (0, 4)
    assert "is not a time such as" in shell("replay", "kept", "--from", "yesterday").err
    refused = shell("replay", "kept-again")
    assert refused.code == 1 and "does not retain its history" in refused.err and "--retain" in refused.err


def test_a_redrive_is_watched_to_its_end(shell: Shell, dead: str) -> None:
    source = dead.removesuffix("-dead")
    done = shell("redrive", dead, "--error-class", "Timeout", "--rate", "1000", terminal=True)
    assert done.code == 0 and "COMPLETED" in done.out and "moved     2" in done.out
    assert (count(shell, dead), count(shell, source)) == (4, 2)
    job = shell.json(
        *("redrive", dead, "--to", source, "--rate", "1000", "--max", "1", "--set-attribute", "again=yes"),
        *("--replace-text", "card", "order"),
    )
    assert (job["state"], job["moved"]) == ("COMPLETED", 1)
    (edited,) = [each for each in shell.json("peek", source)["messages"] if each.get("attributes")]
    assert edited["attributes"] == {"again": "yes"} and "order" in str(edited["body"])


def test_a_job_is_paused_resumed_and_cancelled(shell: Shell, dead: str) -> None:
    job = shell.json("redrive", dead, "--rate", "1", "--no-wait")
    name = job["jobId"]
    assert shell.json("jobs", "pause", name)["state"] == "PAUSED"
    said = shell.good("jobs", "show", name)
    assert "state " in said and "PAUSED" in said
    assert shell.json("jobs", "show", name, "--watch", code=1)["state"] == "PAUSED"  # not done, and nothing to wait for
    assert shell.json("redrive", "--resume", name)["state"] == "RUNNING"
    assert shell.json("redrive", "--pause", name)["state"] == "PAUSED"
    listed = shell.json("jobs", "list", "--queue", dead)["jobs"]
    assert [each["jobId"] for each in listed] == [name]
    assert name in shell.good("jobs", "list", "--queue", dead)
    assert shell.json("jobs", "cancel", name)["state"] in ("CANCELLING", "CANCELLED")

    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = shell.json("jobs", "show", name)
        return found if found["state"] == "CANCELLED" else None

    assert wait_for(ended)["moved"] + count(shell, dead) == 6
    assert "No job is active" in shell("jobs", "list", "--queue", dead).err
    assert name in shell.good("jobs", "list", "--queue", dead, "--all")


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_a_redrive_that_is_paused_while_it_is_watched_is_not_done(
    shell: Shell, dead: str, json: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def pause(_: float) -> None:
        (job,) = shell.json("jobs", "list", "--queue", dead)["jobs"]
        shell.good("jobs", "pause", job["jobId"])

    with monkeypatch.context() as patched:
        patched.setattr("batonq.cli.jobs.time.sleep", pause)
        done = shell("redrive", dead, "--rate", "1", *json)
    assert done.code == 1 and "PAUSED" in done.out, done
    (job,) = shell.json("jobs", "list", "--queue", dead)["jobs"]
    name = job["jobId"]
    assert f"Job {name} is paused" in done.err
    assert f"Resume it with `baton jobs resume {name}`, or end it with `baton jobs cancel {name}`." in done.err
    shell.good("jobs", "cancel", name)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("redrive",), 2, "Name the dead-letter queue, for example `baton redrive orders-dead`, or a job to control."),
        (("redrive", "q", "--cancel", "j"), 2, "Name the dead-letter queue"),
        (("redrive", "no-such-queue"), 3, "Queue 'no-such-queue' does not exist at "),
        (("redrive", "q", "--rate", "fast"), 2, "invalid int value: 'fast'"),
        (("redrive", "--pause", "j", "--resume", "j"), 2, "not allowed with argument --pause"),
        (("redrive", "q", "--attribute", "x"), 2, "--attribute 'x' must look like"),
        (("jobs", "show", "no-such-job"), 3, "does not exist"),
        (("jobs", "cancel", "no-such-job"), 3, "does not exist"),
        (("jobs", "list", "--queue", "no-such-queue"), 3, "Queue 'no-such-queue' does not exist at "),
        (("jobs", "sow", "x"), 2, "unknown command 'sow'. Did you mean show?"),
    ],
)
def test_bad_input(shell: Shell, words: tuple[str, ...], code: int, said: str) -> None:
    done = shell(*words)
    assert done.code == code and said in done.err, done


def test_mistakes_of_a_replay_are_told_in_words_of_the_command_line(shell: Shell) -> None:
    shell.good("queue", "create", "kept", "--retain", "1h")
    assert "--rate must be an integer, 1 or more. --rate: Rate in messages per second; default 100." in (
        shell("replay", "kept", "--rate", "0").err
    )
    assert "SHARD:NUMBER" in shell("replay", "kept", "--from-position", "abc").err
    assert "--message must be text of 36 or more" in shell("replay", "kept", "--message", "x").err
    times = ("--from", "2026-11-18T00:00:00Z", "--until", "2026-11-17T00:00:00Z")
    assert "--until is not after --from" in shell("replay", "kept", *times).err
    wrong = shell("jobs", "show", "nope")
    assert wrong.code == 3 and "Job 'nope': The job does not exist. `baton jobs list --all` lists jobs." in wrong.err
