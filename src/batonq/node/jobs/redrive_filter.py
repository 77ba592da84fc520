"""The filter and the edit of a redrive: which messages a job takes, and how it changes them.

Both arrive in the form of the REST API, are checked once here, and are stored with the job as JSON, so that another
owner of the shard continues with the same. Bodies are not in the core, so messages are examined here. A list of message
ids is stored as their sequences (id_list.py).
"""

from __future__ import annotations

import hashlib
import json
from array import array
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from batonq.core import json_text
from batonq.core.commands import Failure
from batonq.core.payload import (
    CLIENT_SIZE,
    IN_STORE,
    REFERS,
    STORED,
    Attribute,
    Content,
    Lineage,
    Payload,
    decode_attributes,
    encode_attributes,
    referred_key,
)
from batonq.errors import InvalidInput
from batonq.node.bounded_cache import BoundedCache
from batonq.node.jobs.id_list import pack, unpack
from batonq.node.messages.dead_letter_traits import last_error, traits_of

NAME_LENGTH_MAX = 256
TEXT_BYTES_MAX = 65_536
ENTRIES_MAX = 50
SELECTION_BYTES_MAX = 64 * 1024  # of a filter and an edit: each step of a job writes both to the log again
PICKS_MAX = 64  # filters and edits that are cached in decoded form
PICK_LENGTH_MAX = 256 * 1024  # and the maximum length of each
_KEPT_FIELDS = ("attributes", "errorClass", "reasonContains", "minAgeSeconds", "maxAgeSeconds", "bodyContains", "group")
_FILTER_FIELDS = ("messageIds", *_KEPT_FIELDS)
_EDIT_FIELDS = (
    "setAttributes",
    "removeAttributes",
    "replaceAttributes",
    "replaceBody",
    "replaceBodyBase64",
    "replaceText",
)
_BODY_FIELDS = ("replaceBody", "replaceBodyBase64", "replaceText")


class SelectionTooLong(InvalidInput):
    def __init__(self) -> None:
        super().__init__(
            f"The filter and the edit of a redrive are larger than {SELECTION_BYTES_MAX} bytes. Use shorter texts, or "
            "receive these messages and send new ones."
        )


class EditImpossible(Exception):
    """A message cannot be changed as requested; the text says why."""


@dataclass(slots=True, frozen=True)
class Pick:
    """A checked filter and edit. When both are empty, every message is taken unchanged."""

    attributes: tuple[tuple[str, str | float | bytes], ...] = ()
    error_class: str = ""
    reason: str = ""
    age_min_ms: int = 0
    age_max_ms: int = 0  # 0: any
    body: bytes = b""  # text that the message's body must contain
    group: str = ""  # key of a group of dead letters, see messages/dead_letter_traits.py
    sequences: array[int] | None = None  # only these messages, in order; None: any
    set_attributes: tuple[Attribute, ...] = ()
    remove_attributes: frozenset[str] = frozenset()
    new_attributes: tuple[Attribute, ...] | None = None  # instead of all that the message has
    new_body: tuple[bytes, int] | None = None  # with the type of the body
    replacements: tuple[tuple[bytes, bytes], ...] = ()
    bytes_max: int = field(default=1 << 20)

    @property
    def reads(self) -> bool:
        """Whether the decision needs more than the message's position."""
        return bool(
            self.attributes
            or self.error_class
            or self.reason
            or self.age_min_ms
            or self.age_max_ms
            or self.body
            or self.group
        )

    @property
    def edits(self) -> bool:
        changes = (self.set_attributes, self.remove_attributes, self.new_body, self.replacements)
        return any(changes) or self.new_attributes is not None

    def matches(self, payload: Payload, failure: Failure | None, age_ms: int) -> bool:
        """Whether the filter matches this message. `failure` is the message's last failure in its current queue."""
        if age_ms < self.age_min_ms or (self.age_max_ms and age_ms > self.age_max_ms):
            return False
        if self.error_class or self.reason:
            error_class, reason = last_error(Lineage.decode(payload.lineage), failure)
            if (self.error_class and error_class != self.error_class) or self.reason not in reason:
                return False
        if self.body and (payload.content & STORED or self.body not in payload.body):
            return False  # bodies in the payload store are not searched
        if self.group and self.group != traits_of(payload, failure).key:
            return False
        if not self.attributes:
            return True
        have = {attribute.name: attribute for attribute in decode_attributes(payload.attributes)}
        return all(name in have and _same(have[name], value) for name, value in self.attributes)

    def changed(self, payload: Payload) -> Payload:
        """The message after the edit. Raises EditImpossible."""
        body, content = self.new_body or (payload.body, payload.content)
        if self.new_body and body == payload.body:
            content |= payload.content & REFERS
        if self.replacements and content & IN_STORE:
            raise EditImpossible("its body is in the payload store and can only be replaced as a whole")
        if self.replacements and content != Content.BYTES:
            for find, replacement in self.replacements:
                if len(body) + body.count(find) * (len(replacement) - len(find)) > self.bytes_max:
                    raise self._too_large()  # check first: the result could be thousands of times as large
                body = body.replace(find, replacement)
            if content == Content.JSON and not _is_json(body):
                raise EditImpossible("its body would no longer be valid JSON")
        attributes = payload.attributes
        if self.new_attributes is not None:
            attributes = encode_attributes([*self.new_attributes])
        if self.set_attributes or self.remove_attributes:
            added = {attribute.name: attribute for attribute in self.set_attributes}
            kept = [
                attribute
                for attribute in decode_attributes(attributes)
                if attribute.name not in added and attribute.name not in self.remove_attributes
            ]
            attributes = encode_attributes([*kept, *added.values()])
        if not body and payload.content != Content.BYTES:
            raise EditImpossible("its body would be empty")
        is_pointer_now = body != payload.body or (CLIENT_SIZE in attributes and CLIENT_SIZE not in payload.attributes)
        if is_pointer_now and not content & REFERS and referred_key(body):
            raise EditImpossible(
                "its new body would be a pointer into a payload store, whose object is kept only for messages that are "
                "sent; send a new message"
            )
        if len(body) + len(attributes) > self.bytes_max:
            raise self._too_large()
        digest = hashlib.md5(body, usedforsecurity=False).digest() if payload.body_md5 else b""
        if content & STORED:
            digest = payload.body_md5
        return payload._replace(body=body, content=content, attributes=attributes, body_md5=digest)

    def _too_large(self) -> EditImpossible:
        return EditImpossible(f"it would be larger than {self.bytes_max} bytes")


