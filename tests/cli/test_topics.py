"""`baton topic`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.support import Shell


def subscribed(shell: Shell, topic: str, queue: str, *flags: str) -> None:
    shell.good("queue", "create", queue)
    shell.good("topic", "subscribe", topic, queue, *flags)


def test_topics_are_created_listed_changed_and_deleted(shell: Shell) -> None:
    assert shell.good("topic", "create", "news", "--tag", "team=web") == "Topic news is created.\n"
    assert shell.good("topic", "create", "news") == "Topic news already exists, unchanged.\n"
    shell.good("topic", "create", "news-old", "--display-name", "Old news", "--retention", "1h")
    listed = shell.json("topic", "list", "news")["topics"]
    assert [(topic["name"], topic["retentionSeconds"]) for topic in listed] == [("news", 345_600), ("news-old", 3_600)]
    assert "Old news" in shell.good("topic", "list")
    assert shell.good("topic", "list", "news", "--names") == "news\nnews-old\n"
    assert shell.good("topic", "set", "news", "--retention", "2d", "--tag", "a=b") == "Topic news is changed.\n"
    changed = shell.json("topic", "set", "news", "--unset", "retention", "--display-name", "News")
    assert (changed["retentionSeconds"], changed["displayName"]) == (345_600, "News")
    assert changed["tags"] == {"team": "web", "a": "b"}
    shown = shell("topic", "show", "news")
    assert "retention     4d" in shown.out and "tags          a=b, team=web" in shown.out
    assert "No queue is subscribed. Subscribe one with `baton topic subscribe news QUEUE`." in shown.err
    assert shell.good("topic", "delete", "news-old", "--yes") == "Topic news-old is deleted.\n"
    assert shell.json("topic", "delete", "news", "--yes") == {"topic": "news", "deleted": True, "subscriptions": 0}


def test_fifo_topics_by_flag_or_by_name(shell: Shell) -> None:
    assert shell.json("topic", "create", "ordered", "--fifo", "--content-based-deduplication", "true")["fifo"]
    assert shell.json("topic", "create", "ordered.fifo")["fifo"]
    assert "content-based deduplication  true" in shell.good("topic", "show", "ordered")
    done = shell("topic", "create", "ordered")
    assert done.code == 1 and "already exists with a different mode" in done.err


def test_a_published_message_reaches_the_queues_that_match(shell: Shell, tmp_path: Path) -> None:
    shell.good("topic", "create", "sales")
    subscribed(shell, "sales", "sales-all")
    subscribed(shell, "sales", "sales-north", "--filter", '{"shop": ["north"]}')
    said = shell.good("topic", "publish", "sales", '{"n": 1}', "--attribute", "shop=north")
    assert said.startswith("Published ") and said.endswith(" to sales.\n")
    lines = tmp_path / "lines.txt"
    lines.write_text("two\nthree\n")
    sent = shell.json("topic", "publish", "sales", "--lines", str(lines), "--attribute", "shop=south")
    assert (sent["topic"], sent["sent"], sent["failed"], len(sent["messages"])) == ("sales", 2, 0, 2)
    assert shell.json("queue", "show", "sales-all")["stats"]["visible"] == 3
    [message] = shell.json("receive", "sales-north", "--max", "10")["messages"]
    assert (message["body"], message["attributes"]) == ({"n": 1}, {"shop": "north"})


def test_the_envelope_shows_the_subject(shell: Shell) -> None:
    shell.good("topic", "create", "titled")
    subscribed(shell, "titled", "titled-queue", "--envelope")
    shell.good("topic", "publish", "titled", "full", "--subject", "Disk full")
    [message] = shell.json("peek", "titled-queue")["messages"]
    assert json.loads(message["body"])["Subject"] == "Disk full"
    done = shell("send", "titled-queue", "full", "--subject", "no topic")
    assert done.code == 2 and "--subject" in done.err


def test_a_queue_shows_its_topics_and_its_deletion_warns(shell: Shell) -> None:
    shell.good("topic", "create", "first")
    subscribed(shell, "first", "listener")
    assert "subscribed to            1 topic (first)\n" in shell.good("queue", "show", "listener")
    done = shell("queue", "delete", "listener")
    assert done.code != 0 and "It is subscribed to 1 topic (first): copies for it will be refused." in done.err
    shell.good("topic", "unsubscribe", "first", "listener")
    assert "subscribed to" not in shell.good("queue", "show", "listener")
    assert "subscribed" not in shell("queue", "delete", "listener").err


def test_copies_that_wait_are_shown(shell: Shell) -> None:
    shell.good("queue", "create", "small", "--max-messages", "1")
    shell.good("topic", "create", "busy")
    assert "waiting copies" not in shell.good("topic", "show", "busy")
    shell.good("topic", "subscribe", "busy", "small")
    for body in ("one", "two", "three"):
        shell.good("topic", "publish", "busy", body)
    assert "2, the oldest for " in shell.good("topic", "show", "busy")
    shown = shell.good("topic", "waiting", "busy", "--limit", "1")
    assert "two" in shown and "three" not in shown
    assert len(shell.json("topic", "waiting", "busy")["messages"]) == 2
    assert shell("topic", "waiting", "busy", "--limit", "0").code == 2


def test_subscriptions_are_shown_replaced_and_removed(shell: Shell) -> None:
    shell.good("topic", "create", "events")
    shell.good("queue", "create", "events-dead")
    subscribed(shell, "events", "events-a", "--filter", '{"kind": [{"prefix": "x"}]}', "--filter-on", "body")
    shown = shell.good("topic", "show", "events")
    assert 'events-a  raw                     body: {"kind": [{"prefix": "x"}]}' in shown
    assert shell.good("topic", "subscribe", "events", "events-a", "--filter", '{"kind": [{"prefix": "x"}]}') == (
        "Queue events-a is already subscribed to topic events, unchanged.\n"
    )
    done = shell("topic", "subscribe", "events", "events-a", "--envelope")
    assert done.code == 1 and "with a different rawDelivery" in done.err and "--replace" in done.err
    said = shell.good(
        *("topic", "subscribe", "events", "events-a", "--envelope", "--dead-letter-queue", "events-dead", "--replace")
    )
    assert said == "The subscription of queue events-a to topic events is changed.\n"
    [subscription] = shell.json("topic", "show", "events")["subscriptions"]
    assert (subscription["rawDelivery"], subscription["deadLetterQueue"]) == (False, "events-dead")
    assert "filterPolicy" not in subscription
    assert shell.good("topic", "unsubscribe", "events", "events-a") == (
        "Queue events-a is unsubscribed from topic events.\n"
    )
    done = shell("topic", "unsubscribe", "events", "events-a")
    assert done.code == 3 and "Queue events-a is not subscribed to topic events." in done.err


def test_match_says_who_would_get_a_message(shell: Shell) -> None:
    shell.good("topic", "create", "matched")
    subscribed(shell, "matched", "matched-a", "--filter", '{"shop": ["north"]}')
    subscribed(shell, "matched", "matched-b", "--filter", '{"n": [1]}', "--filter-on", "body")
    done = shell("topic", "match", "matched", '{"n": 1}', "--attribute", "shop=south")
    assert "matched-b  yes" in done.out
    assert "matched-a  no       The attribute shop does not match." in done.out
    assert done.err == "1 of 2 subscriptions would get the message.\n"
    assert shell.json("topic", "match", "matched", "--attribute", "shop=north")["matched"] == 1


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("show", "nws"), 3, "Topic 'nws' does not exist at "),
        (("publish", "nws", "x"), 3, "`baton topic list` lists the topics."),
        (("create", "a b"), 1, "name"),
        (("create", "tagged", "--tag", "x"), 2, "--tag 'x' must look like team=payments."),
        (("set", "wrong"), 2, "Nothing to change in topic wrong. Give a setting, for example --retention 1d."),
        (("set", "wrong", "--retention", "1d", "--unset", "retention"), 2, "retention is both set and unset."),
        (("subscribe", "wrong", "wrong-q", "--filter", "{"), 2, "--filter is not JSON"),
        (("subscribe", "wrong", "wrong-q", "--filter", "[]"), 2, "--filter must be a JSON object"),
        (("subscribe", "wrong", "wrong-q", "--filter", '{"a": [{"b": 1}]}'), 1, "at a[0]: unrecognized match type b"),
        (("subscribe", "wrong", "nowhere"), 3, "Queue 'nowhere' does not exist at"),
        (("subscribe", "wrong", "wrong-q", "--dead-letter-queue", "gone"), 3, "Queue 'gone' does not exist at"),
        (("delete", "wrong"), 2, "add --yes to do this without a terminal"),
    ],
)
def test_wrong_usage_names_the_mistake(shell: Shell, words: tuple[str, ...], code: int, said: str) -> None:
    shell.good("topic", "create", "wrong")
    shell.good("queue", "create", "wrong-q")
    done = shell("topic", *words)
    assert done.code == code and said in done.err, done
    assert json.dumps(done.out) == '""'
