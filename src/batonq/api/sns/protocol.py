"""The query protocol as SNS uses it: forms with `Name.member.1` and `Name.entry.1.key`, and answers in XML."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from batonq.api.http import Request, Response
from batonq.api.sns.errors import SnsError, invalid
from batonq.api.sqs.errors import SqsError, shortened
from batonq.api.sqs.protocol_query import escape, parse_form

VERSION = "2010-03-31"
NAMESPACE = f"http://sns.amazonaws.com/doc/{VERSION}/"
CONTENT_TYPE = "text/xml"
NAME_PARTS_MAX = 10  # PublishBatchRequestEntries.member.1.MessageAttributes.entry.1.Value.StringValue has eight
ENTRIES_MAX = 1_000
INDEX_DIGITS_MAX = 6
REQUEST_ID_HEADER = "x-amzn-RequestId"

Input = TypeVar("Input", bound=Struct)


class Asked(NamedTuple):
    action: str
    fields: Mapping[str, str]


def read(request: Request) -> Asked:
    """The action and the fields of a request, from its query string and its form."""
    try:
        fields = parse_form(request.query, NAME_PARTS_MAX)
        if request.method == "POST":
            fields |= parse_form(request.body.decode("ascii"), NAME_PARTS_MAX)
    except SqsError as problem:
        raise SnsError("MalformedInput", problem.message) from None
    except UnicodeDecodeError:
        raise SnsError("MalformedInput", "The form is not percent-encoded.") from None
    return Asked(fields.get("Action", ""), fields)


def decode(shape: type[Input], fields: Mapping[str, str]) -> Input:
    """An operation's input from form fields. Fields that the operation does not have are ignored."""
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        node = tree
        *path, last = name.split(".")
        for part in path:
            child = node.setdefault(part, {})
            if not isinstance(child, dict):
                raise invalid(f"{shortened(name, 100)} is given twice, as a value and as a structure.")
            node = child
        if last in node:
            raise invalid(f"{shortened(name, 100)} is given twice, as a value and as a structure.")
        node[last] = value
    for name in _collections(shape):
        if tree.get(name) == "":  # how clients write an empty list or map
            del tree[name]
    try:
        return msgspec.convert(_plain(tree), shape, strict=False)
    except msgspec.ValidationError as problem:
        raise invalid(str(problem)) from None


@cache
def _collections(shape: type[Struct]) -> list[str]:
    """The members of an input that are lists or maps."""
    hints = get_type_hints(shape).items()
    return [name for name, hint in hints if any(get_origin(option) in (list, dict) for option in get_args(hint))]


def _plain(node: Any) -> Any:
    """The tree with its lists and maps as such."""
    if not isinstance(node, dict):
        return node
    if node.keys() == {"member"}:
        return [_plain(value) for value in _in_order(node["member"])]
    if node.keys() == {"entry"}:
        return dict(_pair(entry) for entry in _in_order(node["entry"]))
    return {name: _plain(value) for name, value in node.items()}


def _in_order(node: Any) -> list[Any]:
    """The members of a numbered list, by their numbers."""
    if not isinstance(node, dict):
        raise invalid("The entries of a list must be numbered: Name.member.1, Name.member.2, …")
    if len(node) > ENTRIES_MAX:
        raise invalid(f"A list has more than {ENTRIES_MAX} entries.")
    for index in node:
        if not (index.isascii() and index.isdigit() and len(index) <= INDEX_DIGITS_MAX):
            raise invalid(f"{shortened(index, 64)} is not the number of an entry.")
    return [node[index] for index in sorted(node, key=int)]


def _pair(entry: Any) -> tuple[str, Any]:
    """The key and value of a map's entry. Message attributes call them Name and Value."""
    if not isinstance(entry, dict):
        raise invalid("An entry of a map must have a key and a value.")
    key = entry.get("key", entry.get("Name"))
    if not isinstance(key, str):
        raise invalid("An entry of a map must have a key and a value.")
    return key, _plain(entry.get("value", entry.get("Value", "")))


# --- out --------------------------------------------------------------------------------------


def answer(action: str, output: Struct | None, request_id: str) -> Response:
    """`output` None: the operation has no result."""
    parts = [f'<{action}Response xmlns="{NAMESPACE}">']
    if output is not None:
        parts.append(f"<{action}Result>")
        _write_members(parts, output)
        parts.append(f"</{action}Result>")
    parts.append(f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{action}Response>")
    return _xml(200, "".join(parts), request_id)


def error(problem: SnsError, request_id: str) -> Response:
    return _xml(
        problem.status,
        f'<ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{problem.fault}</Type><Code>{escape(problem.code)}</Code>'
        f"<Message>{escape(problem.message)}</Message></Error><RequestId>{request_id}</RequestId></ErrorResponse>",
        request_id,
    )


def _xml(status: int, text: str, request_id: str) -> Response:
    return Response(status, text.encode(), CONTENT_TYPE, ((REQUEST_ID_HEADER, request_id),))


def _write_members(parts: list[str], value: Struct) -> None:
    for member in value.__struct_fields__:
        content = getattr(value, member)
        if content is not None:
            parts.append(f"<{member}>")
            _write(parts, content)
            parts.append(f"</{member}>")


def _write(parts: list[str], content: Any) -> None:
    if isinstance(content, Struct):
        _write_members(parts, content)
    elif isinstance(content, list):
        for item in content:
            parts.append("<member>")
            _write(parts, item)
            parts.append("</member>")
    elif isinstance(content, dict):
        for key, item in content.items():
            parts.append(f"<entry><key>{escape(key)}</key><value>{escape(item)}</value></entry>")
    elif isinstance(content, bool):
        parts.append("true" if content else "false")
    else:
        parts.append(escape(str(content)))
