"""`baton queue`."""

from __future__ import annotations

import shlex

import pytest

from tests.cli.support import Shell


def test_create_shows_the_queue_and_makes_its_dead_letter_queue(shell: Shell) -> None:
    said = shell.good("queue", "create", "made", "--dead-letter-queue", "made-dead", "--max-receives", "4")
    assert said == "Queue made is created, with the dead-letter queue made-dead after 4 receives.\n"
    said = shell.good("queue", "create", "made")
    assert said == "Queue made already exists, unchanged, with the dead-letter queue made-dead after 4 receives.\n"
    queue = shell.json("queue", "create", "made")  # the same again is no error
    assert (queue["name"], queue["mode"], queue["maxReceiveCount"]) == ("made", "STANDARD", 4)
    assert shell.json("queue", "show", "made-dead")["queue"]["retentionSeconds"] == 14 * 86_400


def test_one_or_two_receives_get_a_warning_beside_the_result(shell: Shell) -> None:
    made = shell("queue", "create", "few", "--dead-letter-queue", "few-dead", "--max-receives", "1")
    assert made.code == 0 and "is created" in made.out
    assert made.err.startswith("warning: Queue few dead-letters a message after 1 receive, so one restart")
    assert "after 2 receives" in shell("queue", "set", "few", "--max-receives", "2").err
    assert shell.json("queue", "show", "few")["queue"]["warnings"]
    assert shell("queue", "set", "few", "--max-receives", "3").err == ""


def test_counters_show_where_every_message_went(shell: Shell) -> None:
    shell.good("queue", "create", "counted")
    shell.good("send", "counted", "one")
    shell.good("send", "counted", "two")
    shell.good("queue", "purge", "counted", "--yes")
    shell.good("send", "counted", "three")
    found = shell.json("queue", "counters", "counted")
    assert (found["counters"]["sent"], found["counters"]["deleted"], found["counters"]["present"]) == (3, 2, 1)
    head, *rows = shell.good("queue", "counters", "counted").splitlines()
    assert " ".join(head.split()) == "SHARD POSITION SENT ARRIVED DELETED EXPIRED MOVED PRESENT DELIVERED"
    assert rows[0].split()[2:] == ["3", "0", "2", "0", "0", "1", "0"]


def test_every_setting_has_a_flag_with_units(shell: Shell) -> None:
    queue = shell.json(
        *("queue", "create", "flags.fifo", "--visibility", "2m", "--retention", "1d", "--max-message-bytes", "64KiB"),
        *("--retry", "exponential:base=2s,max=1h,jitter=0.5", "--deduplication-window", "10m"),
        *("--deduplication-content-based", "true", "--expiry-to-dead-letter", "no", "--tag", "team=pay"),
    )
    assert queue["fifo"] and queue["tags"] == {"team": "pay"}
    assert (queue["defaultVisibilityTimeoutSeconds"], queue["retentionSeconds"]) == (120, 86_400)
    assert queue["maxMessageBytes"] == 65_536
    assert queue["retry"] == {"kind": "exponential", "baseSeconds": 2, "factor": 2, "maxSeconds": 3600, "jitter": 0.5}
    assert queue["deduplication"]["windowSeconds"] == 600 and queue["deduplication"]["contentBased"]
    shown = shell.good("queue", "show", "flags.fifo")
    assert "retry                        exponential: 2s, times 2 up to 1h, jitter 0.5\n" in shown
    assert "deduplication-content-based  true\n" in shown and "team  pay\n" in shown


def test_set_changes_only_what_is_named(shell: Shell) -> None:
    shell.good("queue", "create", "changed", "--sla", "5m", "--tag", "a=1")
    assert shell.good("queue", "set", "changed", "--visibility", "90s") == "visibility  1m30s\n"
    said = shell.good("queue", "set", "changed", "--retry", "1s,10s,1m", "--tag", "b=2")
    assert said == "retry  schedule: 1s, 10s, 1m\ntags  a=1, b=2\n"
    queue = shell.json("queue", "set", "changed", "--unset", "sla", "--unset", "retry")
    assert queue["slaSeconds"] == 0 and queue["defaultVisibilityTimeoutSeconds"] == 90
    assert (queue["retry"]["kind"], queue["retry"]["maxSeconds"]) == ("exponential", 300)
    assert "retry" not in shell.json("queue", "set", "changed", "--retry", "none")
    assert queue["tags"] == {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "changed"), "Nothing to change in queue changed. Give a setting, for example --visibility 60s."),
        (("set", "changed", "--unset", "visibilty"), "A queue has no setting 'visibilty'. Did you mean visibility?"),
        (("set", "changed", "--unset", "sla", "--sla", "1m"), "sla is both set and unset."),
        (("set", "changed", "--visibility", "soon"), "'soon' is not a duration such as 250ms, 30s"),
        (("set", "changed", "--retry", "often"), "'often' is not a retry policy such as exponential:"),
        (("set", "changed", "--spread", "many"), "'many' is not a whole number"),
        (("set", "changed", "--dead-letter-on", "never"), "'never' must be one of receive, failure"),
        (("set", "changed", "--strict-receipts", "maybe"), "'maybe' must be true or false"),
        (("create", "changed", "--tag", "team"), "--tag 'team' must look like team=payments."),
        (("list", "--sort", "visble"), "unknown value 'visble'. Did you mean visible?"),
        (("list", "--limit", "0"), "--limit must be at least 1."),
        (("lst",), "unknown command 'lst'. Did you mean list?"),
        (("list", "--jsn"), "unknown flag --jsn. Did you mean --json?"),
        (("show",), "the following arguments are required: QUEUE"),
        (("show", "one", "two"), "too many arguments: two"),
    ],
)
def test_wrong_usage_names_the_mistake(shell: Shell, words: tuple[str, ...], said: str) -> None:
    done = shell("queue", *words)
    assert done.code == 2 and said in done.err and not done.out, done