def encode_pick(
    filter_: Mapping[str, Any] | None,
    edit: Mapping[str, Any] | None,
    bytes_max: int,
    listed: array[int] | None = None,
    *,
    deletes: bool = False,
) -> str:
    """Check a request's filter and edit, and encode them as a job stores them. Empty: there is neither.

    `listed` has the sequences of the messages that the filter's `messageIds` name. `deletes`: the job deletes messages.
    """
    filter_, edit = dict(filter_ or {}), edit or {}
    if not filter_ and not edit and not deletes:
        return ""
    _only(filter_, _FILTER_FIELDS, "filter")
    filter_.pop("messageIds", None)
    if len(_as_text(filter_, edit, bytes_max)) > SELECTION_BYTES_MAX:
        raise SelectionTooLong
    if listed is not None:
        # Inside the filter: a release that does not know it must not take every message.
        filter_["listed"] = pack(listed)
    if deletes:
        filter_["deletes"] = True  # for the same reason: an older release must not move the messages
    text = _as_text(filter_, edit, bytes_max)
    decode_pick(text)
    return text


def _as_text(filter_: Mapping[str, Any], edit: Mapping[str, Any], bytes_max: int) -> str:
    values = {"filter": _jsonable(filter_), "edit": _jsonable(edit), "bytesMax": bytes_max}
    try:
        return json.dumps(values, separators=(",", ":"), sort_keys=True)
    except (TypeError, ValueError):
        raise InvalidInput("The filter and the edit of a redrive must be JSON values.") from None


_picks: BoundedCache[str, Pick] = BoundedCache(PICKS_MAX, PICK_LENGTH_MAX)


def decode_pick(text: str) -> Pick:
    """Raises InvalidInput."""
    pick = _picks.get(text)
    if pick is None:
        pick = _decode_pick(text)
        _picks.put(text, pick, len(text))
    return pick


def _decode_pick(text: str) -> Pick:
    values: dict[str, Any] = json.loads(text) if text else {"filter": {}, "edit": {}, "bytesMax": 1 << 20}
    filter_, edit = values["filter"], values["edit"]
    _only(filter_, (*_KEPT_FIELDS, "listed", "deletes"), "filter")
    _only(edit, _EDIT_FIELDS, "edit")
    if sum(name in edit for name in _BODY_FIELDS) > 1:
        raise InvalidInput("The edit of a redrive can have only one of replaceBody, replaceBodyBase64 and replaceText.")
    new_body = None
    if "replaceBody" in edit:
        new_body = _body(edit["replaceBody"])
    elif "replaceBodyBase64" in edit:
        new_body = _from_base64(edit["replaceBodyBase64"], "replaceBodyBase64"), int(Content.BYTES)
    return Pick(
        attributes=tuple((name, _value(value)) for name, value in _entries(filter_, "attributes")),
        error_class=_text(filter_, "errorClass"),
        reason=_text(filter_, "reasonContains"),
        age_min_ms=_milliseconds(filter_, "minAgeSeconds"),
        age_max_ms=_milliseconds(filter_, "maxAgeSeconds"),
        body=_text(filter_, "bodyContains").encode(),
        group=_text(filter_, "group"),
        sequences=unpack(filter_["listed"]) if "listed" in filter_ else None,
        set_attributes=tuple(_attribute(name, value) for name, value in _entries(edit, "setAttributes")),
        remove_attributes=frozenset(_texts(edit, "removeAttributes")),
        new_attributes=tuple(_attribute(name, value) for name, value in _entries(edit, "replaceAttributes"))
        if "replaceAttributes" in edit
        else None,
        new_body=new_body,
        replacements=tuple(_replacement(entry) for entry in _list(edit, "replaceText")),
        bytes_max=values["bytesMax"],
    )


