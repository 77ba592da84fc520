"""Valid requests of every operation in both protocols, and random damage to them."""

from __future__ import annotations

import json
import random
from typing import Any, NamedTuple
from urllib.parse import urlencode

OPERATIONS_WITH_QUEUE: dict[str, dict[str, Any]] = {
    "SendMessage": {
        "MessageBody": 'a body with "quotes" and \u00e9',
        "DelaySeconds": 0,
        "MessageAttributes": {
            "text": {"DataType": "String", "StringValue": "v"},
            "bytes": {"DataType": "Binary", "BinaryValue": "AP8="},
            "Baton.Priority": {"DataType": "Number", "StringValue": "7"},
        },
        "MessageSystemAttributes": {"AWSTraceHeader": {"DataType": "String", "StringValue": "Root=1"}},
    },
    "SendMessageBatch": {"Entries": [{"Id": f"e{n}", "MessageBody": f"body {n}"} for n in range(4)]},
    "ReceiveMessage": {
        "MaxNumberOfMessages": 2,
        "VisibilityTimeout": 30,
        "WaitTimeSeconds": 0,
        "AttributeNames": ["All"],
        "MessageAttributeNames": ["All", "x.*"],
    },
    "DeleteMessage": {"ReceiptHandle": "$receipt"},
    "DeleteMessageBatch": {"Entries": [{"Id": "a", "ReceiptHandle": "$receipt"}, {"Id": "b", "ReceiptHandle": "x"}]},
    "ChangeMessageVisibility": {"ReceiptHandle": "$receipt", "VisibilityTimeout": 30},
    "ChangeMessageVisibilityBatch": {
        "Entries": [{"Id": "a", "ReceiptHandle": "$receipt", "VisibilityTimeout": 5}],
    },
    "GetQueueAttributes": {"AttributeNames": ["All", "Baton.All"]},
    "SetQueueAttributes": {"Attributes": {"VisibilityTimeout": "30", "Policy": ""}},
    "ListQueueTags": {},
    "TagQueue": {"Tags": {"k": "v"}},
    "UntagQueue": {"TagKeys": ["k"]},
    "ListDeadLetterSourceQueues": {"MaxResults": 10},
    "AddPermission": {"Label": "l", "AWSAccountIds": ["111111111111"], "Actions": ["SendMessage"]},
    "RemovePermission": {"Label": "l"},
}
OTHER_OPERATIONS: dict[str, dict[str, Any]] = {
    "CreateQueue": {"QueueName": "$name", "Attributes": {"DelaySeconds": "0"}, "tags": {"a": "b"}},
    "GetQueueUrl": {"QueueName": "$name"},
    "ListQueues": {"QueueNamePrefix": "f", "MaxResults": 5},
    "StartMessageMoveTask": {"SourceArn": "$arn", "MaxNumberOfMessagesPerSecond": 5},
    "ListMessageMoveTasks": {"SourceArn": "$arn", "MaxResults": 5},
    "CancelMessageMoveTask": {"TaskHandle": "eyJ0YXNrSWQiOiJ4Iiwic291cmNlQXJuIjoiYXJuOmF3czpzcXM6cjoxOnEifQ=="},
}
# The forms of the hot calls that take a way of their own.
PLAIN_OPERATIONS: list[tuple[str, dict[str, Any]]] = [
    ("SendMessageBatch", {"QueueUrl": "$url", "Entries": [{"Id": "a", "MessageBody": "plain"}]}),
    ("ReceiveMessage", {"QueueUrl": "$url", "MaxNumberOfMessages": 10}),
    ("DeleteMessageBatch", {"QueueUrl": "$url", "Entries": [{"Id": "a", "ReceiptHandle": "$receipt"}]}),
]
ODD_VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    10**30,
    1.5,
    -1e300,
    "",
    " ",
    "x" * 3_000,
    "\x00",
    "\ufffe",
    "\u00e9" * 100,
    "All",
    [],
    {},
    [[]],
    {"": ""},
    ["x"] * 50,
    {"DataType": "String", "StringValue": ""},
    {str(number): {"DataType": "Number", "StringValue": "x"} for number in range(12)},
    [{"Id": str(number)} for number in range(12)],
]
ODD_BYTES = [
    b"\x00",
    b"\xff",
    b'"',
    b"\\",
    b"{",
    b"}",
    b"[" * 2_000,
    b",",
    b":",
    b"%",
    b"&",
    b"=",
    b"\r\n",
]


class Target(NamedTuple):
    """What the requests are about."""

    url: str
    name: str
    arn: str
    receipt: str


class Wire(NamedTuple):
    """One request, in pieces that can be damaged one by one."""

    method: bytes
    path: bytes
    headers: dict[bytes, bytes]
    body: bytes

    def encode(self, *, length: bool = True) -> bytes:
        lines = [self.method + b" " + self.path + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in self.headers.items()]
        if length:
            lines.append(b"Content-Length: %d" % len(self.body))
        return b"\r\n".join(lines) + b"\r\n\r\n" + self.body


