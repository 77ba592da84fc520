"""The two formats of bodies, JSON and MessagePack, and the choice between them for a request and its answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from batonq.api.document_weight import CONTAINER_WEIGHT, PackedWeightLimit, WeightLimit, packed_fields
from batonq.api.http import Request
from batonq.api.rest.decode_errors import explain
from batonq.errors import InvalidInput, NotAcceptable, TooLarge, UnsupportedMediaType
from batonq.node.bounded_cache import BoundedCache

T = TypeVar("T")
KEPT_MAX = 256  # maximum number of cached header values
KEPT_LENGTH_MAX = 256  # longer header values are not cached
RANGES_MAX = 64  # of an Accept header; further ranges are ignored
PARAMETERS_MAX = 8  # per range; further ones are ignored
WEIGHT = WeightLimit(brackets_max=100_000, separators_max=200_000)
PACKED_WEIGHT = PackedWeightLimit(values_max=100_000)


class Codec:
    """One format. Decoders are created once per type."""

    def __init__(
        self,
        name: str,
        content_type: str,
        problem_type: str,
        decoder: type[msgspec.json.Decoder[Any]] | type[msgspec.msgpack.Decoder[Any]],
        encode: Callable[[Any], bytes],
    ) -> None:
        self.name = name
        self.content_type = content_type
        self.problem_type = problem_type
        self.encode = encode
        self._decoder = decoder
        self._decoders: dict[Any, Callable[[bytes], Any]] = {}

    def decode(self, data: bytes, shape: type[T]) -> T:
        """Decode `data`. Raises InvalidInput, which says where the value is invalid."""
        fields: tuple[str, ...] = getattr(shape, "__struct_fields__", ())
        limits_work = self is MSGPACK and getattr(shape, "limits_work", False)
        if not limits_work or packed_fields(data) > len(fields):  # more: some are repeated
            self.check_weight(data)
        try:
            value: T = self.decoder(shape)(data)
            if self is JSON and not data.isascii():
                data.decode()  # checks UTF-8, since raw values were not decoded
        except (msgspec.ValidationError, msgspec.DecodeError) as problem:
            raise InvalidInput(f"The request's body is not valid: {explain(str(problem), shape.__name__)}.") from None
        except UnicodeDecodeError:
            raise InvalidInput(f"The request's body is not valid {self.name}: it is not UTF-8.") from None
        except RecursionError:
            raise InvalidInput("The request's body is nested too deeply.") from None
        return value

    def check_weight(self, data: bytes) -> None:
        """Raise TooLarge for a document that would take too long to decode."""
        if self is MSGPACK and not PACKED_WEIGHT.allows(data):
            raise TooLarge(
                f"The request's body has more than {PACKED_WEIGHT.values_max} values; an array or object counts as "
                f"{CONTAINER_WEIGHT}. Send smaller batches, or send large documents as strings."
            )
        if self is JSON and not WEIGHT.allows(data):
            raise TooLarge(
                f"The request's body has more than {WEIGHT.brackets_max} objects and arrays, or more than "
                f"{WEIGHT.separators_max} members. Send smaller batches, or send large documents as strings."
            )

    def decoder(self, shape: type[T]) -> Callable[[bytes], T]:
        found = self._decoders.get(shape)
        if found is None:
            found = self._decoders[shape] = self._decoder(shape).decode
        return found


JSON = Codec("JSON", "application/json", "application/problem+json", msgspec.json.Decoder, msgspec.json.encode)
MSGPACK = Codec(
    "MessagePack",
    "application/msgpack",
    "application/problem+msgpack",
    msgspec.msgpack.Decoder,
    msgspec.msgpack.encode,
)

_TYPES = {
    "application/json": JSON,
    "application/msgpack": MSGPACK,
    "application/vnd.msgpack": MSGPACK,
    "application/x-msgpack": MSGPACK,
}
_ACCEPTED = {
    **_TYPES,
    "application/problem+json": JSON,
    "application/problem+msgpack": MSGPACK,
}
# The last one is the format of history. Errors about history come in the request's format.
_ANY = ("*/*", "application/*", "application/vnd.baton.frames")


class Negotiator:
    """Parses Content-Type and Accept. Clients repeat the same values, so the results are cached."""

    def __init__(self) -> None:
        self._types: BoundedCache[bytes, Codec] = BoundedCache(KEPT_MAX, KEPT_LENGTH_MAX)
        self._accepts: BoundedCache[bytes, Codec | None] = BoundedCache(KEPT_MAX, KEPT_LENGTH_MAX)

    def given(self, request: Request) -> Codec:
        """The format of the request's body."""
        header = request.headers.get(b"content-type")
        if header is None:
            return JSON
        codec = self._types.get(header)
        if codec is None:
            codec = _TYPES.get(header.decode("latin-1").partition(";")[0].strip().lower())
            if codec is None:
                if not request.body:
                    return JSON
                raise UnsupportedMediaType(
                    f"The content type {header.decode('latin-1')[:100]} is not supported. Use application/json or "
                    "application/msgpack."
                )
            self._types.put(header, codec, len(header))
        return codec

    def wanted(self, request: Request, given: Codec) -> Codec:
        """The format for the answer; the request's own format when the client accepts any."""
        header = request.headers.get(b"accept")
        if header is None:
            return given
        if header in self._accepts:
            return self._accepts[header] or given
        codec, any_will_do = _best(header.decode("latin-1"))
        if codec is None and not any_will_do:
            raise NotAcceptable
        self._accepts.put(header, codec, len(header))
        return codec or given


def _best(accept: str) -> tuple[Codec | None, bool]:
    """The format with the highest weight (the first of equals), and whether the client accepts any format."""
    best: Codec | None = None
    best_weight = any_weight = 0.0
    for part in accept.split(",", RANGES_MAX)[:RANGES_MAX]:
        name, *parameters = [piece.strip().lower() for piece in part.split(";", PARAMETERS_MAX)]
        weight = 1.0
        for parameter in parameters:
            if parameter.startswith("q="):
                try:
                    weight = float(parameter[2:])
                except ValueError:
                    weight = 0.0
        codec = _ACCEPTED.get(name)
        if codec is not None and weight > best_weight:
            best, best_weight = codec, weight
        elif name in _ANY:
            any_weight = max(any_weight, weight)
    if any_weight > best_weight:
        return None, True
    return best, any_weight > 0
