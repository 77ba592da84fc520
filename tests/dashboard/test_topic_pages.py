"""The pages of topics and subscriptions: what they show, what they ask of REST, and how they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from batonq.api.http import Response
from tests.dashboard import samples
from tests.dashboard.pages import Browser, FakeRest, Refusal, header, text_of

TOPIC = "/v1/topics/events"
POLICY = {"kind": ["created"]}


@pytest.fixture
def rest() -> FakeRest:
    filtered = samples.subscription(
        "billing", filterPolicy=POLICY, filterPolicyScope="MessageBody", rawDelivery=True, deadLetterQueue="refused"
    )
    return FakeRest(
        {
            "GET /v1/topics": {"topics": [samples.topic(), samples.topic("quiet", subscriptions=0)]},
            "POST /v1/topics": samples.topic("made"),
            f"GET {TOPIC}": samples.topic(),
            f"PATCH {TOPIC}": samples.topic(),
            f"DELETE {TOPIC}": None,
            f"GET {TOPIC}/subscriptions": {"subscriptions": [samples.subscription("orders"), filtered]},
            f"POST {TOPIC}/subscriptions": samples.subscription("audit"),
            f"GET {TOPIC}/subscriptions/id-of-billing": filtered,
            f"PATCH {TOPIC}/subscriptions/id-of-billing": filtered,
            f"DELETE {TOPIC}/subscriptions/id-of-billing": None,
            f"POST {TOPIC}/messages": {"messageId": "m-1"},
        }
    )


@pytest.fixture
def browser(rest: FakeRest) -> Browser:
    return Browser(rest)


def submit(browser: Browser, path: str, **form: str) -> Response:
    return browser.send("POST", path, {"form_token": browser.form_token(), **form})


def changed(rest: FakeRest) -> list[tuple[str, Any]]:
    return [(name, body) for name, _, body in rest.asked if not name.startswith("GET")]


# --- the list


def test_topics_without_subscriptions_are_named(browser: Browser) -> None:
    page = browser.get("/ui/topics")
    assert "2 topics; quiet has no subscriptions." in text_of(page)
    assert '<a href="/ui/topics/events">events</a>' in page


def test_an_empty_list_says_what_to_do(browser: Browser, rest: FakeRest) -> None:
    rest.answers["GET /v1/topics"] = {"topics": []}
    assert "baton topic create orders" in text_of(browser.get("/ui/topics"))


def test_the_next_page_of_topics(browser: Browser, rest: FakeRest) -> None:
    rest.answers["GET /v1/topics"] = {"topics": [samples.topic()], "nextCursor": "c&d"}
    page = browser.get("/ui/topics")
    assert 'href="/ui/topics?cursor=c%26d"' in page and "1 topic on this page." in text_of(page)
    browser.get("/ui/topics?cursor=c%26d")
    assert rest.asked[-1][1] == {"cursor": "c&d"}


def test_a_topic_is_created(browser: Browser, rest: FakeRest) -> None:
    browser.get("/ui/create-topic")
    response = submit(browser, "/ui/create-topic", name=" made ", mode="FIFO", contentBased="true")
    assert header(response, "Location") == "/ui/topics/made"
    wanted = {"name": "made", "mode": "FIFO", "contentBasedDeduplication": True}
    assert changed(rest) == [("POST /v1/topics", wanted)]


def test_a_name_that_is_refused_is_explained_at_its_field(browser: Browser, rest: FakeRest) -> None:
    rest.answers["POST /v1/topics"] = Refusal(400, "invalid_input", "name must match a pattern.")
    browser.get("/ui/create-topic")
    response = submit(browser, "/ui/create-topic", name="no good")
    assert response.status == 422
    page = response.body.decode()
    assert '<a href="#f-name">Name</a>: name must match a pattern.' in page and 'value="no good"' in page


# --- a topic


def test_a_topic_says_who_gets_what(browser: Browser) -> None:
    page = browser.get("/ui/topics/events")
    text = text_of(page)
    assert "2 queues subscribed: orders , billing ." in text, "both are links"
    assert "every message" in text and '{"kind": ["created"]} of the body' in text
    assert 'href="/ui/topics/events/subscriptions/id-of-billing"' in page
    assert '<a href="/ui/queues/refused">refused</a>' in page


def test_a_topic_without_subscriptions_warns(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"GET {TOPIC}/subscriptions"] = {"subscriptions": []}
    text = text_of(browser.get("/ui/topics/events"))
    assert "what is published here goes nowhere" in text and "baton topic subscribe events QUEUE" in text


def test_a_subscription_whose_queue_is_gone_warns(browser: Browser, rest: FakeRest) -> None:
    gone = samples.subscription("gone", queueMissing=True)
    rest.answers[f"GET {TOPIC}/subscriptions"] = {"subscriptions": [gone]}
    assert "1 subscribed queue does not exist: gone ." in text_of(browser.get("/ui/topics/events"))


def test_copies_that_wait_are_said_first(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"GET {TOPIC}"] = samples.topic(waitingCopies=1_204, oldestWaitingSeconds=300.0)
    text = text_of(browser.get("/ui/topics/events"))
    assert "1,204 copies wait for a queue that is full, paused or out of reach, the oldest for 5 min." in text
    assert "oldest waiting 5 min" in text


def test_waiting_copies_are_listed_with_the_reason(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"GET {TOPIC}/messages"] = {"messages": [], "examined": 0, "complete": True}
    assert "No copy waits" in text_of(browser.get("/ui/topics/events/waiting"))
    copy = {**samples.peeked(7), "why": "Queue <orders> is full.", "body": "<b>"}
    rest.answers[f"GET {TOPIC}/messages"] = {"messages": [copy], "examined": 1, "complete": False, "nextAfter": 8}
    rest.answers[f"GET {TOPIC}"] = samples.topic(waitingCopies=2, oldestWaitingSeconds=3.0)
    page = browser.get("/ui/topics/events/waiting")
    assert "2 copies wait, and are retried for at most 4 d." in text_of(page)
    assert "Queue &lt;orders&gt; is full." in page and "waiting?after=8" in page and "<b>" not in page
    browser.get("/ui/topics/events/waiting?after=8")
    assert rest.asked[-1][1] == {"after": "8", "limit": "25"}


def test_a_queue_is_subscribed(browser: Browser, rest: FakeRest) -> None:
    browser.get("/ui/topics/events")
    fields = {"filterPolicy": '{"a": ["b"]}', "scope": "MessageBody", "raw": "true", "deadLetterQueue": "refused"}
    response = submit(browser, "/ui/topics/events", queue="audit", **fields)
    assert header(response, "Location") == "/ui/topics/events"
    wanted = {
        "queue": "audit",
        "filterPolicy": {"a": ["b"]},
        "filterPolicyScope": "MessageBody",
        "rawDelivery": True,
        "deadLetterQueue": "refused",
    }
    assert changed(rest) == [(f"POST {TOPIC}/subscriptions", wanted)]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"queue": ""}, "Name the queue that gets the copies."),
        ({"queue": "audit", "filterPolicy": "{"}, "This is not JSON"),
        ({"queue": "audit", "filterPolicy": "[1]"}, "A filter is a JSON object"),
    ],
)
def test_a_wrong_subscription_is_not_sent(browser: Browser, rest: FakeRest, fields: dict[str, str], said: str) -> None:
    browser.get("/ui/topics/events")
    response = submit(browser, "/ui/topics/events", **fields)
    assert response.status == 422 and said in text_of(response.body.decode())
    assert changed(rest) == []


def test_a_filter_that_the_server_refuses_is_explained_at_its_field(browser: Browser, rest: FakeRest) -> None:
    problem = Refusal(400, "invalid_input", "filterPolicy.kind[0]: numeric needs an operator.")
    rest.answers[f"POST {TOPIC}/subscriptions"] = problem
    browser.get("/ui/topics/events")
    page = submit(browser, "/ui/topics/events", queue="audit", filterPolicy='{"kind": [{"numeric": []}]}').body.decode()
    assert '<a href="#f-filterPolicy">Filter</a>: filterPolicy.kind[0]: numeric needs an operator.' in page


# --- a subscription


def test_a_subscription_is_changed(browser: Browser, rest: FakeRest) -> None:
    path = "/ui/topics/events/subscriptions/id-of-billing"
    page = browser.get(path)
    assert "billing gets a copy of the messages that its filter matches." in text_of(page)
    assert "&#34;created&#34;" in page, "the filter, in the editor"
    response = submit(browser, path, verb="save", filterPolicy="", scope="MessageAttributes", deadLetterQueue="")
    assert header(response, "Location") == path
    wanted = {"filterPolicy": None, "filterPolicyScope": None, "rawDelivery": False, "deadLetterQueue": None}
    assert changed(rest) == [(f"PATCH {TOPIC}/subscriptions/id-of-billing", wanted)]


def test_a_wrong_filter_stays_in_the_editor(browser: Browser, rest: FakeRest) -> None:
    path = "/ui/topics/events/subscriptions/id-of-billing"
    browser.get(path)
    response = submit(browser, path, verb="save", filterPolicy="{broken")
    assert response.status == 422 and "{broken</textarea>" in response.body.decode() and changed(rest) == []


def test_a_queue_is_unsubscribed(browser: Browser, rest: FakeRest) -> None:
    path = "/ui/topics/events/subscriptions/id-of-billing"
    browser.get(path)
    assert header(submit(browser, path, verb="unsubscribe"), "Location") == "/ui/topics/events"
    assert changed(rest) == [(f"DELETE {TOPIC}/subscriptions/id-of-billing", None)]


# --- publishing and trying


def test_trying_publishes_nothing(browser: Browser, rest: FakeRest) -> None:
    matches = [
        {"subscriptionId": "id-of-orders", "queue": "orders", "matches": True},
        {"subscriptionId": "id-of-billing", "queue": "billing", "matches": False, "reason": "kind is <deleted>"},
    ]
    rest.answers[f"POST {TOPIC}:match"] = {"matched": 1, "subscriptions": matches, "leftOut": 3}
    browser.get("/ui/topics/events/publish")
    fields = {"body": '{"kind": "deleted"}', "kind": "json", "attributes": '{"a": "b"}', "group": "g"}
    page = submit(browser, "/ui/topics/events/publish", action="match", **fields).body.decode()
    assert "1 of 5 subscriptions would get this message: orders. Nothing was published." in text_of(page)
    assert "kind is &lt;deleted&gt;" in page and "3 more subscriptions not shown" in text_of(page)
    assert changed(rest) == [(f"POST {TOPIC}:match", {"body": {"kind": "deleted"}, "attributes": {"a": "b"}})]


def test_a_message_is_published(browser: Browser, rest: FakeRest) -> None:
    browser.get("/ui/topics/events/publish")
    page = submit(browser, "/ui/topics/events/publish", action="publish", body="hello", kind="text").body.decode()
    assert "Published as" in page and "m-1" in page
    assert changed(rest) == [(f"POST {TOPIC}/messages", {"body": "hello"})]


def test_a_message_is_published_with_a_subject(browser: Browser, rest: FakeRest) -> None:
    browser.get("/ui/topics/events/publish")
    fields = {"action": "publish", "body": "hello", "kind": "text", "subject": ' A "title" '}
    page = submit(browser, "/ui/topics/events/publish", **fields).body.decode()
    assert changed(rest) == [(f"POST {TOPIC}/messages", {"body": "hello", "subject": 'A "title"'})]
    assert "A &#34;title&#34;" in page


def test_a_body_that_is_not_json_is_not_published(browser: Browser, rest: FakeRest) -> None:
    browser.get("/ui/topics/events/publish")
    response = submit(browser, "/ui/topics/events/publish", action="publish", body="{", kind="json")
    assert response.status == 422 and "This is not JSON" in text_of(response.body.decode()) and changed(rest) == []


# --- settings


def test_settings_are_changed(browser: Browser, rest: FakeRest) -> None:
    browser.get("/ui/topics/events/settings")
    path = "/ui/topics/events/settings"
    assert submit(browser, path, verb="save", displayName="Events", retentionSeconds="2h").status == 303
    assert changed(rest) == [(f"PATCH {TOPIC}", {"displayName": "Events", "retentionSeconds": 7_200})]
    response = submit(browser, path, verb="save", retentionSeconds="soon")
    assert response.status == 422 and "Write a number of seconds" in text_of(response.body.decode())


def test_deleting_asks_for_the_name(browser: Browser, rest: FakeRest) -> None:
    browser.get("/ui/topics/events/settings")
    response = submit(browser, "/ui/topics/events/settings", verb="delete", confirm="evnts")
    assert response.status == 422 and "Type the topic" in text_of(response.body.decode()) and changed(rest) == []
    response = submit(browser, "/ui/topics/events/settings", verb="delete", confirm="events")
    assert header(response, "Location") == "/ui/topics" and changed(rest) == [(f"DELETE {TOPIC}", None)]


# --- what holds for all


HOSTILE = '"><script>alert(1)</script>'


def test_hostile_text_is_escaped(browser: Browser, rest: FakeRest) -> None:
    hostile = samples.subscription(HOSTILE, filterPolicy={HOSTILE: [HOSTILE]}, deadLetterQueue=HOSTILE)
    rest.answers["GET /v1/topics"] = {"topics": [samples.topic(HOSTILE)]}
    rest.answers[f"GET {TOPIC}"] = samples.topic(HOSTILE, displayName=HOSTILE, tags={HOSTILE: HOSTILE})
    quoted = "%22%3E%3Cscript%3Ealert%281%29%3C%2Fscript%3E"
    for path in (TOPIC, f"/v1/topics/{HOSTILE}", f"/v1/topics/{quoted}"):
        rest.answers[f"GET {path}/subscriptions"] = {"subscriptions": [hostile]}
        rest.answers[f"GET {path}/subscriptions/id-of-billing"] = hostile
    pages = ("", "/events", "/events/settings", "/events/publish", "/events/subscriptions/id-of-billing")
    for page in pages:
        shown = browser.get(f"/ui/topics{page}")
        assert "<script>alert" not in shown and "alert(1)" in shown, page


def test_a_reader_sees_no_forms(rest: FakeRest) -> None:
    browser = Browser(rest, read_only=True)
    for path in ("/ui/topics", "/ui/topics/events", "/ui/topics/events/settings", "/ui/topics/events/publish"):
        page = browser.get(path)
        assert "<textarea" not in page and "Create a topic</a>" not in page, path
    page = browser.get("/ui/topics/events/subscriptions/id-of-billing")
    assert "<textarea" not in page and "created" in text_of(page)