def test_refusals_of_the_server_name_the_flag(shell: Shell) -> None:
    shell.good("queue", "create", "strict")
    done = shell("queue", "create", "strict", "--visibility", "1h")
    assert done.code == 1
    assert "Queue strict already exists with a different --visibility." in done.err
    done = shell("queue", "set", "strict", "--visibility", "2d")
    assert done.code == 1 and done.err.startswith("baton: --visibility must be a number, 43,200 or less.")
    done = shell("queue", "set", "strict", "--deduplication-window", "30d")
    assert done.code == 1 and "--deduplication-window" in done.err
    done = shell("queue", "create", "no good name")
    assert done.code == 1 and done.err.startswith("baton: The name is not valid. Name of the queue: "), done


@pytest.mark.parametrize(
    "flags",
    [
        ("--max-receives", "2", "--dead-letter-queue", "other-dead"),
        ("--visibility", "90s", "--strict-receipts", "true"),
        ("--retry", "exponential:base=2,max=3600"),
        ("--retry", "1s,10s,60s"),
        ("--max-message-bytes", "2048"),
    ],
)
def test_a_queue_that_exists_with_other_settings_names_the_command_that_changes_it(
    shell: Shell, flags: tuple[str, ...]
) -> None:
    shell.good("queue", "create", "other", "--dead-letter-queue", "other-dead", "--max-receives", "5")
    done = shell("queue", "create", "other", *flags)
    assert done.code == 1 and done.err.startswith("baton: Queue other already exists with a different --"), done
    words = shlex.split(done.err.split("`")[1])
    assert words[:4] == ["baton", "queue", "set", "other"] and sorted(words[4:]) == sorted(flags)
    assert done.err.endswith("`, or choose another name.\n")
    shell.good(*words[1:])
    shell.good("queue", "create", "other", *flags)
    shell.good("queue", "delete", "other", "--yes")
    done = shell("queue", "create", "made", "--fifo")
    assert done.code == 1 and "queue set" not in done.err


@pytest.mark.parametrize("action", ["show", "set", "delete", "purge"])
def test_a_misspelled_queue_gets_a_suggestion(shell: Shell, action: str) -> None:
    shell.good("queue", "create", "parcels")
    more = {"set": ("--visibility", "1m"), "delete": ("--yes",), "purge": ("--yes",)}.get(action, ())
    done = shell("queue", action, "parcel", *more)
    assert (done.code, done.out) == (3, "")
    assert "Queue 'parcel' does not exist at http" in done.err and "Did you mean parcels?" in done.err


def test_delete_and_purge_say_what_they_destroy_and_ask(shell: Shell) -> None:
    shell.good("queue", "create", "doomed")
    shell.good("send", "doomed", "one")
    shell.good("send", "doomed", "two", "--delay", "1h")
    for action in ("purge", "delete"):
        done = shell("queue", action, "doomed")
        assert done.code == 2 and "2 messages (1 visible, 1 delayed)" in done.err and "--yes" in done.err
        done = shell("queue", action, "doomed", terminal=True, stdin=b"n\n")
        assert done.code == 1 and "Continue? [y/N]" in done.err and "Nothing was changed." in done.err
        assert shell.json("queue", "show", "doomed")["stats"]["visible"] == 1
    done = shell("queue", "purge", "doomed", terminal=True, stdin=b"y\n")
    assert done.code == 0 and done.out == "Queue doomed is purged: 2 messages deleted.\n"
    assert shell.json("queue", "purge", "doomed", "--yes") == {"queue": "doomed", "purged": True, "messages": 0}
    assert shell.json("queue", "delete", "doomed", "--yes") == {"queue": "doomed", "deleted": True, "messages": 0}
    assert shell("queue", "show", "doomed").code == 3