def requests(target: Target) -> list[tuple[str, dict[str, Any]]]:
    """Every operation with its input as JSON clients write it."""
    found = []
    for name, given in OPERATIONS_WITH_QUEUE.items():
        found.append((name, filled({"QueueUrl": "$url", **given}, target)))
    for name, given in [*OTHER_OPERATIONS.items(), *PLAIN_OPERATIONS]:
        found.append((name, filled(given, target)))
    return found


def filled(value: Any, target: Target) -> Any:
    if isinstance(value, dict):
        return {key: filled(item, target) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, target) for item in value]
    if isinstance(value, str) and value.startswith("$"):
        return getattr(target, value[1:])
    return value


def as_json(operation: str, given: Any) -> Wire:
    headers = {
        b"Host": b"localhost",
        b"Content-Type": b"application/x-amz-json-1.0",
        b"X-Amz-Target": b"AmazonSQS." + operation.encode(),
        b"Authorization": b"AWS4-HMAC-SHA256 Credential=333333333333/20260101/us-east-1/sqs/aws4_request, "
        b"SignedHeaders=host, Signature=00",
    }
    return Wire(b"POST", b"/", headers, json.dumps(given).encode())


def as_form(operation: str, given: dict[str, Any], rng: random.Random) -> Wire:
    fields = {"Action": operation, "Version": "2012-11-05"}
    flatten(fields, "", given, operation)
    text = urlencode(fields, errors="replace").encode()
    credential = b"X-Amz-Credential=333333333333%2F20260101%2Fus-east-1%2Fsqs%2Faws4_request"
    if rng.random() < 0.3:
        return Wire(b"GET", b"/?" + credential + b"&" + text, {b"Host": b"localhost"}, b"")
    headers = {b"Host": b"localhost", b"Content-Type": b"application/x-www-form-urlencoded"}
    return Wire(b"POST", b"/?" + credential, headers, text)


def flatten(fields: dict[str, str], prefix: str, value: Any, operation: str) -> None:
    """Close enough to the query protocol's names; what is off is one more mutation."""
    if isinstance(value, dict):
        for key, item in value.items():
            singular = {
                "Entries": f"{operation}RequestEntry",
                "Attributes": "Attribute",
                "MessageAttributes": "MessageAttribute",
                "MessageSystemAttributes": "MessageSystemAttribute",
                "tags": "Tag",
                "Tags": "Tag",
            }.get(key, key.removesuffix("s") if isinstance(item, list) else key)
            if isinstance(item, dict) and singular != key:
                for number, (name, member) in enumerate(item.items(), start=1):
                    label = "Key" if singular == "Tag" else "Name"
                    fields[f"{prefix}{singular}.{number}.{label}"] = str(name)
                    flatten(fields, f"{prefix}{singular}.{number}.Value.", member, operation)
            else:
                flatten(fields, f"{prefix}{singular}.", item, operation)
    elif isinstance(value, list):
        for number, item in enumerate(value, start=1):
            flatten(fields, f"{prefix}{number}.", item, operation)
    else:
        fields[prefix.removesuffix(".")] = str(value)


# --- damage -----------------------------------------------------------------------------------


def mutated(rng: random.Random, target: Target) -> tuple[bytes, bool]:
    """A damaged request, and whether its length is still right (so that its answer can be waited for)."""
    operation, valid = rng.choice(requests(target))
    given: Any = valid
    kind = rng.random()
    if kind < 0.45:
        for _ in range(rng.randint(1, 3)):
            given = with_odd_value(rng, given)
    if not isinstance(given, dict):
        return as_json(operation, given).encode(), True
    wire = as_json(operation, given) if rng.random() < 0.6 else as_form(operation, given, rng)
    if 0.45 <= kind < 0.8:
        wire = wire._replace(body=with_damage(rng, wire.body))
        if wire.method == b"GET":
            return with_damage(rng, wire.encode(length=False)), False
    elif kind >= 0.8:
        return with_damage(rng, wire.encode()), False
    return wire.encode(length=wire.method != b"GET"), True


def with_odd_value(rng: random.Random, value: Any) -> Any:
    """Some value in the tree becomes another one, or goes, or comes twice."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        chance = rng.random()
        if chance < 0.15:
            return {name: item for name, item in value.items() if name != key}
        if chance < 0.25:
            return {**value, key + rng.choice(["", "x", "\x00", "."]): value[key]}
        return {**value, key: with_odd_value(rng, value[key])}
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        return [*value[:at], with_odd_value(rng, value[at]), *value[at:]]
    return rng.choice(ODD_VALUES)


def with_damage(rng: random.Random, data: bytes) -> bytes:
    """Bytes are changed, taken out, put in, doubled or cut off."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(data))
        end = min(len(data), at + rng.randint(0, 30))
        kind = rng.randrange(6)
        if kind == 0 and at < len(data):
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif kind == 1:
            data = data[:at] + data[end:]
        elif kind == 2:
            data = data[:at] + rng.choice(ODD_BYTES) + data[at:]
        elif kind == 3:
            data = data[:end] + data[at:end] + data[end:]
        elif kind == 4:
            data = data[:at]
        else:
            data = data[:at] + data[at:end][::-1] + data[end:]
    return data
