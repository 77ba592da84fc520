"""What an operator does to one message: delete, edit, retry."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from batonq.api.rest.content import attributes_from, body_from_value, bytes_of
from batonq.api.rest.message_shapes import MessageEdit
from batonq.api.rest.peeking import detail_of
from batonq.api.rest.queues import query
from batonq.api.rest.service import NO_CONTENT, Answer, Call, Nothing
from batonq.api.rest.shapes import Base64
from batonq.errors import InvalidInput, MessageNotFound


async def delete_message(call: Call) -> Answer:
    queue = call.queue()
    query(call, ())
    await call.broker.messages.delete(queue, call.token)
    return NO_CONTENT


async def edit_message(call: Call) -> Answer:
    queue = call.queue()
    await call.broker.messages.edit(queue, call.token, _edit(call.read(MessageEdit)))
    return Answer(200, await detail_of(call, queue, await call.broker.messages.find(queue, call.token)))


async def retry_message(call: Call) -> Answer:
    queue = call.queue()
    call.read(Nothing)
    # A dead letter leaves the queue: afterwards only its current id leads to it, not the id with which it was sent.
    before = await call.broker.messages.find(queue, call.token)
    current = before.peeked.current_id
    await call.broker.messages.retry(queue, current)
    try:
        after = await call.broker.messages.find(queue, current)
    except MessageNotFound:  # it was moved, and the retained log begins after it was stored here
        detail = await detail_of(call, queue, before)
        detail.state = "DELETED"
        detail.where = detail.why = "It was moved back to its source queue."
        return Answer(200, detail)
    return Answer(200, await detail_of(call, queue, after))


def _edit(given: MessageEdit) -> dict[str, Any]:
    """The changes in the form of a redrive's edit."""
    edit: dict[str, Any] = {}
    if given.body is not UNSET:
        if given.body_base64 is not None:
            raise InvalidInput("A message has one body: set body or bodyBase64, not both.")
        body_from_value(given.body)  # checks the same rules as for a sent message
        edit["replaceBody"] = given.body
    if given.body_base64 is not None:
        bytes_of(given.body_base64, "bodyBase64")
        edit["replaceBodyBase64"] = given.body_base64
    if given.attributes is not None:
        if given.set_attributes is not None or given.remove_attributes is not None:
            raise InvalidInput("Use attributes alone, or setAttributes and removeAttributes.")
        edit["replaceAttributes"] = _attributes(given.attributes)
    if given.set_attributes:
        edit["setAttributes"] = _attributes(given.set_attributes)
    if given.remove_attributes:
        edit["removeAttributes"] = given.remove_attributes
    return edit


def _attributes(given: dict[str, Any]) -> dict[str, Any]:
    attributes_from(given)  # checks the same rules as for a sent message
    return {name: {"base64": value.base64} if isinstance(value, Base64) else value for name, value in given.items()}
