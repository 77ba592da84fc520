"""`baton schedule`."""

from __future__ import annotations

import pytest

from tests.cli.support import Shell


def test_a_schedule_from_its_creation_to_its_end(shell: Shell) -> None:
    shell.good("queue", "create", "reports")
    said = shell.good(
        "schedule", "create", "nightly@reports", '{"report": "daily"}', "--cron", "0 3 * * *", "--time-zone",
        "Europe/Berlin", "--attribute", "team=red", "--priority", "high", "--missed", "all",
    )  # fmt: skip
    assert (
        "0 3 * * * (Europe/Berlin)" in said
        and "ACTIVE" in said
        and '{"report": "daily"}' in said.replace('":"', '": "')
    )
    shown = shell.json("schedule", "show", "nightly@reports")
    assert shown["message"] == {"body": {"report": "daily"}, "attributes": {"team": "red"}, "priority": 192}
    assert shell.json("schedule", "create", "often@reports", "tick", "--every", "5m", "--paused")["rateSeconds"] == 300
    listed = shell.json("schedule", "list", "--queue", "reports")["schedules"]
    assert [one["scheduleId"] for one in listed] == ["nightly@reports", "often@reports"]
    table = shell.good("schedule", "list")
    assert "every 5m" in table and "PAUSED" in table
    changed = shell.json(
        "schedule", "set", "often@reports", "--resume", "--every", "1h", "--body", "tock", "--group", "g"
    )
    assert (changed["state"], changed["rateSeconds"], changed["message"]["body"]) == ("ACTIVE", 3600, "tock")
    assert shell.json("schedule", "set", "often@reports", "--pause")["state"] == "PAUSED"
    fired = shell.json("schedule", "fire", "often@reports")
    (message,) = shell.json("receive", "reports")["messages"]
    assert (message["messageId"], message["body"]) == (fired["messageId"], "tock")
    assert "Sent " in shell.good("schedule", "fire", "often@reports")
    assert shell.json("schedule", "delete", "often@reports", "--yes") == {
        "scheduleId": "often@reports",
        "deleted": True,
    }
    assert shell.good("schedule", "delete", "nightly@reports", "--yes") == "Schedule nightly@reports is deleted.\n"
    assert "no schedules" in shell("schedule", "list").err


def test_previews(shell: Shell) -> None:
    words = ("schedule", "preview", "--cron", "30 2 * * *", "--time-zone", "Europe/Berlin", "--count", "2")
    said = shell.good(*words, "--after", "2026-03-28T12:00:00Z")
    assert said == "2026-03-29T03:00:00+02:00\n2026-03-30T02:30:00+02:00\n"
    assert len(shell.json("schedule", "preview", "--every", "90s")["times"]) == 10
    ended = shell("schedule", "preview", "--every", "90s", "--end-at", "2020-01-01T00:00:00Z")
    assert (ended.code, ended.out) == (0, "") and "never due" in ended.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("create", "nightly", "x", "--every", "5m"), 2, "must name the schedule and its queue"),
        (("create", "a@wrong", "x"), 2, "Say when it fires"),
        (("create", "a@wrong", "x", "--every", "5m", "--cron", "* * * * *"), 2, "not allowed with"),
        (("create", "a@wrong", "x", "--cron", "* * 32 * *"), 1, "field 3 (day of month) is '32'"),
        (
            ("create", "a@wrong", "x", "--cron", "* * * * *", "--time-zone", "Europe/Berln"),
            1,
            "Did you mean Europe/Berlin?",
        ),
        (("create", "a@nowhere", "x", "--every", "5m"), 1, "Queue 'nowhere' does not exist"),
        (("create", "a@wrong", "x", "--every", "5m", "--start-at", "tomorrow"), 2, "is not a time such as"),
        (("set", "a@wrong"), 2, "Nothing to change"),
        (("set", "a@wrong", "--pause", "--resume"), 2, "not both"),
        (("set", "a@wrong", "--group", "g"), 2, "give its --body too"),
        (("show", "a@wrong"), 3, "Queue wrong has no schedule 'a'"),
        (("preview",), 2, "Give --cron"),
    ],
)
def test_what_is_wrong(shell: Shell, words: tuple[str, ...], code: int, said: str) -> None:
    shell("queue", "create", "wrong")
    done = shell("schedule", *words)
    assert done.code == code and said in done.err, done


def test_mistakes_are_told_in_words_of_the_command_line(shell: Shell) -> None:
    shell.good("queue", "create", "plain")
    shell.good("queue", "create", "ordered.fifo")
    said = shell("schedule", "create", "s@plain", "x", "--every", "0s").err
    assert said.startswith("baton: --every must be a number, 1 or more. --every: ")
    assert "needs a --group." in shell("schedule", "create", "s@ordered.fifo", "x", "--every", "5m").err
    assert "needs a --group." in shell("send", "ordered.fifo", "x").err
    assert "--delay must be a number, 31,622,400 or less." in shell("send", "plain", "x", "--delay", "400d").err
    assert "next (UTC)" in shell.good("schedule", "create", "s@plain", "x", "--every", "5m")
