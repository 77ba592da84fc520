"""The pages of queues: what they show, what they ask of REST, and how they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dashboard import samples
from tests.dashboard.pages import Browser, FakeRest, Refusal, header, text_of

QUEUE = "/v1/queues/orders"


@pytest.fixture
def rest() -> FakeRest:
    return FakeRest(
        {
            "GET /v1/status": samples.status(),
            "GET /v1/queues:stats": samples.queue_stats(samples.summary("orders"), samples.summary("emails")),
            f"GET {QUEUE}": samples.queue(),
            f"GET {QUEUE}/stats": samples.stats(),
            f"GET {QUEUE}/messages": {"messages": [samples.peeked(1), samples.peeked(2)], "nextAfter": 3},
            f"GET {QUEUE}/series": samples.series(queue="orders"),
            "GET /v1/series": samples.series(),
        }
    )


@pytest.fixture
def browser(rest: FakeRest) -> Browser:
    return Browser(rest)


def changed(rest: FakeRest) -> list[tuple[str, Any]]:
    return [(name, body) for name, _, body in rest.asked if not name.startswith("GET")]


# --- overview


def test_the_overview_begins_with_the_answer(browser: Browser) -> None:
    text = text_of(browser.get("/ui"))
    assert "All well: 14 queues, oldest message 2 s." in text
    assert "1,204/s" in text and "0.4 %" in text and "48,312" in text


def test_problems_lead_to_where_they_are_solved(browser: Browser, rest: FakeRest) -> None:
    problems = [
        {"level": "warning", "text": "a/b has 2 dead letters", "queue": "a/b"},
        {"level": "critical", "text": "the disk is full", "alarm": "disk"},
        {"level": "warning", "text": "something else"},
        {"level": "warning", "text": "c is late", "queue": "c", "account": "111111111111", "alarm": "age.c"},
        {"level": "warning", "text": "d is late", "queue": "d", "account": "000000000000"},
    ]
    verdict = {"level": "critical", "sentence": "3 things need you: a/b has 2 dead letters.", "problems": problems}
    rest.answers["GET /v1/status"] = samples.status(verdict=verdict, alarms={"active": 2, "unacknowledged": 1})
    page = browser.get("/ui")
    assert '<a href="/ui/queues/a%2Fb/dead-letters">a/b has 2 dead letters</a>' in page
    assert '<a href="/ui/alarms/disk">the disk is full</a>' in page
    assert '<a href="/ui/alarms/age.c">c is late</a>' in page  # a queue of another account
    assert '<a href="/ui/queues/d">d is late</a>' in page
    text = text_of(page)
    assert text.count("a/b has 2 dead letters") == 1 and "something else" in text


def test_active_alarms_are_listed(browser: Browser, rest: FakeRest) -> None:
    rest.answers["GET /v1/status"] = samples.status(alarms={"active": 2, "unacknowledged": 1})
    raised = {"severity": "warning", "raisedAtMs": samples.NOW_MS - 90_000}
    rest.answers["GET /v1/alarms"] = {
        "alarms": [
            {"alarm": "a.b", "text": "orders is late.", **raised},
            {"alarm": "c", "text": "The disk is full.", **raised, "acknowledgedAtMs": samples.NOW_MS},
        ]
    }
    page = browser.get("/ui")
    assert '<a href="/ui/alarms/a.b">orders is late.</a>' in page
    text = text_of(page)
    assert "Alarms 2 active, 1 not acknowledged" in text
    assert "The disk is full. raised 1 min ago , acknowledged" in text


def test_the_overview_stays_small_whatever_the_names_and_problems_are(browser: Browser, rest: FakeRest) -> None:
    name = "n" * 80
    problems = [{"level": "warning", "text": f"{name}-{number} is late", "queue": name} for number in range(5_000)]
    verdict = {"level": "warning", "sentence": "5,000 queues need you.", "problems": problems}
    rest.answers["GET /v1/status"] = samples.status(verdict=verdict, queues=5_000)
    rest.answers["GET /v1/queues:stats"] = samples.queue_stats(*[samples.summary(name)] * 15, total=5_000)
    assert len(browser.get("/ui")) < 100_000
    assert rest.asked[-1][1]["limit"] == "15"


def test_an_empty_server_says_what_to_paste(browser: Browser, rest: FakeRest) -> None:
    rest.answers["GET /v1/status"] = samples.status(queues=0)
    text = text_of(browser.get("/ui"))
    assert (
        "AWS_ACCESS_KEY_ID=x AWS_SECRET_ACCESS_KEY=x AWS_DEFAULT_REGION=us-east-1 \\ aws --endpoint-url "
        "http://localhost:9324 sqs create-queue --queue-name orders"
    ) in text


def test_a_part_that_fails_does_not_take_the_page_with_it(browser: Browser, rest: FakeRest) -> None:
    rest.answers["GET /v1/queues:stats"] = Refusal(503, "unavailable", "Shard 2 is opening.")
    text = text_of(browser.get("/ui"))
    assert "All well" in text and "Shard 2 is opening." in text


def test_the_range_is_in_the_address(browser: Browser) -> None:
    page = browser.get("/ui?range=24h")
    assert 'data-series="/ui/data/series?range=24h"' in page
    assert 'href="/ui?range=24h" aria-current="true"' in page
    assert 'data-series="/ui/data/series?range=15m"' in browser.get("/ui?range=never")


def test_the_data_of_the_plots(browser: Browser, rest: FakeRest) -> None:
    assert '"visible":[5,6,7]' in browser.get("/ui/data/series?range=1h&queue=orders")
    assert rest.asked[-1] == (f"GET {QUEUE}/series", {"range": "1h"}, None)
    assert browser.send("GET", "/ui/data/series?queue=nothing").status == 404


def test_the_figures_as_a_table(browser: Browser) -> None:
    text = text_of(browser.get("/ui/figures?range=15m"))
    assert "One row per 5 s, over the last 15m." in text
    assert "2026-09-21 14:13:15 3.5/s 7 0.1 s 2026-09-21 14:13:10 – 6 –" in text


# --- the list


def test_the_list_asks_for_what_the_address_says(browser: Browser, rest: FakeRest) -> None:
    browser.get("/ui/queues?search=ord&sort=visible&order=asc&offset=50")
    asked = {"search": "ord", "sort": "visible", "order": "asc", "offset": "50", "limit": "50"}
    assert rest.asked[-1] == ("GET /v1/queues:stats", asked, None)


def test_unknown_parameters_are_not_passed_on(browser: Browser, rest: FakeRest) -> None:
    browser.get("/ui/queues?sort=evil&order=up&offset=-1")
    assert rest.asked[-1] == ("GET /v1/queues:stats", {"sort": "name", "order": "asc", "limit": "50"}, None)


def test_pages_of_the_list(browser: Browser, rest: FakeRest) -> None:
    rest.answers["GET /v1/queues:stats"] = samples.queue_stats(samples.summary("orders"), total=120, offset=50)
    page = browser.get("/ui/queues?offset=50&search=o")
    assert "51–100 of 120" in text_of(page)
    assert 'href="/ui/queues?offset=100&amp;search=o"' in page and 'href="/ui/queues?search=o"' in page


def test_sorting_links(browser: Browser) -> None:
    page = browser.get("/ui/queues?sort=visible&order=desc")
    assert 'aria-sort="descending"' in page and 'href="/ui/queues?sort=visible&amp;order=asc"' in page


def test_a_search_without_result(browser: Browser, rest: FakeRest) -> None:
    rest.answers["GET /v1/queues:stats"] = samples.queue_stats()
    assert "No queue has “zzz” in its name." in text_of(browser.get("/ui/queues?search=zzz"))


# --- one queue


def test_a_queue(browser: Browser) -> None:
    text = text_of(browser.get("/ui/queues/orders"))
    assert "7 messages wait, the oldest for 4 s." in text and "dead letters go to orders-dlq" in text


def test_a_queue_names_its_topics_and_its_deletion_warns(browser: Browser, rest: FakeRest) -> None:
    assert "Subscribed" not in text_of(browser.get("/ui/queues/orders"))
    topics = ["events", "arn:aws:sns:us-east-1:000000000001:<far>"]
    rest.answers[f"GET {QUEUE}"] = samples.queue(subscriptions=2, subscribedTopics=topics)
    page = browser.get("/ui/queues/orders")
    assert 'Subscribed to 2 topics: <a href="/ui/topics/events">events</a>, arn:aws:sns:' in page
    assert "000000000001:&lt;far&gt;</p>" in page
    assert "It is subscribed to 2 topics: copies for it will be refused." in text_of(
        browser.get("/ui/queues/orders/settings")
    )


def test_rates_are_known_at_the_first_look(browser: Browser, rest: FakeRest) -> None:
    text = text_of(browser.get("/ui/queues/orders"))
    assert "sent 3.5/s received – acknowledged –" in text
    rest.answers[f"GET {QUEUE}/stats"] = samples.stats(sentPerSecond=9.0, receivedPerSecond=8.0, deletedPerSecond=7.0)
    assert "sent 9.0/s received 8.0/s acknowledged 7.0/s" in text_of(browser.get("/ui/queues/orders"))
    rest.answers[f"GET {QUEUE}/stats"] = samples.stats()
    rest.answers[f"GET {QUEUE}/series"] = Refusal(503, "unavailable", "The shard is opening.")
    assert "sent –" in text_of(browser.get("/ui/queues/orders"))


def test_a_queue_that_does_not_exist(browser: Browser, rest: FakeRest) -> None:
    rest.answers["GET /v1/queues/none"] = Refusal(404, "queue_does_not_exist", "Queue 'none' does not exist.")
    assert "Queue 'none' does not exist." in text_of(browser.get("/ui/queues/none", 404))


def test_browsing_with_filters(browser: Browser, rest: FakeRest) -> None:
    page = browser.get("/ui/queues/orders/messages?state=IN_FLIGHT&text=Ada&group=g&errorClass=E&holder=w&after=9")
    assert rest.asked[-1] == (
        f"GET {QUEUE}/messages",
        {
            "limit": "25",
            "after": "9",
            "state": "IN_FLIGHT",
            "text": "Ada",
            "group": "g",
            "errorClass": "E",
            "holder": "w",
        },
        None,
    )
    assert "/ui/queues/orders/messages/00000000-0000-0000-0000-000000000001" in page
    assert "It can be received now." in text_of(page) and "after=3" in page


def test_an_empty_queue_says_how_to_fill_it(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"GET {QUEUE}/messages"] = {"messages": []}
    text = text_of(browser.get("/ui/queues/orders/messages"))
    assert "curl http://localhost:9324/v1/queues/orders/messages" in text
    assert "No message matches" in text_of(browser.get("/ui/queues/orders/messages?text=x"))


# --- settings


def test_saving_settings_sends_only_the_changes(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"PATCH {QUEUE}"] = samples.queue(retentionSeconds=60)
    response = browser.post("/ui/queues/orders/settings", retentionSeconds="60", maxReceiveCount="5")
    assert header(response, "Location") == "/ui/queues/orders/settings"
    assert changed(rest) == [(f"PATCH {QUEUE}", {"retentionSeconds": 60})]
    assert "Changed: retention." in text_of(browser.get("/ui/queues/orders/settings"))
    assert "Changed: retention." not in text_of(browser.get("/ui/queues/orders/settings"))


def test_a_wrong_value_is_shown_next_to_its_field(browser: Browser, rest: FakeRest) -> None:
    response = browser.post("/ui/queues/orders/settings", 422, retentionSeconds="1", slaSeconds="7")
    page = response.body.decode()
    assert "Use 60 to 1,209,600." in page and 'value="1"' in page and 'value="7"' in page and "aria-invalid" in page
    assert not changed(rest)


def test_what_rest_refuses_is_shown_next_to_its_field(browser: Browser, rest: FakeRest) -> None:
    detail = "The deadLetterQueue has another mode."
    rest.answers[f"PATCH {QUEUE}"] = Refusal(400, "dead_letter_queue_refused", detail)
    page = browser.post("/ui/queues/orders/settings", 422, deadLetterQueue="x.fifo").body.decode()
    assert page.index('name="deadLetterQueue"') < page.rindex(detail) < page.index('name="deadLetterOn"')


def test_what_is_wrong_is_also_said_at_the_top(browser: Browser, rest: FakeRest) -> None:
    page = browser.post("/ui/queues/orders/settings", 422, retentionSeconds="1", maxReceiveCount="x").body.decode()
    summary = page[page.index('id="mistakes"') : page.index('class="tabs"')]
    assert '<a href="#f-retentionSeconds">Retention</a>: Use 60 to 1,209,600.' in summary
    assert '<a href="#f-maxReceiveCount">Maximum receives</a>' in summary and 'id="f-maxReceiveCount"' in page
    page = browser.post("/ui/queues/orders/purge", 422, confirm="other").body.decode()
    assert '<a href="#confirm-purge">Purge</a>' in page and 'id="confirm-purge"' in page
    assert '<a href="/ui/queues/orders/settings" aria-current="page">Settings</a>' in page
    page = browser.post("/ui/queues/orders/try", 422, action="send", body="{").body.decode()
    assert '<a href="#body">Body</a>: This is not JSON' in page
    page = browser.post("/ui/create-queue", 422, name="").body.decode()
    assert '<a href="#name">Name</a>: Give the queue a name.' in page
    assert not changed(rest)


def test_a_refusal_that_names_no_field_is_shown_too(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"PATCH {QUEUE}"] = Refusal(400, "invalid_input", "That does not work.")
    page = browser.post("/ui/queues/orders/settings", 422, **{"deduplication.windowSeconds": "60"}).body.decode()
    assert '<a href="#f-deduplication-windowSeconds">Window</a>: That does not work.' in page


# --- what destroys


@pytest.mark.parametrize("what", ["purge", "delete"])
def test_destroying_needs_the_name(browser: Browser, rest: FakeRest, what: str) -> None:
    page = browser.get("/ui/queues/orders/settings")
    assert "Purge 10 messages" in page and "Delete the queue and 10 messages" in page
    for typed in ("", "order", "ORDERS"):
        page = browser.post(f"/ui/queues/orders/{what}", 422, confirm=typed).body.decode()
        assert "Type the queue&#39;s name, orders, to confirm." in page
    assert not changed(rest)


def test_purging(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"POST {QUEUE}:purge"] = None
    response = browser.post("/ui/queues/orders/purge", confirm="orders")
    assert header(response, "Location") == "/ui/queues/orders"
    assert "Purged: 10 messages deleted from orders." in text_of(browser.get("/ui/queues/orders"))
    rest.answers[f"POST {QUEUE}:purge"] = Refusal(409, "purge_in_progress", "Wait 60 seconds.")
    assert b"Wait 60 seconds." in browser.post("/ui/queues/orders/purge", 422, confirm="orders").body


def test_deleting(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"DELETE {QUEUE}"] = None
    assert header(browser.post("/ui/queues/orders/delete", confirm="orders"), "Location") == "/ui/queues"
    assert changed(rest) == [(f"DELETE {QUEUE}", None)]


# --- a new queue


def test_creating(browser: Browser, rest: FakeRest) -> None:
    rest.answers["POST /v1/queues"] = {"queueId": "q_1", "name": "new"}
    response = browser.post("/ui/create-queue", name=" new ", mode="FIFO", maxReceiveCount="3", strictReceipts="true")
    assert header(response, "Location") == "/ui/queues/new"
    body = {"name": "new", "mode": "FIFO", "maxReceiveCount": 3, "strictReceipts": True}
    assert changed(rest) == [("POST /v1/queues", body)]


def test_a_new_queue_with_a_bad_name(browser: Browser, rest: FakeRest) -> None:
    rest.answers["POST /v1/queues"] = Refusal(400, "invalid_input", "Expected `str` matching regex at `$.name`")
    page = browser.post("/ui/create-queue", 422, name="a b").body.decode()
    assert "matching regex" in page and 'value="a b"' in page
    assert b"Give the queue a name." in browser.post("/ui/create-queue", 422, name=" ").body


# --- send and receive


def test_sending_a_test_message(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"POST {QUEUE}/messages"] = {"messageId": "m-1", "sequence": 1}
    form = {"action": "send", "body": '{"a": 1}', "kind": "json", "attributes": '{"s": "t"}', "delay": "1.5"}
    page = browser.post("/ui/queues/orders/try", 200, **form, priority="high").body.decode()
    assert "/ui/queues/orders/messages/m-1" in page
    sent = {"body": {"a": 1}, "attributes": {"s": "t"}, "delaySeconds": 1.5, "priority": "high"}
    assert changed(rest) == [(f"POST {QUEUE}/messages", sent)]


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"body": "{", "kind": "json"}, "This is not JSON"),
        ({"body": "1", "attributes": "["}, "Write attributes as a JSON object"),
        ({"body": "1", "delay": "soon"}, "Write the delay as a number of seconds, or as 250ms, 5m or 2h."),
        ({"body": "x" * 300_000, "kind": "text"}, "A test message may have 262,144 bytes; this one has 300,000."),
    ],
)
def test_a_message_that_is_wrong(browser: Browser, rest: FakeRest, form: dict[str, str], said: str) -> None:
    assert said in text_of(browser.post("/ui/queues/orders/try", 422, action="send", **form).body.decode())
    assert not changed(rest)


def test_receiving_and_acknowledging(browser: Browser, rest: FakeRest) -> None:
    message = {
        **samples.peeked(4),
        "receiptHandle": "receipt-4",
        "deadlineMs": samples.NOW_MS + 30_000,
    }
    rest.answers[f"POST {QUEUE}/messages:receive"] = {"messages": [message]}
    rest.answers[f"POST {QUEUE}/messages:ack"] = {"results": [{}, {"error": {"detail": "The receipt has expired."}}]}
    page = browser.post("/ui/queues/orders/try", 200, action="receive", count="5", visibility="60").body.decode()
    assert 'name="receipt" value="receipt-4"' in page and "lease ends" in page
    asked = {"maxMessages": 5, "waitSeconds": 0, "consumer": "dashboard", "visibilityTimeoutSeconds": 60.0}
    assert changed(rest) == [(f"POST {QUEUE}/messages:receive", asked)]
    browser.post("/ui/queues/orders/try", action="ack", receipt=["receipt-4", "receipt-5"])
    assert changed(rest)[-1] == (f"POST {QUEUE}/messages:ack", {"receiptHandles": ["receipt-4", "receipt-5"]})
    text = text_of(browser.get("/ui/queues/orders/try"))
    assert "1 message acknowledged. The receipt has expired." in text


def test_returning_a_message_counts_no_attempt(browser: Browser, rest: FakeRest) -> None:
    rest.answers[f"POST {QUEUE}/messages:nack"] = {"results": [{}]}
    browser.post("/ui/queues/orders/try", action="nack", receipt="r")
    assert changed(rest)[-1][1]["messages"][0]["untried"] is True


# --- read-only


def test_a_read_only_dashboard_shows_no_forms_and_refuses_them(rest: FakeRest) -> None:
    browser = Browser(rest, read_only=True)
    for path in (
        "/ui",
        "/ui/queues",
        "/ui/queues/orders",
        "/ui/queues/orders/settings",
        "/ui/queues/orders/try",
        "/ui/create-queue",
    ):
        page = browser.get(path)
        assert 'method="post"' not in page and "Create a queue</a>" not in page, path
        assert "read-only" in page
    for path in ("/ui/create-queue", "/ui/queues/orders/settings", "/ui/queues/orders/purge", "/ui/queues/orders/try"):
        response = browser.post(path, 403, name="x", confirm="orders", action="receive")
        assert b"read-only" in response.body
    assert not changed(rest)


def test_the_start_page_has_what_the_sdks_insist_on(browser: Browser) -> None:
    text = text_of(browser.get("/ui/start"))
    assert 'endpoint_url="http://localhost:9324"' in text and 'region_name="us-east-1"' in text
    assert 'aws_access_key_id="x"' in text


def test_without_webhooks_the_test_says_how_to_set_one(browser: Browser, rest: FakeRest) -> None:
    rest.answers["GET /v1/alarms"] = {"alarms": [], "history": [], "atMs": samples.NOW_MS}
    rest.answers["POST /v1/alarms:test"] = Refusal(400, "invalid_input", "The server has no alarm webhooks.")
    assert header(browser.post("/ui/alarm-test"), "Location") == "/ui/alarms"
    assert "Set one with: baton serve --alarm-webhooks URL" in text_of(browser.get("/ui/alarms"))
