"""Publish and PublishBatch. A publish is a send to the topic, so it is checked and sent as SQS's messages are."""

from __future__ import annotations

import json
from collections.abc import Sequence

from batonq.api.sns.errors import SnsError, invalid, missing, of_baton, of_sqs
from batonq.api.sns.service import Call, Service
from batonq.api.sns.shapes import (
    BatchResultErrorEntry,
    PublishBatchInput,
    PublishBatchOutput,
    PublishBatchRequestEntry,
    PublishBatchResultEntry,
    PublishInput,
    PublishOutput,
)
from batonq.api.sqs.errors import BATCH_REQUEST_TOO_LONG, SENDER, SqsError
from batonq.api.sqs.operations.sending import Columns, Messages, is_first_try
from batonq.api.sqs.service import Call as SqsCall
from batonq.api.sqs.shapes import AttributeValue, SendMessageInput
from batonq.api.sqs.validate import BATCH_BYTES_MAX, check_batch
from batonq.core.commands import Sent
from batonq.core.topics.message_values import read_json
from batonq.errors import BatonError
from batonq.node.catalog.topic_control import Topic
from batonq.node.routing.submission import awaited
from batonq.topic_attributes import SUBJECT_LENGTH_MAX, is_subject

JSON_STRUCTURE = "json"
ARRAY_TYPE = "String.Array"
NO_GROUP = "The MessageGroupId parameter is required for FIFO topics"
NO_DEDUPLICATION_ID = (
    "The topic should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)


async def publish(service: Service, call: Call, given: PublishInput) -> PublishOutput:
    if given.PhoneNumber is not None:
        raise invalid("PhoneNumber Reason: Baton sends no text messages. Publish to a topic.")
    topic = service.topic(call, given.TopicArn or given.TargetArn)
    [(sent, problem)] = await _publish(service, call, topic, [given])
    if problem is not None:
        raise problem
    assert sent is not None
    return PublishOutput(*sent)


async def publish_batch(service: Service, call: Call, given: PublishBatchInput) -> PublishBatchOutput:
    topic = service.topic(call, given.TopicArn)
    entries = given.PublishBatchRequestEntries or []
    ids = check_batch(entries, "PublishBatch")
    results = await _publish(service, call, topic, entries)
    output = PublishBatchOutput([], [])
    for entry_id, (sent, problem) in zip(ids, results, strict=True):
        if sent is not None:
            output.Successful.append(PublishBatchResultEntry(entry_id, *sent))
        elif problem is not None:
            failed = BatchResultErrorEntry(entry_id, problem.code, problem.message, problem.fault == SENDER)
            output.Failed.append(failed)
    return output


Result = tuple[tuple[str, str | None] | None, SnsError | None]  # message id and sequence number, or the error


async def _publish(
    service: Service, call: Call, topic: Topic, entries: Sequence[PublishInput | PublishBatchRequestEntry]
) -> list[Result]:
    """Publish messages. Returns a result per message, or raises when the request as a whole cannot be executed."""
    errors: dict[int, SnsError] = {}
    texts: list[str | None] = []
    for at, entry in enumerate(entries):
        try:
            texts.append(_checked(topic, entry))
        except SnsError as problem:
            errors[at] = problem.with_traceback(None)  # a traceback would keep the request in memory
    kept = [entry for at, entry in enumerate(entries) if at not in errors]
    if not kept:
        return [(None, errors[at]) for at in range(len(entries))]
    messages = _messages(call, topic, kept, texts)
    places = [at for at in range(len(entries)) if at not in errors]
    errors |= {places[at]: of_sqs(problem) for at, problem in messages.errors.items()}
    if len(entries) > 1 and messages.size > BATCH_BYTES_MAX:
        raise of_sqs(
            SqsError(
                BATCH_REQUEST_TOO_LONG,
                f"The batch has {messages.size} bytes, and the maximum is {BATCH_BYTES_MAX}.",
            )
        )
    results: list[Result] = [(None, errors.get(at)) for at in range(len(entries))]
    if len(errors) == len(entries):
        return results
    command = messages.command()
    first_try = is_first_try(call.request)
    outcome: Sent | BatonError = await awaited(
        lambda done: service.broker.send(topic, command, done, first_try), lambda outcome: None
    )
    if isinstance(outcome, BatonError):
        raise outcome
    waiting = [at for at in range(len(entries)) if at not in errors]
    for at, result in zip(waiting, outcome.results(), strict=True):
        if isinstance(result, BatonError):
            results[at] = (None, of_baton(result))
        else:
            results[at] = ((result.message_id, f"{result.sequence:020d}" if topic.fifo else None), None)
    return results


def _messages(
    call: Call, topic: Topic, entries: Sequence[PublishInput | PublishBatchRequestEntry], texts: list[str | None]
) -> Messages:
    nothing = (None,) * len(entries)
    columns: Columns = [
        tuple(texts),
        nothing,
        tuple(entry.MessageAttributes for entry in entries),
        nothing,
        tuple(entry.MessageDeduplicationId for entry in entries),
        tuple(entry.MessageGroupId for entry in entries),
    ]
    of_request = SqsCall(call.request, call.caller, call.operation, False)
    messages = Messages(topic, of_request, SendMessageInput(), columns, "Message")
    if any(entry.Subject for entry in entries):
        messages.put_subjects([entry.Subject or "" for entry in entries])
    return messages


def _checked(topic: Topic, entry: PublishInput | PublishBatchRequestEntry) -> str:
    """The text of a message, after the checks that only SNS has."""
    if not entry.Message:
        raise invalid("Empty message") if entry.Message is not None else missing("Message")
    if topic.fifo and not entry.MessageGroupId:
        raise invalid(NO_GROUP)
    if topic.fifo and not topic.content_dedup and not entry.MessageDeduplicationId:
        raise invalid(NO_DEDUPLICATION_ID)
    _check_subject(entry.Subject)
    for name, value in (entry.MessageAttributes or {}).items():
        _check_array(name, value)
    if entry.MessageStructure is None:
        return entry.Message
    if entry.MessageStructure != JSON_STRUCTURE:
        raise invalid("MessageStructure Reason: the only structure is json.")
    return _text_for_queues(entry.Message)


def _check_subject(subject: str | None) -> None:
    if subject is not None and not is_subject(subject):
        raise invalid(
            f"Subject Reason: a subject has 1 to {SUBJECT_LENGTH_MAX} printable ASCII characters and no line breaks."
        )


def _check_array(name: str, value: AttributeValue) -> None:
    if value.DataType == ARRAY_TYPE and not isinstance(read_json(value.StringValue or ""), list):
        raise SnsError(
            "ParameterValueInvalid",
            f"The message attribute '{name}' with type '{ARRAY_TYPE}' must have a JSON list as its value.",
        )


def _text_for_queues(message: str) -> str:
    """The text for the protocol sqs of a message that has a text per protocol."""
    try:
        texts = json.loads(message)
    except (ValueError, RecursionError):
        raise invalid("Message Structure - JSON message body failed to parse") from None
    if not isinstance(texts, dict) or not isinstance(texts.get("default"), str):
        raise invalid("Message Structure - No default entry in JSON message body")
    text = texts.get("sqs", texts["default"])
    if not isinstance(text, str) or not text:
        raise invalid("Message Structure - the entry for sqs is not a text")
    return text
