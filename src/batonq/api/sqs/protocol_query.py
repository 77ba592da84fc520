"""The query protocol: form fields to inputs, outputs and errors to XML.

Fields have names like `SendMessageBatchRequestEntry.1.MessageAttribute.2.Value.DataType`. They are parsed into a tree.
The tree is then read into the operation's input structure (shapes.py). The tables below hold the names that this
protocol uses for lists and maps. Fields that are not in the structure are ignored.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from functools import cache
from types import UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from batonq.api.sqs import percent
from batonq.api.sqs.errors import MALFORMED_INPUT, Kind, SqsError, invalid, shortened

CONTENT_TYPE = "text/xml"
JSON_CONTENT_TYPE = "application/json"
JSON_NAMES = {"Messages": "messages", "QueueUrls": "queueUrls"}  # an empty list is null
NAMESPACE = "http://queue.amazonaws.com/doc/2012-11-05/"
PARAMETERS_MAX = 2_000
NAME_LENGTH_MAX = 256
NAME_PARTS_MAX = 8  # SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringListValue.1 has seven
INDEX_DIGITS_MAX = 6
INTEGER_DIGITS_MAX = 18

Input = TypeVar("Input", bound=Struct)
_encode_json = msgspec.json.Encoder().encode

# The names of lists and maps: the singular, followed by a number. Entries of a batch are named after the operation.
LISTS = {
    "AWSAccountIds": "AWSAccountId",
    "Actions": "ActionName",
    "AttributeNames": "AttributeName",
    "MessageAttributeNames": "MessageAttributeName",
    "MessageSystemAttributeNames": "MessageSystemAttributeName",
    "Messages": "Message",
    "QueueUrls": "QueueUrl",
    "Results": "ListMessageMoveTasksResultEntry",
    "TagKeys": "TagKey",
    "Failed": "BatchResultErrorEntry",
    "queueUrls": "QueueUrl",
    "StringListValues": "StringListValue",
    "BinaryListValues": "BinaryListValue",
}


class MapNames(NamedTuple):
    entry: str
    key: str
    value: str


MAPS = {
    "Attributes": MapNames("Attribute", "Name", "Value"),
    "MessageAttributes": MapNames("MessageAttribute", "Name", "Value"),
    "MessageSystemAttributes": MapNames("MessageSystemAttribute", "Name", "Value"),
    "Tags": MapNames("Tag", "Key", "Value"),
    "tags": MapNames("Tag", "Key", "Value"),
}


def list_name(member: str, operation: str) -> str:
    if member == "Entries":
        return f"{operation}RequestEntry"
    if member == "Successful":
        return f"{operation}ResultEntry"
    return LISTS[member]


# --- in ---------------------------------------------------------------------------------------

Tree = dict[str, Any]


def parse_form(text: str, name_parts_max: int = NAME_PARTS_MAX) -> dict[str, str]:
    """The fields of a query string or form; the first of duplicate names wins. Raises SqsError for invalid text."""
    if text.count("&") >= PARAMETERS_MAX:
        raise _not_a_form()
    fields: dict[str, str] = {}
    for part in text.split("&"):
        if not part:
            continue
        name, _, value = part.replace("+", " ").partition("=")
        if len(name) > NAME_LENGTH_MAX or name.count(".") >= name_parts_max:
            raise SqsError(
                MALFORMED_INPUT,
                f"The name of the parameter {shortened(name, 64)} has more than {NAME_LENGTH_MAX} characters "
                f"or {name_parts_max} parts.",
            )
        try:
            name, value = percent.decode(name), percent.decode(value)
        except ValueError:
            raise _not_a_form() from None
        if name in fields:
            raise SqsError(MALFORMED_INPUT, f"The parameter {shortened(name, 256)} is given twice.")
        fields[name] = value
    return fields


def _not_a_form() -> SqsError:
    return SqsError(MALFORMED_INPUT, f"The request is not a valid form in UTF-8 of at most {PARAMETERS_MAX} fields.")


def decode(shape: type[Input], fields: Mapping[str, str], operation: str) -> Input:
    """Decode an operation's input from form fields."""
    tree: Tree = {}
    for name, value in fields.items():
        node = tree
        *path, last = name.split(".")
        for part in path:
            child = node.get(part)
            if not isinstance(child, dict):
                child = node[part] = {}
            node = child
        node.setdefault(last, value)
    return _structure(shape, tree, operation)


def _structure(shape: type[Input], tree: Tree, operation: str) -> Input:
    values = {}
    for member, reader in _members(shape):
        value = reader(tree, operation)
        if value is not None:
            values[member] = value
    return shape(**values)


Reader = Callable[[Tree, str], Any]


@cache
def _members(shape: type[Struct]) -> list[tuple[str, Reader]]:
    hints = get_type_hints(shape)
    on_wire = zip(shape.__struct_fields__, shape.__struct_encode_fields__, strict=True)
    # A member that only the JSON protocol sets has a different name on the wire, which no parameter can have.
    return [(member, _reader(member, _required(hints[member]))) for member, name in on_wire if member == name]


def _required(hint: Any) -> Any:
    """The type without its `| None`."""
    if get_origin(hint) is UnionType:
        return next(option for option in get_args(hint) if option is not type(None))
    return hint


def _reader(member: str, hint: Any) -> Reader:
    origin = get_origin(hint)
    if origin is dict:
        return _map_reader(MAPS[member], get_args(hint)[1])
    if origin is list:
        return _list_reader(member, get_args(hint)[0])
    scalar = {str: _text, int: _integer, bytes: _binary}[hint]
    return lambda tree, operation: scalar(tree.get(member), member)


