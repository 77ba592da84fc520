"""The sentence at the top of each page: it says first what a reader must know."""

from __future__ import annotations

from typing import Any

import pytest

from batonq.api.ui import formats
from batonq.api.ui.backend import Problem
from batonq.api.ui.pages import alarms, cluster, dead_letters, jobs, keys, message, redrive, workers

NOW_MS = 1_800_000_000_000


def job(**more: Any) -> dict[str, Any]:
    given = {
        "jobId": "j1",
        "kind": "redrive",
        "sourceQueue": "emails-dead",
        "targetQueue": "emails",
        "state": "RUNNING",
    }
    numbers = {"why": "", "matched": 214, "moved": 100, "remaining": 114, "currentRate": 10.0}
    return {**given, **numbers, **more}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (job(), "Running: 100 of 214 messages moved to emails, about 11 s left."),
        (
            job(state="PAUSED", why="3 of 4 died again."),
            "Paused: 100 of 214 messages moved to emails. 3 of 4 died again.",
        ),
        (job(state="COMPLETED", moved=214, remaining=0), "Done: 214 messages moved to emails."),
        (
            job(state="COMPLETED", moved=214, remaining=0, diedAgain=7),
            "Done: 214 messages moved to emails. 7 of them dead-lettered again.",
        ),
        (job(state="CANCELLED"), "Cancelled: 100 of 214 messages moved to emails."),
        (job(kind="delete", targetQueue="", state="COMPLETED", moved=1), "Done: 1 message deleted."),
        (
            job(state="FAILED", why="The queue is gone."),
            "Failed: 100 of 214 messages moved to emails. The queue is gone.",
        ),
    ],
)
def test_a_job(given: dict[str, Any], sentence: str) -> None:
    assert jobs.sentence_of(given) == sentence


def test_jobs() -> None:
    assert jobs.jobs_sentence([]) == ("No job is running.", "ok")
    assert jobs.jobs_sentence([job(), job(remaining=6)])[0] == "2 jobs running, 120 messages to go."
    assert jobs.jobs_sentence([job(), job(state="PAUSED", why="Half died again.")]) == (
        "The redrive of emails-dead is paused: Half died again.",
        "warning",
    )


def group(name: str, count: int) -> dict[str, Any]:
    return {"errorClass": name, "reason": "", "count": count, "sourceQueue": "emails"}


def test_dead_letters_of_a_queue() -> None:
    found: dict[str, Any] = {"queue": "emails-dead", "total": 0, "groups": []}
    assert dead_letters.letters_sentence(found) == ("emails-dead has no dead letters.", "ok")
    found = {"queue": "emails-dead", "total": 1, "groups": [group("TypeError", 1)]}
    assert dead_letters.letters_sentence(found)[0] == "1 dead letter from emails, all with the same error: TypeError."
    found = {"queue": "emails-dead", "total": 214, "groups": [group("TypeError", 14), group("Refused", 200)]}
    said = "214 dead letters from emails with 2 kinds of errors; most often Refused (200)."
    assert dead_letters.letters_sentence(found) == (said, "warning")


def test_dead_letter_queues() -> None:
    assert dead_letters.queues_sentence([{"name": "a", "visible": 0}]) == ("No dead letters.", "ok")
    assert dead_letters.queues_sentence([{"name": "a", "visible": 3}])[0] == "a has 3 dead letters."
    two = [{"name": "a", "visible": 1}, {"name": "b", "visible": 1200}]
    assert dead_letters.queues_sentence(two)[0] == "1,201 dead letters in 2 queues, most of them in b (1,200)."


def test_a_redrive_says_what_it_will_do_with_numbers() -> None:
    choice = redrive.Choice()
    assert redrive.start_words({"matched": 214}, {"rate": "10"}, ["emails"]) == (
        "Redrive 214 messages to emails at 10/s, about 21 s"
    )
    assert (
        redrive.start_words({"matched": 1}, {"target": "other"}, []) == "Redrive 1 message to other at 10/s, about 1 s"
    )
    assert redrive.preview_sentence({"matched": 0, "examined": 5}, choice, "q") == (
        "Nothing to redrive: none of the 5 messages in q matches."
    )
    assert choice.words(214, "q") == "all 214 messages of q"
    assert redrive.Choice(group="g", label="TypeError").words(3, "q") == "3 messages of q with the error TypeError"
    assert redrive.Choice(ids=["a", "b"]).words(2, "q") == "2 messages of the 2 selected in q"


def test_the_form_of_a_redrive_becomes_its_request() -> None:
    form = {"rate": "50", "target": " other ", "find": "a", "replacement": "b", "attributes": '{"x": "1"}'}
    assert redrive.redrive_spec(form, redrive.Choice(group="g", label="l")) == {
        "maxMessagesPerSecond": 50,
        "filter": {"group": "g"},
        "targetQueue": "other",
        "edit": {"replaceText": [{"find": "a", "with": "b"}], "setAttributes": {"x": "1"}},
    }


