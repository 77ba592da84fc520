"""`baton send QUEUE BODY`: send messages from an argument, standard input, files or JSON lines."""

from __future__ import annotations

import argparse
import base64
import json
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from batonq.cli.connection import Server, add_connection_arguments, connect, queue_path
from batonq.cli.exit_codes import FAILED, WrongUsage
from batonq.cli.output import note, print_json
from batonq.cli.progress import Progress
from batonq.cli.quantities import parse_duration_s, parse_time
from batonq.errors import BatonError, InvalidInput, OverLimit
from batonq.quantities import plural

BATCH_MESSAGES = 500
BATCH_BYTES = 2 << 20  # the server accepts requests of 4 MiB
BODY_BYTES_MAX = 4 << 20
STDIN = "-"
PRIORITIES = ("lowest", "low", "normal", "high", "highest")
FAILURES_SHOWN = 10
PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)


class Destination(NamedTuple):
    """Where messages go: a queue, or a topic."""

    kind: str
    name: str
    path: str  # of the messages
    done: str = "Sent"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("queue", metavar="QUEUE", help="name of the queue")
    add_message_arguments(parser)
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--delay", type=parse_duration_s, metavar="TIME", help="delay before delivery: 30s, 5m, 90d")
    when.add_argument(
        "--deliver-at", type=parse_time, metavar="WHEN", help="time of delivery: 2027-01-31T09:00:00Z, or with +01:00"
    )
    parser.add_argument("--ttl", type=parse_duration_s, metavar="TIME", help="time after which the message expires")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_arguments(parser)


def add_message_arguments(parser: argparse.ArgumentParser) -> None:
    """What to send, and with which options."""
    parser.add_argument(
        "body", metavar="BODY", nargs="?", help="the body; - or no body: standard input. JSON objects are sent as JSON"
    )
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--file", action="append", default=[], metavar="FILE", help="send the content of a file; can be repeated"
    )
    source.add_argument("--lines", metavar="FILE", help="send each line of a file as a message; - is standard input")
    source.add_argument(
        "--json-lines",
        metavar="FILE",
        help='send a JSON object per line, {"body": …, "attributes": {…}, "messageGroupId": …}; - is standard input',
    )
    parser.add_argument("--text", action="store_true", help="send bodies as text, even if they are JSON")
    parser.add_argument(
        "--attribute",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an attribute; NAME:=5 is a number; can be repeated",
    )
    parser.add_argument("--group", metavar="ID", help="message group id")
    parser.add_argument("--dedup-key", metavar="KEY", help="deduplication key")
    parser.add_argument(
        "--priority",
        type=parse_priority,
        metavar="PRIORITY",
        help=f"{', '.join(PRIORITIES)}, or a number from 0 to 255",
    )
    parser.add_argument("--max-receives", type=int, metavar="N", help="maximum number of receives of the message")


def parse_priority(text: str) -> int | str:
    if text in PRIORITIES:
        return text
    if text.isdigit() and int(text) <= 255:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} must be {', '.join(PRIORITIES)}, or a number from 0 to 255")


FLAGS = {
    "messageGroupId": "--group",
    "deduplicationKey": "--dedup-key",
    "delaySeconds": "--delay",
    "deliverAt": "--deliver-at",
    "ttlSeconds": "--ttl",
    "maxReceiveCount": "--max-receives",
}


def run(arguments: argparse.Namespace) -> int:
    name = arguments.queue
    return send_given(arguments, Destination("queue", name, queue_path(name, "messages")))


def send_given(arguments: argparse.Namespace, destination: Destination) -> int:
    """Send what the arguments of `add_message_arguments` say."""
    if arguments.body is not None and (arguments.file or arguments.lines or arguments.json_lines):
        raise WrongUsage("Use either BODY or one of --file, --lines and --json-lines.")
    common = options(arguments)
    server = connect(arguments, FLAGS)
    if arguments.lines or arguments.json_lines or len(arguments.file) > 1:
        return _send_many(server, arguments, destination, _messages(arguments, common))
    body = _read(arguments.file[0]) if arguments.file else _body(arguments, destination)
    message = encode_message(encode_body(body, text=arguments.text), common)
    sent = server.post(destination.path, message)
    kind, name, _, done = destination
    if arguments.json:
        print_json({kind: name, "sent": 1, "failed": 0, "messages": [sent]})
    else:
        repeated = ", a duplicate of an earlier message" if sent.get("duplicate") else ""
        print(f"{done} {sent['messageId']} (sequence {sent['sequence']}) to {name}{repeated}.")
    return 0


