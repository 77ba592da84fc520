"""The three protocols of CloudWatch's clients: JSON, rpc-v2-cbor, and the older query protocol with XML answers."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import msgspec

from batonq.api.cloudwatch import cbor
from batonq.api.cloudwatch.cbor import CborError, Timestamp
from batonq.api.cloudwatch.errors import CloudWatchError, invalid
from batonq.api.http import Request, Response
from batonq.api.sqs.errors import SqsError
from batonq.api.sqs.protocol_query import escape, parse_form

TARGET_PREFIX = "GraniteServiceVersion20100801."
PATH_PREFIX = "/service/GraniteServiceVersion20100801/operation/"
VERSION = "2010-08-01"
XML_NAMESPACE = f"http://monitoring.amazonaws.com/doc/{VERSION}/"
ERROR_NAMESPACE = "com.amazonaws.cloudwatch"
PARTS_MAX = 12  # of the name of a form's field: MetricDataQueries.member.1.MetricStat.Metric.Dimensions.member.1.Name
ENTRIES_MAX = 1_000
BODY_BYTES_MAX = 1 << 20


class Asked(NamedTuple):
    operation: str
    given: Any


class ProtocolForm(Protocol):
    """How a request is read and an answer is written."""

    def read(self, request: Request) -> Asked: ...

    def answer(self, operation: str, result: Mapping[str, Any], request_id: str) -> Response: ...

    def error(self, problem: CloudWatchError, request_id: str) -> Response: ...


def protocol_of(request: Request) -> ProtocolForm:
    if request.path.startswith("/service/"):
        return CBOR
    return JSON if b"x-amz-target" in request.headers else QUERY


def is_for_cloudwatch(request: Request) -> bool:
    """Whether a request to the SQS endpoint is for CloudWatch: by its target, its path, or its version."""
    target = request.headers.get(b"x-amz-target")
    if target is not None:
        return target.startswith(TARGET_PREFIX.encode())
    if request.path.startswith(PATH_PREFIX):
        return True
    version = f"Version={VERSION}"
    if request.method == "GET":
        return version in request.query
    # In a form, an equals sign within a value is percent-encoded.
    return request.method == "POST" and (version.encode() in request.body or version in request.query)


class _Json:
    content_type = "application/x-amz-json-1.0"

    def read(self, request: Request) -> Asked:
        operation = request.header(b"x-amz-target").removeprefix(TARGET_PREFIX)
        try:
            return Asked(operation, msgspec.json.decode(request.body or b"{}"))
        except (msgspec.MsgspecError, RecursionError):
            raise invalid("The request's body is not valid JSON.") from None

    def answer(self, operation: str, result: Mapping[str, Any], request_id: str) -> Response:
        body = msgspec.json.encode(_with_numbers(result))
        return Response(200, body, self.content_type, (("x-amzn-RequestId", request_id),))

    def error(self, problem: CloudWatchError, request_id: str) -> Response:
        body = msgspec.json.encode({"__type": f"{ERROR_NAMESPACE}#{problem.type}", "message": problem.message})
        return Response(problem.status, body, self.content_type, _error_headers(problem, request_id))


class _Cbor:
    content_type = "application/cbor"

    def read(self, request: Request) -> Asked:
        operation = request.path.removeprefix(PATH_PREFIX)
        try:
            return Asked(operation, cbor.decode(request.body) if request.body else {})
        except CborError as problem:
            raise invalid(f"The request's body is not valid CBOR: {problem}.") from None

    def answer(self, operation: str, result: Mapping[str, Any], request_id: str) -> Response:
        headers = (("smithy-protocol", "rpc-v2-cbor"), ("x-amzn-RequestId", request_id))
        return Response(200, cbor.encode(dict(result)), self.content_type, headers)

    def error(self, problem: CloudWatchError, request_id: str) -> Response:
        body = cbor.encode({"__type": f"{ERROR_NAMESPACE}#{problem.type}", "message": problem.message})
        headers = (("smithy-protocol", "rpc-v2-cbor"), *_error_headers(problem, request_id))
        return Response(problem.status, body, self.content_type, headers)


class _Query:
    content_type = "text/xml"

    def read(self, request: Request) -> Asked:
        try:
            fields = parse_form(request.query, PARTS_MAX)
            if request.method == "POST":
                fields |= parse_form(request.body.decode("ascii"), PARTS_MAX)
        except SqsError as problem:
            raise invalid(problem.message) from None
        except UnicodeDecodeError:
            raise invalid("The form is not percent-encoded.") from None
        operation = fields.pop("Action", "")
        fields.pop("Version", None)
        return Asked(operation, nested(fields))

    def answer(self, operation: str, result: Mapping[str, Any], request_id: str) -> Response:
        body = (
            f'<{operation}Response xmlns="{XML_NAMESPACE}"><{operation}Result>{_xml(result)}</{operation}Result>'
            f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{operation}Response>"
        )
        return Response(200, body.encode(), self.content_type, (("x-amzn-RequestId", request_id),))

    def error(self, problem: CloudWatchError, request_id: str) -> Response:
        fault = "Sender" if problem.status < 500 else "Receiver"
        body = (
            f'<ErrorResponse xmlns="{XML_NAMESPACE}"><Error><Type>{fault}</Type><Code>{escape(problem.code)}</Code>'
            f"<Message>{escape(problem.message)}</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>"
        )
        return Response(problem.status, body.encode(), self.content_type, (("x-amzn-RequestId", request_id),))


JSON, CBOR, QUERY = _Json(), _Cbor(), _Query()


def _error_headers(problem: CloudWatchError, request_id: str) -> tuple[tuple[str, str], ...]:
    fault = "Sender" if problem.status < 500 else "Receiver"
    return (("x-amzn-RequestId", request_id), ("x-amzn-query-error", f"{problem.code};{fault}"))


def _with_numbers(value: Any) -> Any:
    """With times as JSON has them: seconds since 1970."""
    if isinstance(value, Timestamp):
        return value.seconds
    if isinstance(value, dict):
        return {name: _with_numbers(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [_with_numbers(entry) for entry in value]
    return value


def _xml(value: Any) -> str:
    if isinstance(value, Timestamp):
        return datetime.fromtimestamp(value.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, dict):
        return "".join(f"<{_tag(name)}>{_xml(entry)}</{_tag(name)}>" for name, entry in value.items())
    if isinstance(value, list):
        return "".join(f"<member>{_xml(entry)}</member>" for entry in value)
    return escape(repr(value) if isinstance(value, float) else str(value))


def _tag(name: str) -> str:
    assert name.isalnum(), name  # names are ours
    return name


def nested(fields: Mapping[str, str]) -> dict[str, Any]:
    """The parameters of a form as objects and lists: `A.member.1.B=x` becomes {"A": [{"B": "x"}]}."""
    root: dict[str, Any] = {}
    for name, value in fields.items():
        parts = name.split(".")
        at = root
        for part in parts[:-1]:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise invalid(f"The parameter {name[:100]!r} is given twice.")
        at[parts[-1]] = value
    listed: dict[str, Any] = _listed(root)
    return listed


def _listed(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.keys() == {"member"} and isinstance(value["member"], dict):
        entries = value["member"]
        if len(entries) > ENTRIES_MAX or not all(key.isascii() and key.isdigit() and len(key) < 6 for key in entries):
            raise invalid("The entries of a list must be numbered: Name.member.1, Name.member.2, …")
        return [_listed(entries[key]) for key in sorted(entries, key=int)]
    return {name: _listed(entry) for name, entry in value.items()}
