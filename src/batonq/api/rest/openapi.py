"""The OpenAPI document, generated from the table of operations and from the types that validate requests."""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec

from batonq import __version__
from batonq.api.rest import alarm_shapes as alarmshapes
from batonq.api.rest import backups, history, shapes
from batonq.api.rest import key_shapes as keyshapes
from batonq.api.rest import queue_shapes as queueshapes
from batonq.api.rest import reader_shapes as readershapes
from batonq.api.rest import schedule_shapes as scheduleshapes
from batonq.api.rest import topic_shapes as topicshapes
from batonq.api.rest.codec import JSON, MSGPACK
from batonq.api.rest.examples import EXAMPLES
from batonq.api.rest.field_docs import meaning
from batonq.api.rest.operation import Operation
from batonq.api.rest.operations import OPERATIONS
from batonq.api.rest.problems import RETRY_AFTER_S, Problem

PATH = "/v1/openapi.json"
PAGE_PATH = "/v1/docs"
_REF = "#/components/schemas/{name}"
_COMMON = (400, 403, 405, 406, 429, 500, 503, 507)
_WITH_BODY = (413, 415)
_DESCRIPTION = """\
Queues, messages, leases and jobs of Baton.

Request and response bodies are JSON (`application/json`) or MessagePack (`application/msgpack`), with the same fields.
A response has the format that the Accept header names, or else the format of the request. In MessagePack `body` and
attributes may also be bytes. Durations end in Seconds, times in Ms (milliseconds since 1970). Errors are problem
details (RFC 9457) with a stable `code`. In the secured profile requests are signed with AWS Signature Version 4
(service `sqs` or `baton`), or have the admin token: `Authorization: Bearer …`.
"""
# The form that client generators know. The development profile requires no signature.
_SIGNATURE = {
    "type": "apiKey",
    "name": "Authorization",
    "in": "header",
    "description": "AWS Signature Version 4, service `sqs` or `baton`. Required in the secured profile.",
    "x-amazon-apigateway-authtype": "awsSigv4",
}
_PATH_PARAMETERS: dict[str, tuple[Any, str]] = {
    "queue": (queueshapes.QueueName, "Name of the queue."),
    "receipt": (shapes.Receipt, "The `receiptHandle` of a received message."),
    "message": (shapes.MessageId, "Id of the message: its `currentId`, or the `messageId` with which it was sent."),
    "job": (shapes.JobId, "Id of the job."),
    "shard": (history.ShardNumber, "Number of the shard."),
    "alarm": (alarmshapes.AlarmId, "Id of the alarm."),
    "key": (keyshapes.KeyId, "Id of the access key."),
    "report": (str, "Name of the report's file."),
    "group": (readershapes.GroupName, "Name of the reader group."),
    "backup": (backups.BackupId, "Id of the backup."),
    "topic": (topicshapes.TopicName, "Name of the topic."),
    "subscription": (topicshapes.SubscriptionId, "Id of the subscription."),
    "schedule": (scheduleshapes.ScheduleId, "Id of the schedule: NAME@QUEUE."),
}
# Links: the field of one operation's answer that names a parameter of another operation.
_NAME = {"queue": "$response.body#/name"}
_SAME = {"queue": "$request.path.queue"}
_LEASED = {**_SAME, "receipt": "$response.body#/messages/0/receiptHandle"}
_SENT = {**_SAME, "message": "$response.body#/messageId"}
_JOB = {"job": "$response.body#/jobId"}
_KEY = {"key": "$response.body#/keyId"}
_READER = {**_SAME, "group": "$response.body#/name"}
_BACKUP = {"backup": "$response.body#/backup"}
_ONE_MESSAGE = ("getMessage", "editMessage", "retryMessage", "deleteMessage")
_ONE_READER = (
    "getReader",
    "joinReader",
    "fetchReader",
    "commitReader",
    "failReader",
    "seekReader",
    "leaveReader",
    "deleteReader",
)
_SCHEDULE = {"schedule": "$response.body#/scheduleId"}
_ONE_SCHEDULE = ("getSchedule", "updateSchedule", "fireSchedule", "deleteSchedule")
_ONE_JOB = ("getJob", "cancelJob", "pauseJob", "resumeJob")
_TOPIC = {"topic": "$response.body#/name"}
_SUBSCRIPTION = {"topic": "$request.path.topic", "subscription": "$response.body#/subscriptionId"}
_ONE_SUBSCRIPTION = ("getSubscription", "deleteSubscription")  # an update may name a queue that does not exist
_OF_A_TOPIC = (
    "getTopic",
    "updateTopic",
    "publishMessage",
    "publishBatch",
    "matchTopic",
    "peekTopic",
    "listSubscriptions",
    "deleteTopic",
)
_OF_A_QUEUE = (
    "getQueue",
    "updateQueue",
    "queueStats",
    "sendMessage",
    "sendBatch",
    "receive",
    "peek",
    "purgeQueue",
    "deleteQueue",
    "redrive",
    "listJobs",
    "deleteMessages",
    "listDeadLetters",
    "listConsumers",
    "createReader",
    "listReaders",
    "readQueueHistory",
)
_LINKS: dict[tuple[str, int], dict[str, dict[str, str]]] = {
    ("createQueue", 201): dict.fromkeys(_OF_A_QUEUE, _NAME),
    ("sendMessage", 202): {**dict.fromkeys(("receive", "peek"), _SAME), **dict.fromkeys(_ONE_MESSAGE, _SENT)},
    ("sendBatch", 202): dict.fromkeys(("receive", "peek"), _SAME),
    ("receive", 200): dict.fromkeys(("ack", "nack", "changeVisibility"), _LEASED),
    ("redrive", 202): dict.fromkeys(_ONE_JOB, _JOB),
    ("deleteMessages", 202): dict.fromkeys(_ONE_JOB, _JOB),
    ("createReader", 201): dict.fromkeys(_ONE_READER, _READER),
    ("listAlarms", 200): {"acknowledgeAlarm": {"alarm": "$response.body#/alarms/0/alarm"}},
    ("createKey", 201): dict.fromkeys(("disableKey", "enableKey"), _KEY),
    ("createTopic", 201): dict.fromkeys(_OF_A_TOPIC, _TOPIC),
    ("createSubscription", 201): dict.fromkeys(_ONE_SUBSCRIPTION, _SUBSCRIPTION),
    ("createSchedule", 201): dict.fromkeys(_ONE_SCHEDULE, _SCHEDULE),
    ("createBackup", 201): dict.fromkeys(("readBackupCatalog", "finishBackup"), _BACKUP),
}
_KNOWN = {operation.name for operation in OPERATIONS}