def _same(attribute: Attribute, value: str | float | bytes) -> bool:
    if isinstance(value, bytes):
        return attribute.value == value
    text = attribute.value.decode(errors="replace")
    if isinstance(value, str):
        return not attribute.binary and text == value
    try:
        return not attribute.binary and float(text) == value
    except ValueError:
        return False


def _is_json(body: bytes) -> bool:
    """Whether the body is JSON that can be sent: without Python's extensions (NaN), and within the limits."""
    try:
        json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return not json_text.problem_of(body)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _body(value: Any) -> tuple[bytes, int]:
    if isinstance(value, str):
        return value.encode(), int(Content.TEXT)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(), int(Content.JSON)


def _attribute(name: str, value: Any) -> Attribute:
    value = _value(value)
    if isinstance(value, bytes):
        return Attribute(name, "Binary", value, True)
    if isinstance(value, str):
        return Attribute(name, "String", value.encode(), False)
    return Attribute(name, "Number", json.dumps(value).encode(), False)


def _value(value: Any) -> str | float | bytes:
    if isinstance(value, Mapping) and set(value) == {"base64"}:
        return _from_base64(value["base64"], "base64")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidInput('The value of an attribute must be a string, a number, or bytes as {"base64": …}.')
    return value


def _from_base64(text: Any, name: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError, TypeError):
        raise InvalidInput(f"{name} is not valid base64.") from None


def _jsonable(value: Any) -> Any:
    """Convert bytes, which MessagePack has and JSON has not, to base64; a body of bytes gets a name of its own."""
    if isinstance(value, Mapping):
        values = {str(name): _jsonable(member) for name, member in value.items()}
        if isinstance(value.get("replaceBody"), bytes):
            values["replaceBodyBase64"] = values.pop("replaceBody")["base64"]
        return values
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_jsonable(member) for member in value]
    return value


def _only(values: Any, names: Sequence[str], what: str) -> None:
    if not isinstance(values, Mapping):
        raise InvalidInput(f"The {what} of a redrive must be an object.")
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise InvalidInput(
            f"The {what} of a redrive has unknown fields: {', '.join(unknown)}. Known fields: {', '.join(names)}."
        )


def _text(values: Mapping[str, Any], name: str) -> str:
    text = values.get(name, "")
    if not isinstance(text, str) or len(text.encode(errors="replace")) > TEXT_BYTES_MAX:
        raise InvalidInput(f"{name} must be a string of at most {TEXT_BYTES_MAX} bytes.")
    return text


def _milliseconds(values: Mapping[str, Any], name: str) -> int:
    number = values.get(name, 0)
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < 1e9:
        raise InvalidInput(f"{name} must be a number of seconds.")
    return round(number * 1000)


def _entries(values: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    entries = values.get(name, {})
    if not isinstance(entries, Mapping) or len(entries) > ENTRIES_MAX:
        raise InvalidInput(f"{name} must be an object with at most {ENTRIES_MAX} attributes, from name to value.")
    for key in entries:
        if not 0 < len(key) <= NAME_LENGTH_MAX:
            raise InvalidInput(f"The name of an attribute must have 1 to {NAME_LENGTH_MAX} characters.")
    return sorted(entries.items())


def _list(values: Mapping[str, Any], name: str) -> list[Any]:
    entries = values.get(name, [])
    if not isinstance(entries, list) or len(entries) > ENTRIES_MAX:
        raise InvalidInput(f"{name} must be a list of at most {ENTRIES_MAX} entries.")
    return entries


def _texts(values: Mapping[str, Any], name: str) -> list[str]:
    texts = _list(values, name)
    if not all(isinstance(text, str) for text in texts):
        raise InvalidInput(f"{name} must be a list of strings.")
    return texts


def _replacement(entry: Any) -> tuple[bytes, bytes]:
    valid = isinstance(entry, Mapping) and set(entry) == {"find", "with"}
    if not valid or not all(isinstance(text, str) for text in entry.values()) or not entry["find"]:
        raise InvalidInput(
            'replaceText must be a list of {"find": …, "with": …}: the text to find and its replacement.'
        )
    return entry["find"].encode(), entry["with"].encode()
