"""The pages of retained history: reader groups, replays and exact counters."""

from __future__ import annotations

from typing import Any

import pytest

from batonq.api.http import Response
from batonq.api.ui.moments import read_moment
from tests.dashboard import samples
from tests.dashboard.pages import Browser, FakeRest, Refusal, header, text_of

QUEUE = "/v1/queues/orders"
HISTORY = "/ui/queues/orders/history"
GROUP = "/ui/queues/orders/readers/analytics"
REPLAY = "/ui/queues/orders/replay"
HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture
def rest() -> FakeRest:
    kept = {
        "position": "3:17",
        "messageId": "m-17",
        "sequence": 17,
        "sentAtMs": samples.NOW_MS - 5_000,
        "body": {"n": 1},
    }
    return FakeRest(
        {
            f"GET {QUEUE}": samples.queue(retainSeconds=86_400),
            f"GET {QUEUE}/stats": samples.stats(),
            f"GET {QUEUE}/series": samples.series(queue="orders"),
            f"GET {QUEUE}/readers": {"readers": [samples.reader()]},
            f"POST {QUEUE}/readers": samples.reader(),
            f"GET {QUEUE}/readers/analytics": samples.reader(),
            f"DELETE {QUEUE}/readers/analytics": None,
            f"POST {QUEUE}/readers/analytics:seek": samples.reader(),
            f"GET {QUEUE}/history": {"messages": [kept], "nextCursor": "next one"},
            f"GET {QUEUE}/counters": samples.counters(),
        }
    )


@pytest.fixture
def browser(rest: FakeRest) -> Browser:
    return Browser(rest)


def submit(browser: Browser, path: str, **form: str) -> Response:
    return browser.send("POST", path, {"form_token": browser.form_token(), **form})


def changed(rest: FakeRest) -> list[tuple[str, Any]]:
    return [(name, body) for name, _, body in rest.asked if not name.startswith("GET")]


# --- times


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2h", "2026-09-21T12:13:20Z"),
        (" 90 ", "2026-09-21T14:11:50Z"),
        ("250ms", "2026-09-21T14:13:19.750Z"),
        ("2026-11-17", "2026-11-17T00:00:00Z"),
        ("2026-11-17 08:30:00.123 UTC", "2026-11-17T08:30:00.123Z"),
        ("2026-11-17T08:30+02:00", "2026-11-17T06:30:00Z"),
    ],
)
def test_times_are_dates_or_how_long_ago(text: str, moment: str) -> None:
    assert read_moment(text, samples.NOW_MS) == moment


@pytest.mark.parametrize("text", ["", "soon", "-5", "99999999999d", "2026-13-01", "1e400", "0x10", "٣h" * 50])
def test_other_texts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"^Write 2h \(ago\), or a time such as"):
        read_moment(text, samples.NOW_MS)


# --- history


def test_a_queue_without_history_says_how_to_keep_it(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"GET {QUEUE}"] = samples.queue(retainSeconds=0)
    text = text_of(browser.get(HISTORY))
    assert "This queue keeps no history: a deleted message is gone." in text
    assert "baton queue set orders --retain" in text
    assert not [name for name, _, _ in rest.asked if name.endswith(("/readers", "/history"))]


def test_groups_and_retained_messages_are_listed(browser: Browser, rest: FakeRest) -> None:
    page = browser.get(HISTORY)
    text = text_of(page)
    assert "Every message is kept for 1 d, deleted or not; 1 reader group in step." in text
    assert f'<a href="{GROUP}">analytics</a>' in page and '{"n": 1}' in text
    assert "history?cursor=next+one" in page
    browser.get(f"{HISTORY}?from=2h&cursor=next+one")
    assert rest.asked[-1][1] == {"from": "2026-09-21T12:13:20Z", "cursor": "next one", "limit": "25"}
    browser.get(f"{HISTORY}?from=3:17")
    assert rest.asked[-1][1]["from"] == "3:17", "a position"


def test_a_group_that_is_behind_is_named(browser: Browser, rest: FakeRest) -> None:
    late = samples.reader("late", lagMessages=1_204, lagSeconds=300.0)
    rest.answers[f"GET {QUEUE}/readers"] = {"readers": [samples.reader(), late]}
    assert "the lag of reader group late is 1,204 messages and 5 min." in text_of(browser.get(HISTORY))


def test_a_wrong_time_is_explained(browser: Browser, rest: FakeRest) -> None:
    page = browser.get(f"{HISTORY}?from=soon", 422)
    assert "Write 2h (ago)" in text_of(page) and 'value="soon"' in page