@cache
def document() -> dict[str, Any]:
    types = [shape for operation in OPERATIONS for shape in (operation.takes, *operation.answers.values()) if shape]
    parameters = [shape for operation in OPERATIONS for _, shape, _ in (*operation.parameters, *operation.headers)]
    named = [shape for shape, _ in _PATH_PARAMETERS.values()]
    everything = [*types, *parameters, *named, Problem]
    references, components = msgspec.json.schema_components(everything, ref_template=_REF)
    schema_of = dict(zip(map(id, everything), references, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schema_of)
    paths[PATH] = {"get": _page("openapi", "This document.", "application/json")}
    paths[PAGE_PATH] = {"get": _page("docs", "This document as a web page.", "text/html")}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Baton REST API", "version": "1", "description": _DESCRIPTION, "x-release": __version__},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": {name: _settled(name, schema) for name, schema in sorted(components.items())},
            "securitySchemes": {"signature": _SIGNATURE},
            "responses": {str(status): _problem(status, schema_of[id(Problem)]) for status in _statuses()},
        },
    }


def _statuses() -> list[int]:
    return sorted({*_COMMON, *_WITH_BODY, *(status for operation in OPERATIONS for status in operation.errors)})


def _operation(operation: Operation, schema_of: dict[int, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {"operationId": operation.name, "summary": operation.summary}
    parameters = [
        _parameter(name, "path", schema_of[id(shape)], meaning, required=True)
        for name, (shape, meaning) in _PATH_PARAMETERS.items()
        if f"{{{name}}}" in operation.path
    ]
    for where, declared in (("query", operation.parameters), ("header", operation.headers)):
        parameters += [_parameter(name, where, schema_of[id(shape)], meaning) for name, shape, meaning in declared]
    if parameters:
        result["parameters"] = parameters
    if operation.takes is not None:
        content = _content(schema_of[id(operation.takes)], (JSON.content_type, MSGPACK.content_type))
        content[JSON.content_type]["example"] = EXAMPLES[operation.name]
        result["requestBody"] = {"required": operation.body_needed, "content": content}
    result["responses"] = _responses(operation, schema_of)
    return result


def _parameter(name: str, where: str, schema: Any, meaning: str, *, required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": where, "required": required, "description": meaning, "schema": schema}


def _responses(operation: Operation, schema_of: dict[int, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, shape in operation.answers.items():
        answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if shape is not None:
            answer["content"] = _content(schema_of[id(shape)], (JSON.content_type, MSGPACK.content_type))
        if operation.content:
            answer["content"] = {operation.content: {"schema": {"type": "string", "format": "binary"}}}
            answer["headers"] = {
                name: {"description": meaning, "required": True, "schema": {"type": "integer"}}
                for name, meaning in operation.answer_headers
            }
        links = _LINKS.get((operation.name, status))
        if links:
            answer["links"] = {
                name: {"operationId": name, "parameters": given} for name, given in links.items() if name in _KNOWN
            }
        responses[str(status)] = answer
    body = _WITH_BODY if operation.takes is not None else ()
    for status in sorted({*_COMMON, *body, *operation.errors}):
        responses[str(status)] = {"$ref": f"#/components/responses/{status}"}
    return responses


def _content(schema: Any, types: tuple[str, ...]) -> dict[str, Any]:
    return {name: {"schema": schema} for name in types}


def _problem(status: int, schema: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": HTTPStatus(status).phrase,
        "content": _content(schema, (JSON.problem_type, MSGPACK.problem_type)),
    }
    if status in RETRY_AFTER_S:
        meaning = "Seconds to wait before a retry."
        answer["headers"] = {"Retry-After": {"description": meaning, "required": True, "schema": {"type": "integer"}}}
    if status == 405:
        meaning = "The supported methods."
        answer["headers"] = {"Allow": {"description": meaning, "required": True, "schema": {"type": "string"}}}
    return answer


def _page(name: str, summary: str, content_type: str) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {"description": "OK", "content": {content_type: {"schema": {}}}},
            "405": {"$ref": "#/components/responses/405"},
        },
    }


def _settled(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Complete a schema: add the checks that the types make in code, and the descriptions of the fields."""
    if name in ("Message", "BatchMessage"):
        given = {"required": ["bodyBase64"], "properties": {"bodyBase64": {"type": "string"}}}
        schema = {**schema, "oneOf": [{"required": ["body"]}, given]}
    if "properties" in schema:
        fields = schema["properties"].items()
        schema = {
            **schema,
            "properties": {field: {**kind, "description": meaning(name, field)} for field, kind in fields},
        }
    if schema.get("required") == []:
        schema = {key: value for key, value in schema.items() if key != "required"}
    return schema