@pytest.mark.parametrize(("field", "value"), [("rate", "0"), ("rate", "fast"), ("rate", "99999"), ("attributes", "[]")])
def test_a_wrong_field_of_a_redrive_is_named(field: str, value: str) -> None:
    with pytest.raises(Problem, match=field.capitalize()):
        redrive.redrive_spec({field: value}, redrive.Choice())


def test_workers() -> None:
    assert workers.workers_sentence([])[0] == "No worker has been seen."
    assert workers.workers_sentence([{"state": "polling"}, {"state": "holding"}]) == (
        "2 workers: 1 polling, 1 holding.",
        "ok",
    )
    assert workers.workers_sentence([{"state": "gone", "name": "web-7", "inFlight": 3}]) == (
        "web-7 is gone and still holds 3 messages. 1 worker: 1 gone.",
        "warning",
    )


def test_a_cluster() -> None:
    shards = [{"number": 0, "state": "serving"}, {"number": 1, "state": "serving", "room": "plenty"}]
    well: dict[str, Any] = {"nodes": [{"name": "a", "state": "up"}], "shards": shards}
    assert cluster.cluster_sentence(well) == ("All well: 1 node, 2 shards, all served.", "ok")
    down = {"nodes": [{"name": "a", "state": "silent", "problem": "does not answer"}], "shards": shards}
    assert cluster.cluster_sentence(down) == ("a has a problem: does not answer.", "warning")
    shards[1]["room"] = "none"
    assert cluster.cluster_sentence(well)[0] == "1 of 2 shards cannot be used; 1: its disk is full."
    shards[1] = {"number": 1, "state": "failed", "why": "no owner"}
    assert cluster.cluster_sentence(well) == ("1 of 2 shards cannot be used; 1: no owner.", "critical")


def test_alarms() -> None:
    first = {"severity": "warning", "text": "emails-dead has 3 dead letters."}
    assert alarms.alarms_sentence([]) == ("No alarms.", "ok")
    assert alarms.alarms_sentence([first]) == ("emails-dead has 3 dead letters.", "warning")
    assert alarms.alarms_sentence([{**first, "severity": "critical"}, first]) == (
        "emails-dead has 3 dead letters. And 1 other alarm.",
        "critical",
    )
    assert alarms.alarms_sentence([{**first, "acknowledgedAtMs": 1}]) == ("1 alarm, all acknowledged.", "plain")


def test_the_result_of_a_test_of_the_webhooks() -> None:
    good = {"webhook": "https://a.example", "delivered": True}
    assert alarms.webhook_words([]).startswith("No webhook is set")
    assert alarms.webhook_words([good]) == "The test event was delivered to 1 webhook."
    bad = {"webhook": "https://b.example", "delivered": False, "answerStatus": 500}
    assert alarms.webhook_words([good, bad]) == "1 of 2 webhooks failed. https://b.example: it answered 500"


def test_keys() -> None:
    one = {"keyId": "BATON1", "name": "web"}
    assert keys.keys_sentence([one], NOW_MS, True) == ("1 key can be used.", "ok")
    assert keys.keys_sentence([one, {**one, "disabled": True}], NOW_MS, True)[0] == "1 key can be used, 1 cannot."
    soon = {**one, "expiresAtMs": NOW_MS + 3_600_000}
    assert keys.keys_sentence([soon], NOW_MS, True) == ("Key web expires in 1 h. 1 key can be used.", "warning")
    assert keys.keys_sentence([], NOW_MS, False)[0].startswith("This is a development server")


def test_a_message_is_edited_as_what_it_is() -> None:
    json_message = {"body": {"a": 1}, "attributes": {"x": "1"}, "bodyBytes": 7}
    assert message.editable(json_message) == {
        "kind": "json",
        "body": '{\n  "a": 1\n}',
        "attributes": '{\n  "x": "1"\n}',
    }
    assert message.editable({"bodyBase64": "AA==", "bodyBytes": 1}) is None
    form = {"kind": "json", "body": '{"a": 2}', "attributes": ""}
    assert message.changes_of(form) == {"body": {"a": 2}, "attributes": {}}
    assert message.changes_of({"kind": "text", "body": "a\r\nb"}) == {"body": "a\nb"}
    with pytest.raises(Problem, match="The body: not valid JSON"):
        message.changes_of({"kind": "json", "body": "{"})


def test_events_are_words() -> None:
    row = message.event_row({"event": "leaseExpired", "atMs": 1, "holder": "web-3"})
    assert (row["text"], row["level"], row["holder"]) == ("lease expired", "critical", "web-3")
    assert message.event_row({"event": "nacked", "errorClass": "E", "reason": "why"})["detail"] == "E: why"
    assert message.words("IN_FLIGHT") == "in flight"


def test_code_in_a_text_is_marked_and_escaped() -> None:
    assert formats.prose("run `a <b>` now") == "run <code>a &lt;b&gt;</code> now"
    assert formats.prose("a ` <b>") == "a ` &lt;b&gt;"