def test_a_part_that_fails_is_shown_in_its_place(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"GET {QUEUE}/history"] = Refusal(503, "unavailable", "Shard 3 moves.")
    text = text_of(browser.get(HISTORY))
    assert "Shard 3 moves." in text and "analytics" in text


def test_a_group_is_created(browser: Browser, rest: FakeRest) -> None:
    browser.get(HISTORY)
    fields = {"from": "2h", "deadLetterQueue": "bad", "maxFailures": "5", "sessionSeconds": "1m"}
    response = submit(browser, HISTORY, name="analytics", **fields)
    assert header(response, "Location") == GROUP
    wanted = {
        "name": "analytics",
        "from": "2026-09-21T12:13:20Z",
        "deadLetterQueue": "bad",
        "maxFailures": 5,
        "sessionSeconds": 60.0,
    }
    assert changed(rest) == [(f"POST {QUEUE}/readers", wanted)]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a", "from": "soon"}, "from"),
        ({"name": "a", "maxFailures": "many"}, "maxFailures"),
        ({"name": "a", "sessionSeconds": "long"}, "sessionSeconds"),
    ],
)
def test_a_wrong_group_is_not_sent(browser: Browser, rest: FakeRest, fields: dict[str, str], field: str) -> None:
    browser.get(HISTORY)
    response = submit(browser, HISTORY, **fields)
    assert response.status == 422 and f'href="#f-{field}"' in response.body.decode() and changed(rest) == []


def test_a_group_that_the_server_refuses_is_explained(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"POST {QUEUE}/readers"] = Refusal(409, "conflict", "Group a exists with another deadLetterQueue.")
    browser.get(HISTORY)
    page = submit(browser, HISTORY, name="a").body.decode()
    assert '<a href="#f-deadLetterQueue">Dead-letter queue</a>: Group a exists' in page


# --- a group


def test_a_group_shows_positions_members_and_lag(browser: Browser) -> None:
    text = text_of(browser.get(GROUP))
    assert "In step: it has read everything." in text and "3:17" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lagMessages": 5, "lagSeconds": 2.0, "members": []}, "The lag is 5 messages and 2 s, and nobody reads"),
        ({"lagMessages": 1, "lagSeconds": 90.0}, "The lag is 1 message and 1.5 min."),
    ],
)
def test_a_group_says_how_it_is(browser: Browser, rest: FakeRest, changes: dict[str, Any], said: str) -> None:
    rest.answers[f"GET {QUEUE}/readers/analytics"] = samples.reader(**changes)
    assert said in text_of(browser.get(GROUP))


def test_a_failing_position_is_named(browser: Browser, rest: FakeRest) -> None:
    shard = {**samples.reader()["shards"][0], "failedPosition": "3:18", "failures": 2, "error": "boom <b>"}
    rest.answers[f"GET {QUEUE}/readers/analytics"] = samples.reader(shards=[shard])
    page = browser.get(GROUP)
    assert "Position 3:18 has failed 2 times." in text_of(page) and "boom &lt;b&gt;" in page


def test_a_group_seeks_to_a_time_or_to_positions(browser: Browser, rest: FakeRest) -> None:
    browser.get(GROUP)
    assert submit(browser, GROUP, verb="seek", to="end").status == 303
    assert submit(browser, GROUP, verb="seek", to="2h").status == 303
    assert submit(browser, GROUP, verb="seek", to="", positions="3:4 5:6").status == 303
    path = f"POST {QUEUE}/readers/analytics:seek"
    assert changed(rest) == [
        (path, {"to": "end"}),
        (path, {"to": "2026-09-21T12:13:20Z"}),
        (path, {"positions": ["3:4", "5:6"]}),
    ]


def test_a_wrong_seek_is_explained(browser: Browser, rest: FakeRest) -> None:
    browser.get(GROUP)
    assert submit(browser, GROUP, verb="seek", to="").status == 422
    rest.answers[f"POST {QUEUE}/readers/analytics:seek"] = Refusal(400, "invalid", "Position 9:9 is on no shard.")
    response = submit(browser, GROUP, verb="seek", positions="9:9")
    assert response.status == 422 and "Position 9:9 is on no shard." in response.body.decode()


def test_a_group_is_deleted(browser: Browser, rest: FakeRest) -> None:
    browser.get(GROUP)
    assert header(submit(browser, GROUP, verb="delete"), "Location") == HISTORY
    assert changed(rest) == [(f"DELETE {QUEUE}/readers/analytics", None)]


# --- replay


def job(**changes: Any) -> dict[str, Any]:
    return {
        "jobId": "j-1",
        "kind": "replay",
        "state": "COMPLETED",
        "sourceQueue": "orders",
        "matched": 214,
        "examined": 1_000,
        "moved": 0,
        "remaining": 214,
        "sample": [{"currentId": "message-0123456789ab", "body": {"n": 7}}],
        **changes,
    }


