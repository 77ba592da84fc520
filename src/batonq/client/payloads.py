"""Large bodies: the client puts them into a payload store and sends a pointer, which a receiving client follows.

The pointer has the format of Amazon's SQS extended client libraries, so a consumer that uses one of them can follow it,
and this client follows theirs: the body is a JSON text of a class name, a bucket and a key, and a message attribute has
the size. `ExtendedPayloadType` is Baton's own: whether the body is a JSON value, text or bytes.

If the store is that of the server too (`--payload-store`), the server deletes the objects when no message needs them.
It recognises them by their keys, see payload_store.py.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from batonq.client.models import AttributeValue, MessageFields, Outgoing, Peeked, RetainedFields
from batonq.errors import BatonError, InvalidInput, PayloadDamaged
from batonq.payload_store import CLIENT, THRESHOLD_BYTES, PayloadStore

POINTER = "software.amazon.payloadoffloading.PayloadS3Pointer"
OLD_POINTER = "com.amazon.sqs.javamessaging.MessageS3Pointer"  # of versions before 2.0
SIZE = "ExtendedPayloadSize"
OLD_SIZE = "SQSLargePayloadSize"
TYPE = "ExtendedPayloadType"
OWNER_S = 60.0  # how often a sender looks whether the store belongs to a server
BODY_BYTES_MAX = 256 << 20
_POINTER_LENGTH_MAX = 4096
_log = logging.getLogger("batonq.client")
M = TypeVar("M", bound=MessageFields | RetainedFields)


class Pointer(NamedTuple):
    bucket: str
    key: str
    size: int
    kind: str


def pointer_of(body: Any, attributes: Mapping[str, Any]) -> Pointer | None:
    """The pointer that a message has instead of a body; None if it is an ordinary message."""
    size = attributes.get(SIZE, attributes.get(OLD_SIZE))
    if size is None:
        return None
    if isinstance(body, str) and len(body) <= _POINTER_LENGTH_MAX:
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return None
    if not (isinstance(body, list) and len(body) == 2 and body[0] in (POINTER, OLD_POINTER)):
        return None
    place = body[1]
    if not isinstance(place, dict) or not all(isinstance(place.get(name), str) for name in ("s3BucketName", "s3Key")):
        return None
    try:
        number = int(size)
    except (TypeError, ValueError, OverflowError):
        return None
    return Pointer(place["s3BucketName"], place["s3Key"], number, str(attributes.get(TYPE, "text")))


class Payloads:
    """The payload store of one client. Methods block: the async client calls them on a thread."""

    def __init__(self, url: str, threshold: int | None = None, clock: Callable[[], float] = time.time) -> None:
        self.threshold = THRESHOLD_BYTES if threshold is None else threshold
        if self.threshold < 1:
            raise InvalidInput("payload_threshold must be at least 1 byte.")
        self._clock = clock
        self._store = PayloadStore(url, clock)
        parts = urlsplit(self._store.url)
        in_bucket = parts.scheme != "file"
        self._bucket = parts.netloc if in_bucket else self._store.url
        self._prefix = f"{path}/" if in_bucket and (path := parts.path.strip("/")) else ""  # of keys in the bucket
        self._folder, self._folder_until_s = "", 0.0
        self._whole_bucket = PayloadStore(f"{parts.scheme}://{parts.netloc}") if in_bucket else None

    # --- sending

    def offload(self, outgoing: Outgoing) -> Outgoing:
        """The message with a pointer instead of its body, if the body is above the threshold. Raises
        PayloadStoreUnavailable: then nothing is sent.
        """
        body = outgoing.body
        if isinstance(body, str):
            data, kind = body.encode(), "text"
        elif isinstance(body, (bytes, bytearray, memoryview)):
            data, kind = bytes(body), "bytes"
        else:
            data, kind = msgspec.json.encode(body), "json"
        if len(data) <= self.threshold:
            return outgoing
        if len(data) > BODY_BYTES_MAX:
            raise InvalidInput(f"The body has {len(data)} bytes; at most {BODY_BYTES_MAX} can be stored.")
        key = self._store.put(data, self._own_folder())
        pointer = json.dumps([POINTER, {"s3BucketName": self._bucket, "s3Key": self._prefix + key}])
        attributes: dict[str, AttributeValue] = {**(outgoing.attributes or {}), SIZE: len(data), TYPE: kind}
        return replace(outgoing, body=pointer, attributes=attributes)

    def _own_folder(self) -> str:
        now_s = self._clock()
        if now_s >= self._folder_until_s:
            self._folder, self._folder_until_s = self._store.client_folder(), now_s + OWNER_S
        return self._folder

    # --- receiving

    def fill(self, message: MessageFields | RetainedFields | Peeked) -> None:
        """Give a message its body. Raises PayloadDamaged, PayloadStoreUnavailable."""
        message.body, message.attributes = self._body(message.body, message.attributes)

    def resolve(self, messages: Sequence[M]) -> tuple[list[M], BatonError | None]:
        """Give the messages their bodies. Returns those whose bodies cannot be read, and the reason if that is the
        store and not the body.
        """
        failed: list[M] = []
        problem: BatonError | None = None
        for message in messages:
            try:
                self.fill(message)
            except PayloadDamaged as damage:
                _log.warning("Message %s: %s", message.id, damage.message)
                failed.append(message)
            except BatonError as unavailable:
                problem = unavailable
                failed.append(message)
        return failed, problem

    def show(self, peeked: MutableSequence[Peeked]) -> None:
        """Give messages that somebody looks at their bodies, or the reason why they cannot be shown."""
        for message in peeked:
            try:
                self.fill(message)
            except BatonError as problem:
                message.body, message.problem = None, problem.message

    def _body(self, body: Any, attributes: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        pointer = pointer_of(body, attributes)
        if pointer is None or pointer.bucket != self._bucket:
            return body, attributes  # not in this store: whoever sent it could otherwise choose what this client reads
        if not 0 <= pointer.size <= BODY_BYTES_MAX:
            raise PayloadDamaged(f"The body of {pointer.size} bytes is larger than {BODY_BYTES_MAX}.")
        if pointer.key.startswith(f"{self._prefix}{CLIENT}/"):
            data = self._store.get(pointer.key.removeprefix(self._prefix), pointer.size)
        elif self._whole_bucket is not None:
            data = self._whole_bucket.get_named(pointer.key, pointer.size)
        else:
            raise PayloadDamaged(f"{pointer.key[:100]!r} is not in the payload store {self._store.url}.")
        kept = {name: value for name, value in attributes.items() if name not in (SIZE, OLD_SIZE, TYPE)}
        return _value(data, pointer), kept


def _value(data: bytes, pointer: Pointer) -> Any:
    if pointer.kind == "bytes":
        return data
    try:
        return msgspec.json.decode(data) if pointer.kind == "json" else data.decode()
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        raise PayloadDamaged(f"The object {pointer.key[:200]} is not {pointer.kind}, as its message says.") from None