# --- what to send -----------------------------------------------------------------------------


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields that all messages of this command have in common."""
    fields = {
        "messageGroupId": arguments.group,
        "deduplicationKey": arguments.dedup_key,
        "delaySeconds": getattr(arguments, "delay", None),  # a message for a topic has no times
        "deliverAt": getattr(arguments, "deliver_at", None),
        "ttlSeconds": getattr(arguments, "ttl", None),
        "priority": arguments.priority,
        "maxReceiveCount": arguments.max_receives,
        "subject": getattr(arguments, "subject", None),
        "attributes": parse_attributes(arguments.attribute) or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def parse_attributes(given: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        number = name.endswith(":")
        name = name.removesuffix(":")
        if not equals or not name:
            raise WrongUsage(f"--attribute {each!r} must look like colour=red, or size:=5 for a number.")
        found[name] = _number(each, value) if number else value
    return found


def _number(each: str, text: str) -> int | float:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongUsage(f"--attribute {each!r}: {text!r} is not a number. Use = instead of := for text.")
    return value


def encode_body(data: bytes, *, text: bool = False) -> str:
    """The body as a field in JSON. Objects and arrays are sent as the JSON they are, byte by byte; other text as text,
    and bytes as base64.
    """
    try:
        body = data.decode()
    except UnicodeDecodeError:
        return f'"bodyBase64": "{base64.b64encode(data).decode()}"'
    return f'"body": {body if is_json(body) and not text else json.dumps(body, ensure_ascii=False)}'


def is_json(text: str) -> bool:
    """Whether the text is a JSON object or array."""
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def encode_message(body: str, fields: dict[str, Any]) -> bytes:
    """A message as the REST API takes it. `body` is a field in JSON, from `encode_body`."""
    others = json.dumps(fields, ensure_ascii=False)[1:-1]
    separator = ", " if body and others else ""
    return f"{{{body}{separator}{others}}}".encode()


def _body(arguments: argparse.Namespace, destination: Destination) -> bytes:
    if arguments.body is not None and arguments.body != STDIN:
        return str(arguments.body).encode("utf-8", "surrogateescape")
    if arguments.body is None and sys.stdin.isatty():
        command = "send" if destination.kind == "queue" else f"{destination.kind} publish"
        raise WrongUsage(
            f"The body is missing: baton {command} {destination.name} 'hello', or pipe it into standard input."
        )
    return _read(STDIN)


def _read(path: str) -> bytes:
    try:
        if path == STDIN:
            data = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
        else:
            with open(path, "rb") as file:
                data = file.read(BODY_BYTES_MAX + 1)
    except OSError as problem:
        raise WrongUsage(f"{path} cannot be read: {problem.strerror}.") from None
    if len(data) > BODY_BYTES_MAX:
        raise InvalidInput(f"{path} is larger than {BODY_BYTES_MAX >> 20} MiB, the maximum size of a request.")
    return data


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, without their ends. Empty lines are left out."""
    try:
        file = sys.stdin.buffer if path == STDIN else open(path, "rb")  # noqa: SIM115
    except OSError as problem:
        raise WrongUsage(f"{path} cannot be read: {problem.strerror}.") from None
    with file:
        for place, line in enumerate(iter(lambda: file.readline(BODY_BYTES_MAX + 1), b""), 1):
            if len(line) > BODY_BYTES_MAX:
                raise InvalidInput(f"Line {place} of {_named(path)} is longer than {BODY_BYTES_MAX >> 20} MiB.")
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            if line:
                yield place, line


def _messages(arguments: argparse.Namespace, common: dict[str, Any]) -> Iterator[bytes]:
    if arguments.lines:
        for _, line in _lines(arguments.lines):
            yield encode_message(encode_body(line, text=arguments.text), common)
    elif arguments.json_lines:
        for place, line in _lines(arguments.json_lines):
            yield _with_options(line, common, f"Line {place} of {_named(arguments.json_lines)}")
    else:
        for path in arguments.file:
            yield encode_message(encode_body(_read(path), text=arguments.text), common)


def _with_options(line: bytes, common: dict[str, Any], where: str) -> bytes:
    """A message in JSON with the options of the command, unless the message has its own."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not {"body", "bodyBase64"} & value.keys():
        raise InvalidInput(f'{where} is not a JSON object with a body, such as {{"body": "hello"}}.')
    missing = {name: option for name, option in common.items() if name not in value}
    text = line.decode().strip()
    return encode_message(text[1:-1], missing)


# --- many -------------------------------------------------------------------------------------


def _send_many(
    server: Server, arguments: argparse.Namespace, destination: Destination, messages: Iterable[bytes]
) -> int:
    kind, name, path, done = destination
    results: list[dict[str, Any]] = []
    with Progress(f"Sending to {name}", 0) as bar:
        try:
            for batch in batches(messages):
                results += _send_batch(server, path, batch)
                bar.update(len(results))
        except BatonError:
            note(f"baton: {plural(len(results), 'message')} were sent before this error:")
            raise
    failed = [result for result in results if "error" in result]
    sent = len(results) - len(failed)
    if arguments.json:
        print_json({kind: name, "sent": sent, "failed": len(failed), "messages": results})
    else:
        print(f"{done} {plural(sent, 'message')} to {name}.")
    shown = [(place, result["error"]) for place, result in enumerate(results, 1) if "error" in result]
    for place, error in shown[:FAILURES_SHOWN]:
        note(f"baton: message {place} was refused: {error['detail']}")
    if len(failed) > FAILURES_SHOWN:
        note(f"baton: {plural(len(failed) - FAILURES_SHOWN, 'more message')} were refused.")
    return FAILED if failed else 0


def _send_batch(server: Server, path: str, batch: list[bytes]) -> list[dict[str, Any]]:
    """One result per message. While the server is over a limit, the batch waits: it was refused as a whole."""
    body = b'{"messages": [' + b",".join(batch) + b"]}"
    for pause_s in PAUSES_S:
        try:
            return server.post(f"{path}:batch", body)["results"]  # type: ignore[no-any-return]
        except OverLimit:
            time.sleep(pause_s)
    return server.post(f"{path}:batch", body)["results"]  # type: ignore[no-any-return]


def batches(messages: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Messages in batches that fit in one request each."""
    batch: list[bytes] = []
    weight = 0
    for message in messages:
        if batch and (len(batch) == BATCH_MESSAGES or weight + len(message) > BATCH_BYTES):
            yield batch
            batch, weight = [], 0
        batch.append(message)
        weight += len(message)
    if batch:
        yield batch


def _named(path: str) -> str:
    return "standard input" if path == STDIN else path