def test_a_replay_is_previewed_then_started(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"POST {QUEUE}:replay"] = job()
    assert "orders keeps every message for 1 d. Preview first." in text_of(browser.get(REPLAY))
    fields = {"from": "2h", "until": "1h", "rate": "10", "text": "needle", "attributes": '{"a": "b"}', "most": "1,000"}
    page = submit(browser, REPLAY, step="preview", **fields).body.decode()
    text = text_of(page)
    assert "This would send 214 messages to orders again. Nothing was sent yet." in text
    assert "Replay 214 messages to orders at 10/s, about 21 s" in text and '{"n": 7}' in text
    spec = {
        "maxMessagesPerSecond": 10,
        "from": "2026-09-21T12:13:20Z",
        "until": "2026-09-21T13:13:20Z",
        "maxMessages": 1_000,
        "filter": {"bodyContains": "needle", "attributes": {"a": "b"}},
    }
    assert changed(rest) == [(f"POST {QUEUE}:replay", {**spec, "dryRun": True})]
    response = submit(browser, REPLAY, step="start", target="copies", **fields)
    assert header(response, "Location") == "/ui/jobs/j-1"
    assert changed(rest)[-1] == (f"POST {QUEUE}:replay", {**spec, "targetQueue": "copies"})


def test_nothing_to_replay_cannot_be_started(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"POST {QUEUE}:replay"] = job(matched=0, examined=12, sample=[])
    browser.get(REPLAY)
    page = submit(browser, REPLAY, step="preview").body.decode()
    assert "Nothing to replay: none of 12 retained messages matches." in text_of(page)
    assert 'value="start"' not in page


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"from": "soon"}, "From: Write 2h (ago)"),
        ({"rate": "0"}, "Rate: write a whole number from 1 to 10,000, not '0'."),
        ({"most": "x"}, "At most: write a whole number"),
        ({"attributes": "[1]"}, "Attributes: write a JSON object"),
    ],
)
def test_a_wrong_replay_is_not_sent(browser: Browser, rest: FakeRest, fields: dict[str, str], said: str) -> None:
    browser.get(REPLAY)
    response = submit(browser, REPLAY, step="start", **fields)
    assert response.status == 400 and said in text_of(response.body.decode()) and changed(rest) == []


def test_a_queue_without_history_has_nothing_to_replay(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"GET {QUEUE}"] = samples.queue()
    assert "keeps no history, so there is nothing to replay" in text_of(browser.get(REPLAY))


# --- counters


def test_counters_say_whether_everything_is_accounted_for(browser: Browser, rest: FakeRest) -> None:
    text = text_of(browser.get("/ui/queues/orders/counters"))
    assert "Everything is accounted for: 12 messages came in; 5 deleted, 1 expired, 2 moved, 4 present." in text
    assert "3:1204" in text
    rest.answers[f"GET {QUEUE}/counters"] = samples.counters(unaccounted=1)
    assert "1 message cannot be accounted for." in text_of(browser.get("/ui/queues/orders/counters"))


# --- what holds for all


def test_hostile_text_is_escaped(browser: Browser, rest: FakeRest) -> None:
    shard = {"shard": 3, "committed": HOSTILE, "last": HOSTILE, "lagMessages": 1, "lagSeconds": 0.0, "member": HOSTILE}
    hostile = samples.reader(
        HOSTILE,
        deadLetterQueue=HOSTILE,
        shards=[{**shard, "failures": 1, "failedPosition": HOSTILE, "error": HOSTILE}],
    )
    message = {"position": HOSTILE, "messageId": HOSTILE, "sentAtMs": 1, "body": HOSTILE, "messageGroupId": HOSTILE}
    rest.answers[f"GET {QUEUE}/readers"] = {"readers": [hostile]}
    rest.answers[f"GET {QUEUE}/readers/analytics"] = hostile
    rest.answers[f"GET {QUEUE}/history"] = {"messages": [message], "nextCursor": HOSTILE}
    rest.answers[f"POST {QUEUE}:replay"] = job(sample=[{"currentId": HOSTILE, "body": HOSTILE}])
    fields = dict.fromkeys(("target", "text"), HOSTILE)
    pages = [browser.get(HISTORY), browser.get(GROUP), submit(browser, REPLAY, step="preview", **fields).body.decode()]
    for page in pages:
        assert "<script>alert" not in page and "alert(1)" in page


def test_a_reader_sees_no_forms(rest: FakeRest) -> None:
    browser = Browser(rest, read_only=True)
    for path in (HISTORY, GROUP, REPLAY):
        assert 'method="post"' not in browser.get(path).partition("<main")[2], path