def _list_reader(member: str, item: Any) -> Reader:
    def read(tree: Tree, operation: str) -> list[Any] | None:
        node = tree.get(list_name(member, operation))
        if node is None:
            return None
        nodes = _in_order(node)
        if item in (str, bytes):
            scalar = _text if item is str else _binary
            return [scalar(value, member) for value in nodes]
        return [_structure(item, value if isinstance(value, dict) else {}, operation) for value in nodes]

    return read


def _map_reader(names: MapNames, item: Any) -> Reader:
    def read(tree: Tree, operation: str) -> dict[str, Any] | None:
        node = tree.get(names.entry)
        if node is None:
            return None
        result: dict[str, Any] = {}
        for entry in _in_order(node):
            entry = entry if isinstance(entry, dict) else {}
            key = _text(entry.get(names.key), names.entry) or ""
            value = entry.get(names.value)
            if key in result:
                raise SqsError(MALFORMED_INPUT, f"The {names.entry} {shortened(key, 256)} is given twice.")
            if item is str:
                result[key] = _text(value, names.entry) or ""
            else:
                result[key] = _structure(item, value if isinstance(value, dict) else {}, operation)
        return result

    return read


def _in_order(node: Any) -> list[Any]:
    """The members of a numbered list in order. A name without a number is the list's only member, as in AWS."""
    if not isinstance(node, dict):
        return [node]
    numbered = []
    for index, value in node.items():
        if not (index.isascii() and index.isdigit() and len(index) <= INDEX_DIGITS_MAX):
            raise SqsError(MALFORMED_INPUT, f"{shortened(index, 64)} is not the number of an entry.")
        numbered.append((int(index), value))
    return [value for _, value in sorted(numbered, key=lambda pair: pair[0])]


def _text(value: Any, member: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise SqsError(MALFORMED_INPUT, f"The parameter {member} is not a structure.")


def _integer(value: Any, member: str) -> int | None:
    text = _text(value, member)
    if text is None:
        return None
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= INTEGER_DIGITS_MAX):
        raise invalid(text, member, "Must be an integer.")
    return int(text)


def _binary(value: Any, member: str) -> bytes | None:
    text = _text(value, member)
    if text is None:
        return None
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise SqsError(MALFORMED_INPUT, f"The parameter {member} is not valid base64.") from None


# --- out --------------------------------------------------------------------------------------


def encode(output: Struct, operation: str, request_id: str) -> bytes:
    parts = [f'<?xml version="1.0"?><{operation}Response xmlns="{NAMESPACE}">']
    if output.__struct_fields__:
        members: list[str] = []
        _write_members(members, output, operation)
        if members:
            parts += (f"<{operation}Result>", *members, f"</{operation}Result>")
        else:
            parts.append(f"<{operation}Result/>")
    parts.append(f"<ResponseMetadata><RequestId>{request_id}</RequestId></ResponseMetadata></{operation}Response>")
    return "".join(parts).encode()


def encode_json(output: Struct, operation: str, request_id: str) -> bytes:
    """Like `encode`, for a client that accepts JSON. Maps become lists of names and values, as in XML."""
    answer: dict[str, Any] = {"ResponseMetadata": {"RequestId": request_id}}
    if output.__struct_fields__:
        answer = {f"{operation}Result": _as_json(output), **answer}
    return _encode_json({f"{operation}Response": answer})


def json_error_body(kind: Kind, message: str, request_id: str) -> bytes:
    error = {"Type": kind.fault, "Code": kind.code, "Message": message, "Detail": None}
    return _encode_json({"Error": error, "RequestId": request_id})


def _as_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if not isinstance(value, Struct):
        return value
    members: dict[str, Any] = {}
    for member in value.__struct_fields__:
        content = getattr(value, member)
        if isinstance(content, dict):
            names = MAPS[member]
            content = [{names.key: key, names.value: _as_json(item)} for key, item in content.items()]
        if content is not None or member in JSON_NAMES:
            members[JSON_NAMES.get(member, member)] = _as_json(content)
    return members


def error_body(kind: Kind, message: str, request_id: str) -> bytes:
    return (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{NAMESPACE}"><Error><Type>{kind.fault}</Type>'
        f"<Code>{kind.code}</Code><Message>{escape(message)}</Message><Detail/></Error>"
        f"<RequestId>{request_id}</RequestId></ErrorResponse>"
    ).encode()


def _write_members(parts: list[str], value: Struct, operation: str) -> None:
    for member in value.__struct_fields__:
        content = getattr(value, member)
        if isinstance(content, list):
            name = list_name(member, operation)
            for item in content:
                _write(parts, name, item, operation)
        elif isinstance(content, dict):
            names = MAPS[member]
            for key, item in content.items():
                parts.append(f"<{names.entry}><{names.key}>{escape(key)}</{names.key}>")
                _write(parts, names.value, item, operation)
                parts.append(f"</{names.entry}>")
        elif content is not None:
            _write(parts, member, content, operation)


def _write(parts: list[str], name: str, value: Any, operation: str) -> None:
    parts.append(f"<{name}>")
    if isinstance(value, Struct):
        _write_members(parts, value, operation)
    elif isinstance(value, bool):
        parts.append("true" if value else "false")
    elif isinstance(value, bytes):
        parts.append(b64encode(value).decode())
    else:
        parts.append(escape(str(value)))
    parts.append(f"</{name}>")


_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "\r": "&#xD;"})
# Characters that XML cannot represent. Such text can only come from an error that quotes its input.
_NOT_XML = [*range(9), 11, 12, *range(14, 32), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF]
_ESCAPES.update(dict.fromkeys(_NOT_XML, "?"))


def escape(text: str) -> str:
    return text.translate(_ESCAPES)
